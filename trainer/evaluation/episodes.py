"""Whole episodes of held-out hosts under a policy, and what became of each host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.messages.vocabulary import Op, Stage
from trainer.compute.execution_plan import Execution
from trainer.config.schema import Config
from trainer.data.mixture import Mixture
from trainer.data.task import Task
from trainer.episodes import Episodes
from trainer.hosts.autotune import choose_execution, create_population
from trainer.policy.actor import Actor
from trainer.policy.update_statistics import UpdateStatistics
from trainer.telemetry.transfer import HostFrame

from .frozen_policy import FrozenPolicy
from .held_out import HeldOutHosts

OnEpoch = Callable[[int, int], None]
"""Called before each epoch with its number, from 0, and how many there are."""


@dataclass(frozen=True)
class EpisodeTable:
    """What became of N hosts; row i is the same host for every policy."""

    task: tuple[str, ...]
    """[N] what each learned."""
    instance: NDArray[np.int64]
    """[N] of the task, from 0 among those held out."""
    val_accuracy: NDArray[np.float64]
    """[N] after the last epoch, 0..1."""
    test_accuracy: NDArray[np.float64]
    """[N] the same on the test images."""
    added_parameters: NDArray[np.int64]
    """[N] of the seeds that the host holds at the end."""
    episode_return: NDArray[np.float64]
    """[N] sum of the rewards."""
    components: dict[str, NDArray[np.float64]]
    """[N] each, of the return, by name."""
    fossilized: NDArray[np.int64]
    """[N] seeds that are for good."""
    ops: NDArray[np.int64]
    """[N, ops] how often each op was chosen, in the order of `Op`."""

    def __len__(self) -> int:
        return len(self.task)

    def of_task(self, task: str) -> EpisodeTable:
        """The rows of the hosts that learned a task."""
        chosen = np.array([name == task for name in self.task])
        columns: dict[str, Any] = {
            f.name: getattr(self, f.name)[chosen]
            for f in fields(self)
            if f.name not in ("task", "components")
        }
        components = {name: column[chosen] for name, column in self.components.items()}
        return EpisodeTable(task=(task,) * int(chosen.sum()), components=components, **columns)

    def to_builtins(self) -> dict[str, Any]:
        """Lists and numbers, for JSON and checkpoints; `from_builtins` reads them."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("task", "components")}
        return {
            "task": list(self.task),
            "components": {name: column.tolist() for name, column in self.components.items()},
            **{name: column.tolist() for name, column in parts.items()},
        }

    @classmethod
    def from_builtins(cls, parts: dict[str, Any]) -> EpisodeTable:
        whole = ("instance", "added_parameters", "fossilized", "ops")
        columns: dict[str, Any] = {
            name: np.array(values, np.int64 if name in whole else np.float64)
            for name, values in parts.items()
            if name not in ("task", "components")
        }
        components = {name: np.array(values, np.float64) for name, values in parts["components"].items()}
        return cls(task=tuple(parts["task"]), components=components, **columns)


class HeldOutEpisodes:
    """Held-out hosts, built once, on which policies are tried one after the other.

    Args:
        cfg: of the run: hosts, seeds, reward, gates; its policy does not matter.
        data: what the hosts learn, see `HeldOutHosts.load`.
        held_out: which hosts.
        device: where everything lives.
        execution: how the hosts are trained; None = chosen here.

    Raises:
        EsperError: the hosts cannot be built, or do not fit into the memory.
    """

    def __init__(
        self,
        cfg: Config,
        data: Task,
        held_out: HeldOutHosts,
        device: torch.device,
        execution: Execution | None = None,
    ) -> None:
        self.cfg, self.held_out = held_out.configure(cfg), held_out
        self._data, self._device = data, device
        execution = execution or choose_execution(self.cfg, data, device)
        self._population = create_population(self.cfg, data, device, execution)

    def play(self, policy: FrozenPolicy, on_epoch: OnEpoch | None = None) -> EpisodeTable:
        """One episode of all hosts.

        Args:
            policy: decides for them; its network stays as it is.
            on_epoch: for progress.

        Raises:
            ConfigError: the policy's constant schedule does not fit.
        """
        cfg, population = policy.configure(self.cfg), self._population
        actor = Actor(
            cfg,
            policy.network,
            slots=len(population.slots),
            host_parameters=population.parameters_host,
            device=self._device,
        )
        seen = _Record(on_epoch)
        episodes = Episodes(cfg, self._data, population, actor)
        episodes.play(seen)
        names = [(self._data.name, 0)] * len(episodes.table.stage)
        if isinstance(self._data, Mixture):
            names = self._data.names(cfg.seed, len(names), episodes.round)
        added = episodes.measurements.parameters - population.parameters_host
        return EpisodeTable(
            task=tuple(task for task, _ in names),
            instance=np.array([instance for _, instance in names]),
            val_accuracy=episodes.measurements.val_accuracy.double().cpu().numpy(),
            test_accuracy=population.test()[1].double().cpu().numpy(),
            added_parameters=added.long().cpu().numpy(),
            episode_return=seen.rewards["reward"],
            components={name[7:]: column for name, column in seen.rewards.items() if name != "reward"},
            fossilized=(episodes.table.stage == Stage.FOSSILIZED).sum(1).cpu().numpy(),
            ops=seen.ops,
        )

    def close(self) -> None:
        """End the worker threads."""
        self._population.close()


def play_episodes(
    cfg: Config, data: Task, policy: FrozenPolicy, held_out: HeldOutHosts, device: torch.device
) -> EpisodeTable:
    """One episode of a policy on held-out hosts; `HeldOutEpisodes` keeps the hosts for several policies."""
    episodes = HeldOutEpisodes(cfg, data, held_out, device)
    try:
        return episodes.play(policy)
    finally:
        episodes.close()


class _Record:
    """The `Hooks` of an evaluation: keep what was paid and chosen."""

    layer_envs = None

    def __init__(self, on_epoch: OnEpoch | None) -> None:
        self._on_epoch = on_epoch
        self.rewards: dict[str, NDArray[np.float64]] = {}
        """[N] each: `reward` and `reward.NAME` of its components, summed over the epochs."""
        self.ops = np.zeros((0, len(Op)), np.int64)

    def wants_round(self, finished: int) -> bool:  # noqa: ARG002
        return False

    def on_round_begin(self, round: int) -> None: ...

    def on_epoch_begin(self, epoch: int, epochs: int) -> None:
        if self._on_epoch is not None:
            self._on_epoch(epoch, epochs)

    def phase(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def on_phase_times(self, seconds: dict[str, float]) -> None: ...

    def on_frame(self, frame: HostFrame, layers: Sequence[str]) -> None:  # noqa: ARG002
        for name in frame:
            if name.partition(".")[0] == "reward":
                self.rewards[name] = self.rewards.get(name, 0.0) + frame[name].astype(np.float64)
        if "op" in frame:
            chosen = np.eye(len(Op), dtype=np.int64)[frame["op"]]
            self.ops = chosen if not len(self.ops) else self.ops + chosen

    def on_epoch_end(self, round: int, epoch: int) -> None: ...

    def on_round_end(
        self, round: int, update: UpdateStatistics | None, frame: HostFrame, *, is_best: bool
    ) -> None: ...

"""Whole episodes of held-out hosts under a policy, and what became of each host."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.vocabulary import WITH_SEED, Op, Stage
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.mixture import Mixture
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.episode_table import EpisodeTable as EpisodeTable
from esper_overwatch.trainer.episodes import Episodes
from esper_overwatch.trainer.hooks import Hooks
from esper_overwatch.trainer.hosts.autotune import DoesNotFit, choose_execution, create_population
from esper_overwatch.trainer.policy.actor import Actor
from esper_overwatch.trainer.seeds.table import is_in
from esper_overwatch.trainer.telemetry.transfer import HostFrame

from .frozen_policy import FrozenPolicy
from .held_out import HeldOutHosts

OnEpoch = Callable[[int, int], None]
"""Called before each epoch with its number, from 0, and how many there are."""


class HeldOutEpisodes:
    """Held-out hosts, built once, on which policies are tried one after the other.

    Args:
        cfg: of the run: hosts, seeds, reward, gates; its policy does not matter.
        data: what the hosts learn, see `HeldOutHosts.load`.
        held_out: which hosts.
        execution: how the hosts are trained; None = chosen here.
        process_group: the ranks that the hosts are split over; their number is a multiple of that of ranks.

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
        process_group: ProcessGroup | None = None,
    ) -> None:
        self._group = process_group or ProcessGroup()
        self._rows = self._group.rows(held_out.count)
        self.cfg = share = held_out.configure(cfg, len(self._rows))
        self._data, self._device = data, device
        graphs = CudaGraphs(on=cfg.cuda.graphs and device.type == "cuda")
        execution = execution or choose_execution(share, data, device, graphs)
        try:
            self._population = create_population(share, data, device, execution, self._rows.start)
        except DoesNotFit as error:
            raise DoesNotFit(f"{held_out.count} held-out hosts: {error}") from None
        self._population.compile(Compiler("off", device), graphs)
        self._episodes = Episodes(share, data, self._population, self._actor(FrozenPolicy("no_growth")))
        self._episodes.capture(graphs)

    @property
    def slots(self) -> int:
        """S of each host."""
        return len(self._population.slots)

    def play(self, policy: FrozenPolicy, on_epoch: OnEpoch | None = None) -> EpisodeTable:
        """One episode of all hosts.

        Args:
            policy: decides for them; its network stays as it is.

        Raises:
            ConfigError: the policy's constant schedule does not fit.
        """
        population, episodes, seen = self._population, self._episodes, _Record(on_epoch)
        episodes.actor, episodes.round, episodes.epoch = self._actor(policy), 0, 0
        episodes.play(seen)
        names = [(self._data.name, 0)] * self._rows.stop
        if isinstance(self._data, Mixture):
            names = self._data.names(self.cfg.seed, self._rows.stop, 1, episodes.round)
        names = names[self._rows.start :]
        table = episodes.table
        holds = is_in(table.stage, WITH_SEED)
        columns = {
            "val_accuracy": episodes.measurements.val_accuracy.double(),
            "test_accuracy": population.test()[1].double(),
            "added_parameters": population.tested_parameters() - population.parameters_host,
            "fossilized": (table.stage == Stage.FOSSILIZED).sum(1),
            "blueprint": torch.where(holds, table.blueprint, -1),
            "style": torch.where(holds, table.style, -1),
        }
        mine = EpisodeTable(
            task=tuple(task for task, _ in names),
            instance=np.array([instance for _, instance in names]),
            episode_return=seen.rewards["reward"],
            components={name[7:]: column for name, column in seen.rewards.items() if name != "reward"},
            ops=seen.ops,
            **episodes.to_host(columns),
        )
        return self._of_all_ranks(mine)

    def _actor(self, policy: FrozenPolicy) -> Actor:
        return policy.make_actor(policy.configure(self.cfg), self._population, self._device, self._rows.start)

    def _of_all_ranks(self, mine: EpisodeTable) -> EpisodeTable:
        if self._group.size == 1:
            return mine
        tables = self._group.all_gather_bytes(json.dumps(mine.to_builtins()).encode())
        return EpisodeTable.joined([EpisodeTable.from_builtins(json.loads(table)) for table in tables])

    def close(self) -> None:
        """End the worker threads."""
        self._population.close()


class _Record(Hooks):
    """Keeps what was paid and chosen."""

    def __init__(self, on_epoch: OnEpoch | None) -> None:
        self._on_epoch = on_epoch
        self.rewards: dict[str, NDArray[np.float64]] = {}
        """[N] each: `reward` and `reward.NAME` of its components, summed over the epochs."""
        self.ops = np.zeros((0, len(Op)), np.int64)

    def on_epoch_begin(self, epoch: int, epochs: int) -> None:
        if self._on_epoch is not None:
            self._on_epoch(epoch, epochs)

    def on_frame(self, frame: HostFrame, layers: Sequence[str]) -> None:  # noqa: ARG002
        for name in frame:
            if name.partition(".")[0] == "reward":
                self.rewards[name] = self.rewards.get(name, 0.0) + frame[name].astype(np.float64)
        if "op" in frame:
            chosen = np.eye(len(Op), dtype=np.int64)[frame["op"]]
            self.ops = chosen if not len(self.ops) else self.ops + chosen

    def passes_epoch_end(self, round: int, epoch: int) -> bool:  # noqa: ARG002
        return True

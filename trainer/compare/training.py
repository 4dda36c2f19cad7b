"""Trains a policy for a comparison: the run's own loop, without a daemon, resumable after every round."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.episode_table import PolicyEvaluation
from esper_overwatch.trainer.hooks import Learned
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.network import ActorCritic
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.teaching.taught_trainer import TaughtTrainer, create_trainer
from esper_overwatch.trainer.telemetry.transfer import HostFrame

from .observations import RevealedTasks
from .searches import pack

SAVE_SECONDS = 60.0
"""Interval after which work is saved, at the next end of a round."""

Row = dict[str, float | None]
"""Figures of a round by name."""


class TrainingHooks:
    """Keeps the figures of each round, and what the teacher's rounds have led to; saves now and then.

    Args:
        save: called with nothing at the end of a round.
        report: called with the round.
    """

    layer_envs = None

    def __init__(
        self, trainer: Trainer, rounds: int, save: Callable[[], None], report: Callable[[int], None]
    ) -> None:
        self.trainer, self.rounds = trainer, rounds
        self.curve: list[Row] = []
        self.taught: dict[str, Any] = {}
        self._save, self._report = save, report
        self._begun = self._saved = time.perf_counter()

    def wants_round(self, finished: int) -> bool:
        return finished < self.rounds

    def on_round_begin(self, round: int) -> None:  # noqa: ARG002
        self._begun = time.perf_counter()

    def on_epoch_begin(self, epoch: int, epochs: int) -> None: ...

    def phase(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def on_phase_times(self, seconds: dict[str, float]) -> None: ...

    def on_frame(self, frame: HostFrame, layers: Sequence[str]) -> None: ...

    def passes_epoch_end(self, round: int, epoch: int) -> bool:  # noqa: ARG002
        return True

    def on_epoch_passed(self) -> None: ...

    def on_epoch_end(self, round: int, epoch: int) -> None: ...

    def on_round_end(self, round: int, update: Learned | None, frame: HostFrame) -> None:
        trainer, ppo = self.trainer, update if isinstance(update, UpdateStatistics) else None
        added = trainer.population.parameters() - trainer.population.parameters_host
        self.curve.append(
            {
                "return": float(trainer.rollout.reward.double().sum(0).mean()),
                "test_accuracy": float(frame["test_accuracy"].mean()),
                "added": float(added.double().mean()),
                "fossilized": float((trainer.table.stage == Stage.FOSSILIZED).sum(1).double().mean()),
                "explained_variance": None if ppo is None else _known(ppo.explained_variance),
                "explained_variance_within": None if ppo is None else _known(ppo.explained_variance_within),
                "seconds": time.perf_counter() - self._begun,
            }
        )
        if isinstance(trainer, TaughtTrainer) and round == trainer.teacher.rounds:
            assert trainer.agent.ppo is not None
            imitated = {name: weight.clone() for name, weight in _weights(trainer.agent.ppo.network).items()}
            self.taught = {"imitated": imitated, "teacher": trainer.teacher.choice._asdict()}

    def on_progress(self, done: int, total: int) -> None: ...

    def on_round_evaluated(self, round: int, _: Sequence[PolicyEvaluation], *, is_best: bool) -> None:  # noqa: ARG002
        self._report(round)
        if time.perf_counter() - self._saved > SAVE_SECONDS or round == self.rounds:
            self._save()
            self._saved = time.perf_counter()


def train_policy(
    cfg: Config,
    data: Task,
    device: torch.device,
    *,
    seed: int,
    rounds: int,
    revealed: Sequence[int] | None = None,
    part: bytes | None = None,
    begin: Callable[[int], None],
    save: Callable[[bytes], None],
    report: Callable[[int], None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train PPO; the policy after the last round is the result, no round is picked.

    Args:
        cfg: of the run; its seed and rounds are replaced.
        revealed: the task's number of each dataset of a mixture, where the policy is to see its task.
        part: what an interrupted call saved.
        begin: called with the episodes that it had done.
        save: called with all that another call needs to go on.
        report: called with the episodes that are done.

    Returns:
        Figures as JSON has them; and tensors: `ppo`, the network's by name; in a run with a teacher
        `imitated`, the same before PPO's first update, and `teacher`, its `TaughtChoice`.

    Raises:
        PolicyDiverged: its loss stayed non-finite.
    """
    cfg = configure_training(cfg, seed, rounds)
    trainer = create_trainer(cfg, data, device)
    if revealed is not None:
        told = RevealedTasks(trainer.agent.observation_builder, trainer.population, revealed)
        trainer.agent.observation_builder = told

    def save_part() -> None:
        save(pack({"trainer": trainer.state_dict(), "curve": hooks.curve, "taught": hooks.taught}))

    hooks = TrainingHooks(trainer, rounds, save_part, lambda done: report(done * cfg.envs.count))
    if part is not None:
        state = torch.load(io.BytesIO(part), map_location=device, weights_only=True)
        trainer.load_state_dict(state["trainer"])
        hooks.curve, hooks.taught = state["curve"], state["taught"]
    begin(trainer.round * cfg.envs.count)
    try:
        trainer.run(hooks)
    finally:
        trainer.population.close()
    assert trainer.agent.ppo is not None
    figures = {
        "episodes": rounds * cfg.envs.count,
        "rounds": rounds,
        "seconds": sum(row["seconds"] or 0.0 for row in hooks.curve),
        "curve": hooks.curve,
    }
    return figures, {"ppo": _weights(trainer.agent.ppo.network)} | hooks.taught


def _weights(network: ActorCritic) -> dict[str, Tensor]:
    return {name: weight.cpu() for name, weight in network.state_dict().items()}


def _known(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def configure_training(cfg: Config, seed: int, rounds: int) -> Config:
    """For a training that does not look at held-out hosts."""
    return replace(
        cfg,
        seed=seed,
        rounds=rounds,
        policy=replace(cfg.policy, kind="ppo"),
        evaluation=replace(cfg.evaluation, rounds=0),
    )

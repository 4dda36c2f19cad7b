"""Between the loop and the outside: telemetry out, commands in, checkpoints at their time.

The loop calls in at its boundaries. Only commands change what is trained; all else here reads host frames.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from esper_overwatch.protocol.server.server import Server
from esper_overwatch.trainer.compute.device import upload
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.control.checkpoint_saver import CheckpointSaver
from esper_overwatch.trainer.control.command_runner import CommandRunner
from esper_overwatch.trainer.episode_table import PolicyEvaluation
from esper_overwatch.trainer.hooks import Hooks
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.ranks.rank_zero import RankZero
from esper_overwatch.trainer.telemetry.collection.plan import CollectionPlan
from esper_overwatch.trainer.telemetry.gpu_clock import GpuClock
from esper_overwatch.trainer.telemetry.log_lines import IN_EVENT
from esper_overwatch.trainer.telemetry.recorder import Recorder
from esper_overwatch.trainer.telemetry.stall_counters import StallCounters
from esper_overwatch.trainer.telemetry.timer import PhaseTimer, PhaseTimes
from esper_overwatch.trainer.telemetry.transfer import HostFrame

logger = logging.getLogger(__name__)


class Rank0Hooks(Hooks):
    """The hooks of rank 0.

    Args:
        trainer: for its device, its share of the envs and its waits for the device.
        server: the wire.
        recorder: turns host frames into events.
        plan: what is collected.
        commands: executed at the boundaries.
        saver: saves checkpoints.
        rank_zero: the other ranks.
    """

    def __init__(
        self,
        config: Config,
        trainer: Trainer,
        server: Server,
        recorder: Recorder,
        plan: CollectionPlan,
        commands: CommandRunner,
        saver: CheckpointSaver,
        rank_zero: RankZero,
    ) -> None:
        self._server = server
        self._recorder = recorder
        self._plan = plan
        self._commands = commands
        self._saver = saver
        self._rank_zero = rank_zero
        self._rounds = config.rounds
        self._profiled, self._rounds_begun = config.profiler, 0
        self._save_seconds = config.checkpoint.every_seconds or math.inf
        self._device = trainer.table.stage.device
        self._envs = trainer.cfg.envs.count
        self._population = trainer.population
        self._transfer = trainer.to_host
        self._timer = PhaseTimer(GpuClock() if self._device.type == "cuda" else None)
        self._counters = StallCounters(self._device)
        self._round_began = self._timer.clock
        self._saved_at = time.monotonic()
        self._late: tuple[PhaseTimes, tuple[float, float]] | None = None
        """Times and learning rates of an epoch that is reported when the next one has been issued."""

    def wants_round(self, finished: int) -> bool:
        if not self._commands.goes_on_after_round():
            return False
        return self._rounds == 0 or finished < self._rounds

    def on_round_begin(self, round: int) -> None:
        self._round_began = self._timer.clock
        self._timer.lap()
        self._counters.begin_round()
        self._recorder.begin_round(round)
        self._commands.at_round_begin()
        self._plan.begin_round(round)
        self._profile_round()
        self._rank_zero.start_epoch(self._plan.layer_envs)

    def on_epoch_begin(self, epoch: int, epochs: int) -> None:
        self._recorder.begin_epoch()
        self._commands.profiler.epoch_begin(self._recorder.round, epoch, epochs - epoch)

    @property
    def layer_envs(self) -> Tensor | None:
        wanted = self._plan.layer_envs[: self._envs]
        return upload(wanted, self._device) if wanted.any() else None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with self._timer.phase(name):
            yield

    def on_phase_times(self, seconds: dict[str, float]) -> None:
        self._timer.divide("train", seconds)

    def on_frame(self, frame: HostFrame, layers: Sequence[str]) -> None:
        merged, layers = self._rank_zero.merge_frames(frame, layers)
        if "reward" in merged:
            self._finish_epoch(merged, layers)
        if "stage" in merged:
            self._recorder.record_decision(merged)

    def passes_epoch_end(self, round: int, epoch: int) -> bool:
        with self._timer.phase("commands"):
            if not self._nothing_is_due():
                self._rank_zero.request_reports()
                return False
            self._rank_zero.start_epoch(self._plan.layer_envs)
        self._server.beat(round, epoch)
        return True

    def _nothing_is_due(self) -> bool:
        """True if an epoch's end may pass."""
        if time.monotonic() - self._saved_at >= self._save_seconds or not self._commands.is_idle:
            return False
        # At level DEBUG, whether the next epoch measures layers is known when this one has been reported.
        return self._plan.level != "DEBUG" and not self._recorder.has_raised

    def on_epoch_passed(self) -> None:
        self._late = self._lap(), self._population.learning_rates

    def on_epoch_end(self, round: int, epoch: int) -> None:
        self._server.beat(round, epoch)
        with self._timer.phase("commands"):
            self._commands.at_epoch_end(self._timer.paused)
            if time.monotonic() - self._saved_at >= self._save_seconds:
                self._save("periodic")
            self._rank_zero.start_epoch(self._plan.layer_envs)

    def on_round_end(self, round: int, update: UpdateStatistics | None, frame: HostFrame) -> None:
        with self._timer.phase("profiler"):
            self._commands.profiler.round_end()
        if update is not None:
            self._recorder.record_update(update)
            self._plan.escalate_anomalies(self._recorder.take_raised())
        merged, _ = self._rank_zero.merge_frames(frame)
        if "shapley.value" in merged:
            self._recorder.record_shapley(merged)
        times = PhaseTimes(self._timer.clock - self._round_began, self._timer.lap().phases)
        stalls = self._counters.take(self._transfer.count)
        summary = self._recorder.finish_round(times, merged["test_accuracy"], stalls)
        logger.info(
            "round %d: return %.3f, accuracy %.3f mean %.3f best, %.1f s",
            round,
            summary.return_mean,
            summary.accuracy_mean,
            summary.accuracy_best,
            summary.seconds,
            extra=IN_EVENT,
        )

    def on_progress(self, done: int, total: int) -> None:  # noqa: ARG002
        self._server.show_life()

    def on_round_evaluated(
        self, round: int, evaluations: Sequence[PolicyEvaluation], *, is_best: bool
    ) -> None:
        for evaluation in evaluations:
            evaluated = self._recorder.record_evaluation(evaluation)
            logger.info(
                "evaluation after round %d: %s on %d held-out hosts: return %.3f, test accuracy %.3f, "
                "%.0f parameters added, %.1f s",
                round,
                evaluated.policy,
                evaluated.hosts,
                evaluated.return_mean,
                evaluated.test_accuracy_mean,
                evaluated.added_parameters_mean,
                evaluated.seconds,
                extra=IN_EVENT,
            )
        self._save("round", best=is_best)
        self._commands.at_epoch_end(self._timer.paused)  # what came in the update and the evaluation

    def _profile_round(self) -> None:
        self._rounds_begun += 1
        if self._rounds_begun not in self._profiled.rounds:
            return
        try:
            self._commands.profiler.start(self._profiled.epochs, with_update=True)
        except ValueError as error:
            logger.warning("profiler.rounds: round %d is not recorded: %s", self._rounds_begun, error)

    def _save(self, reason: str, *, best: bool = False) -> None:
        self._saver.save_aside(reason, best=best)
        self._saved_at = time.monotonic()

    def _lap(self) -> PhaseTimes:
        """End the epoch that is not recorded yet."""
        return self._timer.lap((self._recorder.round, self._recorder.epoch + 1))

    def _finish_epoch(self, frame: HostFrame, layers: Sequence[str]) -> None:
        late, self._late = self._late, None
        times, rates = late or (self._lap(), self._population.learning_rates)
        self._recorder.record_outcome(frame, times, layers, rates)
        with self._timer.phase("profiler"):
            self._commands.profiler.epoch_end()
        # After a late report the next epoch is under way: what anomalies ask for begins when it has ended.
        self._plan.end_epoch(self._recorder.take_raised() if late is None else [])

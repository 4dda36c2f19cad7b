"""Between the loop and the outside: telemetry out, commands in, checkpoints at their time.

The loop calls in at its boundaries; nothing in here changes what is trained.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protocol.events import PPOUpdate
from protocol.server import Server

from .config import Config
from .leader import Leader
from .operator import Operator
from .telemetry.counters import Counters
from .telemetry.escalation import Escalations
from .telemetry.gpu_clock import GpuClock
from .telemetry.levels import Levels
from .telemetry.recorder import Recorder
from .telemetry.timer import PhaseTimer
from .telemetry.transfer import Frame, Transfer

if TYPE_CHECKING:
    from .loop import Trainer

logger = logging.getLogger(__name__)


class Observer:
    """The `Watcher` of rank 0.

    Args:
        server: the wire.
        recorder: turns what is seen into events.
        levels: how much is collected.
        operator: carries out commands and writes checkpoints.
        config: of the run.
        device: of the run.
        envs: this rank's, the first so many of the run's.
        leader: of the other ranks.
    """

    def __init__(
        self,
        server: Server,
        recorder: Recorder,
        levels: Levels,
        operator: Operator,
        *,
        config: Config,
        device: torch.device,
        envs: int,
        leader: Leader,
    ) -> None:
        self._server = server
        self._recorder = recorder
        self._levels = levels
        self._operator = operator
        self._rounds = config.rounds
        self._profiled, self._rounds_begun = config.profiler, 0
        self._save_every_s = config.checkpoint.every_seconds or math.inf
        self._device = device
        self._envs = envs
        self._leader = leader
        self._escalations = Escalations(levels, config.telemetry, config.episode_epochs, config.envs.count)
        self._timer = PhaseTimer(GpuClock() if device.type == "cuda" else None)
        self._transfer = Transfer()
        self._counters = Counters(device)
        self._round_began = time.perf_counter()
        self._best_return = -np.inf
        self._saved_at = time.monotonic()

    # --- called by the loop, see `Watcher` ---------------------------------------------------------

    def wants_round(self, finished: int) -> bool:
        if self._operator.stops_after_round is not None:
            return False
        return self._rounds == 0 or finished < self._rounds

    def round_begins(self, round: int) -> None:
        self._round_began = time.perf_counter()
        self._timer.lap()
        self._recorder.round_started(round)
        self._operator.at_round_begin()
        self._operator.levels_changed(self._escalations.round_begins(round))
        self._profile_round()
        self._leader.go(self._recorder.layer_envs)

    def epoch_begins(self, epoch: int, epochs: int) -> None:
        self._recorder.epoch_begins()
        self._operator.profiler.epoch_begin(self._recorder.round, epoch, epochs - epoch)

    @property
    def layer_envs(self) -> Tensor | None:
        wanted = self._recorder.layer_envs[: self._envs]
        return torch.from_numpy(wanted).to(self._device, non_blocking=True) if wanted.any() else None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with self._timer.phase(name):
            yield

    def trained(self, seconds: dict[str, float]) -> None:
        self._timer.divide("train", seconds)

    def see(self, columns: dict[str, Tensor], layers: Sequence[str]) -> Frame:
        with self._timer.phase("telemetry"):
            frame = self._transfer(columns)
            whole, layers = self._leader.joined(frame, layers)
            if "reward" in whole:
                self._finish_epoch(whole, layers)
            if "stage" in whole:
                self._recorder.decided(whole)
        return frame

    def intervened(self, columns: dict[str, Tensor]) -> Frame:
        """The operator has acted on seeds, between the policy's decision and its epoch; the new topology.

        Args:
            columns: of `decision_columns`.
        """
        frame = self._transfer(columns)
        whole, _ = self._leader.joined(frame)
        self._recorder.decided(whole, by="operator")
        return frame

    def epoch_finished(self, trainer: Trainer) -> None:
        self._server.beat(trainer.round, trainer.epoch)
        with self._timer.phase("commands"):
            self._operator.at_epoch_end()
            if time.monotonic() - self._saved_at >= self._save_every_s:
                self._save("periodic")
            self._leader.go(self._recorder.layer_envs)

    def round_finished(self, trainer: Trainer, update: PPOUpdate | None, columns: Frame) -> None:
        with self._timer.phase("profiler"):
            self._operator.profiler.round_end()
        if update is not None:
            self._recorder.updated(update)
            self._operator.levels_changed(self._escalations.raised(self._recorder.raised()))
        columns, _ = self._leader.joined(columns)
        if "shapley.value" in columns:
            self._recorder.shapley(columns)
        summary = self._recorder.round_finished(
            time.perf_counter() - self._round_began, columns["test_accuracy"],
            phases=self._timer.lap()[1], hindrances=self._counters.take(self._transfer.count),
        )  # fmt: skip
        best = summary.return_mean > self._best_return
        self._best_return = max(self._best_return, summary.return_mean)
        logger.info(
            "round %d: return %.3f, accuracy %.3f mean %.3f best, %.1f s",
            trainer.round,
            summary.return_mean,
            summary.accuracy_mean,
            summary.accuracy_best,
            summary.seconds,
        )
        self._save("round", best=best)

    def _profile_round(self) -> None:
        self._rounds_begun += 1
        if self._rounds_begun not in self._profiled.rounds:
            return
        try:
            self._operator.profiler.start(self._profiled.epochs, with_update=True)
        except ValueError as error:
            logger.warning("profiler.rounds: round %d is not recorded: %s", self._rounds_begun, error)

    def _save(self, reason: str, *, best: bool = False) -> None:
        self._operator.save_or_say(reason, best=best)
        self._saved_at = time.monotonic()

    # --- across boots ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "recorder": self._recorder.state_dict(),
            "escalations": self._escalations.state_dict(),
            "best_return": float(self._best_return),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recorder.load_state_dict(state["recorder"])
        self._escalations.load_state_dict(state["escalations"])
        self._best_return = state["best_return"]

    def _finish_epoch(self, frame: Frame, layers: Sequence[str]) -> None:
        seconds, phases = self._timer.lap()
        self._recorder.finished(
            frame,
            seconds=seconds,
            phases=phases,
            cpu_phases=self._timer.cpu_phases,
            gpu_phases=self._timer.gpu_phases,
            layer_names=layers,
        )
        with self._timer.phase("profiler"):
            self._operator.profiler.epoch_end()
        self._operator.levels_changed(self._levels.tick())
        self._escalations.epoch_finished()
        self._operator.levels_changed(self._escalations.raised(self._recorder.raised()))

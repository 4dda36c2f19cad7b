"""Between the loop and the outside: telemetry out, commands in, checkpoints at their time.

The loop calls in at its boundaries; nothing in here changes what is trained.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.events import PPOUpdate
from protocol.server import Server

from .operator import Operator
from .telemetry.levels import Levels
from .telemetry.recorder import Recorder
from .telemetry.timer import PhaseTimer
from .telemetry.transfer import Frame, Transfer

if TYPE_CHECKING:
    from .loop import Trainer

logger = logging.getLogger(__name__)


class Observer:
    """Watches one run.

    Args:
        server: the wire.
        recorder: turns what is seen into events.
        levels: how much is collected.
        operator: carries out commands and writes checkpoints.
        rounds: rounds to train in all; 0 = without an end.
        device: of the run.
    """

    def __init__(
        self,
        server: Server,
        recorder: Recorder,
        levels: Levels,
        operator: Operator,
        *,
        rounds: int,
        device: torch.device,
    ) -> None:
        self._server = server
        self._recorder = recorder
        self._levels = levels
        self._operator = operator
        self._rounds = rounds
        self._device = device
        self._timer = PhaseTimer()
        self._transfer = Transfer()
        self._round_began = time.perf_counter()
        self._best_return = -np.inf

    # --- called by the loop, in this order ---------------------------------------------------------

    def wants_round(self, finished: int) -> bool:
        """Whether to begin another round after so many."""
        if self._operator.stops_after_round is not None:
            return False
        return self._rounds == 0 or finished < self._rounds

    def round_begins(self, round: int) -> None:
        self._round_began = time.perf_counter()
        self._timer.lap()
        self._recorder.round_started(round)
        self._operator.at_round_begin()

    def epoch_begins(self, epoch: int, epochs: int) -> None:
        self._recorder.epoch_begins()
        self._operator.profiler.epoch_begin(self._recorder.round, epoch, epochs - epoch)

    @property
    def layer_envs(self) -> Tensor | None:
        """bool [N]: envs whose layers are to be measured in the coming epoch; None = none."""
        wanted = self._levels.debug_envs
        return torch.from_numpy(wanted).to(self._device) if wanted.any() else None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time spent in the body counts as this phase."""
        with self._timer.phase(name):
            yield

    def was_validation(self, seconds: float) -> None:
        """So much of the last training phase was validation."""
        self._timer.move("train", "validate", seconds)

    def see(self, columns: dict[str, Tensor], layers: Sequence[str]) -> Frame:
        """The epoch's one transfer: what came of it, and what was decided for the next one.

        Args:
            columns: of `decision_columns`, `outcome_columns` or both.
            layers: names of the rows of the `layer.*` columns, where there are any.
        """
        with self._timer.phase("telemetry"):
            frame = self._transfer(columns)
            if "reward" in frame:
                self._finish_epoch(frame, layers)
            if "stage" in frame:
                self._recorder.decided(frame)
        return frame

    def intervened(self, columns: dict[str, Tensor]) -> Frame:
        """The operator has acted on seeds, between the policy's decision and its epoch; the new topology.

        Args:
            columns: of `decision_columns`.
        """
        frame = self._transfer(columns)
        self._recorder.decided(frame, by="operator")
        return frame

    def epoch_finished(self, trainer: Trainer) -> None:
        """Commands are carried out here.

        Raises:
            StopRun: the run is to end at this boundary.
        """
        self._server.beat(trainer.round, trainer.epoch)
        with self._timer.phase("commands"):
            self._operator.at_epoch_end()

    def round_finished(
        self, trainer: Trainer, update: PPOUpdate | None, test_accuracy: NDArray[np.floating[Any]]
    ) -> None:
        """Tell the round and save its checkpoint; a disk that refuses does not end the run."""
        self._operator.profiler.round_end()
        if update is not None:
            self._recorder.updated(update)
        summary = self._recorder.round_finished(time.perf_counter() - self._round_began, test_accuracy)
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
        self._operator.save_or_say("round", best=best)

    # --- across boots ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"recorder": self._recorder.state_dict(), "best_return": float(self._best_return)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recorder.load_state_dict(state["recorder"])
        self._best_return = state["best_return"]

    def _finish_epoch(self, frame: Frame, layers: Sequence[str]) -> None:
        seconds, phases = self._timer.lap()
        self._recorder.finished(frame, seconds=seconds, phases=phases, layer_names=layers)
        self._operator.profiler.epoch_end()
        self._operator.levels_changed(self._levels.tick())

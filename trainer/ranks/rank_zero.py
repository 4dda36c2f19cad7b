"""Rank 0's side of a run on several ranks; in a run on one rank it does nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import RankEpoch
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.control.seed_control import SeedAction
from esper_overwatch.trainer.telemetry.transfer import HostFrame

from . import orders
from .rank_report import RankReport, decode, merge_reports


class RankZero:
    """Merges what the ranks report, and orders what they do next.

    Every rank passes the same boundaries in the same order; at each the others wait for `start_epoch`. All
    orders but the first are given at a boundary. On a GPU the end of most epochs passes: `start_epoch` is
    given before the reports are asked for, which are merged while the next epoch is computed; so no rank
    waits for the slowest of an epoch.

    Args:
        process_group: all ranks.
        emitter: takes the events that the other ranks report.
    """

    def __init__(self, process_group: ProcessGroup, emitter: Emitter) -> None:
        self._group = process_group
        self._emitter = emitter

    @property
    def is_alone(self) -> bool:
        """True if there are no other ranks."""
        return self._group.size == 1

    def merge_frames(self, frame: HostFrame, layers: Sequence[str] = ()) -> tuple[HostFrame, Sequence[str]]:
        """The columns of all envs from those of this rank, and the names of the layer rows."""
        if self.is_alone:
            return frame, layers
        own = RankReport.of(frame, layers)
        others = [decode(message) for message in self._group.gather_bytes(b"")[1:]]
        for rank, report in enumerate(others, 1):
            self._emit(rank, report)
        return merge_reports([own, *others])

    def gather_states(self) -> list[bytes]:
        """Gather the other ranks' part of a checkpoint."""
        if self.is_alone:
            return []
        orders.broadcast(self._group, orders.SendState())
        return self._group.gather_bytes(b"")[1:]

    def build_trainers(self, config: Config, execution: Execution, *, may_be_late: bool) -> None:
        """Have the ranks build their shares of the run.

        Args:
            config: of the whole run.
            execution: that of this rank.
            may_be_late: whether `start_epoch` or `request_reports` follow each epoch but an episode's last.
        """
        orders.broadcast(self._group, orders.BuildTrainer(config, execution, may_be_late))

    def start_epoch(self, layer_envs: NDArray[np.bool_]) -> None:
        """Let the ranks pass this boundary.

        Args:
            layer_envs: [N], whose layers to report on in the coming epoch.
        """
        orders.broadcast(self._group, orders.StartEpoch(np.flatnonzero(layer_envs).tolist()))

    def request_reports(self) -> None:
        """Let no rank pass this boundary before it has reported."""
        orders.broadcast(self._group, orders.SendReport())

    def broadcast_parameter(self, key: str, value: float) -> None:
        """Have the ranks put a value in force, as this one does."""
        orders.broadcast(self._group, orders.SetParameter(key, value))

    def broadcast_action(self, action: SeedAction) -> None:
        """Have the ranks execute an operator's action, as this one does."""
        orders.broadcast(self._group, orders.ExecuteAction(action))

    def keep_waiting(self) -> None:
        """Keep the ranks at this boundary; to be called now and then, or they take this rank for lost."""
        orders.broadcast(self._group, orders.KeepWaiting())

    def shutdown(self) -> None:
        """End the ranks at this boundary."""
        orders.broadcast(self._group, orders.Shutdown())

    def _emit(self, rank: int, report: RankReport) -> None:
        for event in (*report.logs, *report.samples):
            self._emitter.emit(event, rank=rank)
        if report.phases:
            self._emitter.emit(RankEpoch(seconds=report.seconds, phases=report.phases), rank=rank)

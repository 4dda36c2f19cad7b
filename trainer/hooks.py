"""The calls of the loop at its boundaries: `Rank0Hooks` on rank 0, the `Worker` on the others.

`EpochReports` passes epochs on: at once, or on a GPU while the next one is computed. The host waits for an
epoch only to know the slot table, by which it plans the next. Where nothing is to be done between the two
(`Hooks.passes_epoch_end`), the table travels alone; the other columns follow on a stream of their own and are
reported after the next epoch was issued, so that no recorder keeps the device waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from torch import Tensor

from .episode_table import PolicyEvaluation
from .policy.update_statistics import UpdateStatistics
from .telemetry.transfer import HostFrame, Shipment, Transfer


class StopRun(Exception):
    """The run ends at this boundary, in order.

    Attributes:
        reason: for the event.
        checkpoint: whether one is to be saved first.
        failed: why it could not be saved, where the run ends nevertheless.
    """

    def __init__(self, reason: str, *, checkpoint: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.checkpoint = checkpoint
        self.failed: str | None = None


class Hooks:
    """Called by the loop at its boundaries, in this order; these do nothing."""

    def wants_round(self, finished: int) -> bool:  # noqa: ARG002
        """True if another round is to begin after `finished` rounds."""
        return False

    def on_round_begin(self, round: int) -> None: ...

    def on_epoch_begin(self, epoch: int, epochs: int) -> None:
        """Epoch `epoch` (from 0) of `epochs` is about to be trained."""

    @property
    def layer_envs(self) -> Tensor | None:
        """bool [N]: envs whose layers are to be measured in the coming epoch; None = none."""
        return None

    def phase(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Time spent in the body counts as this phase."""
        return nullcontext()

    def on_phase_times(self, seconds: dict[str, float]) -> None:
        """Report the parts of the last training phase, by name."""

    def on_frame(self, frame: HostFrame, layers: Sequence[str]) -> None:
        """An epoch's one transfer: its outcome, and what was decided for the next one.

        Args:
            frame: the columns of `decision_columns`, `outcome_columns` or both, of this rank's envs; in an
                episode's last epoch those of `outcome_columns` and `final_columns`.
            layers: names of the rows of the `layer.*` columns, where there are any.
        """

    def passes_epoch_end(self, round: int, epoch: int) -> bool:  # noqa: ARG002
        """True if nothing is to be done when `epoch` epochs of the round are finished.

        Asked on a GPU, and not before the last epoch: where it is so, the next epoch begins without
        `on_epoch_end`, and `on_frame` reports this one while the next is computed.
        """
        return False

    def on_epoch_passed(self) -> None:
        """An epoch is finished whose end has passed; the next one begins now."""

    def on_epoch_end(self, round: int, epoch: int) -> None:
        """Execute commands: `epoch` epochs of the round are finished.

        Raises:
            StopRun: the run is to end at this boundary.
        """

    def on_round_end(self, round: int, update: UpdateStatistics | None, frame: HostFrame) -> None:
        """Report the round.

        Args:
            frame: `test_accuracy` [N], and those of `shapley_columns` in the rounds that have them.
        """

    def on_progress(self, done: int, total: int) -> None:
        """Report progress: `done` of `total` epochs of an evaluation."""

    def on_round_evaluated(
        self, round: int, evaluations: Sequence[PolicyEvaluation], *, is_best: bool
    ) -> None:
        """Report what was evaluated, and save the checkpoint; a disk that refuses does not end the run. Then
        commands are executed here, too.

        Args:
            evaluations: none in most rounds.
            is_best: the policy was never better: in an evaluation, or until there was one in a round's
                mean return.

        Raises:
            StopRun: the run is to end at this boundary.
        """


class _LateReport(NamedTuple):
    shipment: Shipment
    layers: Sequence[str]


class EpochReports:
    """Tells the hooks of epochs: of their beginning, what they came to, and their end.

    Hooks see a late report before the beginning of the next epoch, as any other, and no end before it.

    Args:
        topology: the columns that the next epoch is planned by.
        may_be_late: whether hooks are asked if an epoch's end may pass.

    Attributes:
        to_host: moves the columns.
    """

    def __init__(self, topology: Sequence[str], *, may_be_late: bool) -> None:
        self.to_host = Transfer()
        self.may_be_late = may_be_late
        self._topology = topology
        self._late: _LateReport | None = None

    def begin_epoch(self, hooks: Hooks, epoch: int, epochs: int) -> None:
        """Report that epoch `epoch` (from 0) of `epochs` is to be issued."""
        if self._late is None:
            hooks.on_epoch_begin(epoch, epochs)

    def report_late(self, hooks: Hooks, epoch: int, epochs: int) -> None:
        """Epoch `epoch` was issued, or failed as it was: report the one before, where that is late, then this
        one's beginning."""
        if self._late is None:
            return
        report, self._late = self._late, None
        with hooks.phase("telemetry"):
            with _waiting(hooks, report.shipment):
                frame = self.to_host.receive(report.shipment)
            hooks.on_frame(frame, report.layers)
        hooks.on_epoch_begin(epoch, epochs)

    def report(
        self, hooks: Hooks, columns: dict[str, Tensor], layers: Sequence[str], *, passes: bool
    ) -> HostFrame:
        """Report an epoch's columns, or send them on their way where the hooks let its end pass.

        Returns:
            The columns on the host; of a late report those of the topology.
        """
        with hooks.phase("telemetry"):
            if passes:
                topology = self.to_host.send({name: columns[name] for name in self._topology})
                self._late = _LateReport(self.to_host.send(columns, aside=True), layers)
                return self._wait_for(hooks, topology)
            frame = self._wait_for(hooks, self.to_host.send(columns))
            hooks.on_frame(frame, layers)
            return frame

    def end_epoch(self, hooks: Hooks, round_: int, epoch: int) -> None:
        """Report that `epoch` epochs are finished; hooks that let the end pass are not asked again."""
        if self._late is None:
            hooks.on_epoch_end(round_, epoch)
        else:
            hooks.on_epoch_passed()

    def _wait_for(self, hooks: Hooks, shipment: Shipment) -> HostFrame:
        """Wait for the newest shipment."""
        with _waiting(hooks, shipment):
            return self.to_host.wait_for(shipment)


def _waiting(hooks: Hooks, shipment: Shipment) -> AbstractContextManager[None]:
    """A phase of its own while the device is behind: that time is the device's, not telemetry's."""
    return nullcontext() if shipment.has_arrived() else hooks.phase("wait")

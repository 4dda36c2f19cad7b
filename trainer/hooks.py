"""What the loop calls at its boundaries: `Rank0Hooks` on rank 0, the `Worker` on the others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from .episode_table import PolicyEvaluation
from .policy.update_statistics import UpdateStatistics
from .telemetry.transfer import HostFrame


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


class Hooks(Protocol):
    """Called by the loop at its boundaries, in this order."""

    def wants_round(self, finished: int) -> bool:
        """Whether to begin another round after so many."""
        ...

    def on_round_begin(self, round: int) -> None: ...

    def on_epoch_begin(self, epoch: int, epochs: int) -> None:
        """Epoch `epoch` (from 0) of so many is about to be trained."""
        ...

    @property
    def layer_envs(self) -> Tensor | None:
        """bool [N]: envs whose layers are to be measured in the coming epoch; None = none."""
        ...

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time spent in the body counts as this phase."""
        ...

    def on_phase_times(self, seconds: dict[str, float]) -> None:
        """What the last training phase was made of, by name."""
        ...

    def on_frame(self, frame: HostFrame, layers: Sequence[str]) -> None:
        """An epoch's one transfer: its outcome, and what was decided for the next one.

        Args:
            frame: the columns of `decision_columns`, `outcome_columns` or both, of this rank's envs.
            layers: names of the rows of the `layer.*` columns, where there are any.
        """
        ...

    def on_epoch_end(self, round: int, epoch: int) -> None:
        """So many epochs of the round are finished; commands are executed here.

        Raises:
            StopRun: the run is to end at this boundary.
        """
        ...

    def on_round_end(self, round: int, update: UpdateStatistics | None, frame: HostFrame) -> None:
        """Report the round.

        Args:
            frame: `test_accuracy` [N], and those of `shapley_columns` in the rounds that have them.
        """
        ...

    def on_evaluation_epoch(self, epoch: int, epochs: int) -> None:
        """Epoch `epoch` (from 0) of so many of an evaluation is about to be played."""
        ...

    def on_round_evaluated(
        self, round: int, evaluations: Sequence[PolicyEvaluation], *, is_best: bool
    ) -> None:
        """Report what was evaluated, and save the checkpoint; a disk that refuses does not end the run.

        Args:
            evaluations: none in most rounds.
            is_best: the policy was never better: in an evaluation, or until there was one in a round's
                mean return.
        """
        ...

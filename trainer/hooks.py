"""What the loop calls at its boundaries: the `Observer` on rank 0, the `Follower` on the others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from protocol.events import PPOUpdate

from .telemetry.transfer import Frame

if TYPE_CHECKING:
    from .loop import Trainer


class Watcher(Protocol):
    """Watches one run; called in this order."""

    def wants_round(self, finished: int) -> bool:
        """Whether to begin another round after so many."""
        ...

    def round_begins(self, round: int) -> None: ...

    def epoch_begins(self, epoch: int, epochs: int) -> None:
        """Epoch `epoch` (from 0) of so many is about to be trained."""
        ...

    @property
    def layer_envs(self) -> Tensor | None:
        """bool [N]: envs whose layers are to be measured in the coming epoch; None = none."""
        ...

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time spent in the body counts as this phase."""
        ...

    def trained(self, seconds: dict[str, float]) -> None:
        """What the last training phase was made of, by name."""
        ...

    def see(self, columns: dict[str, Tensor], layers: Sequence[str]) -> Frame:
        """The epoch's one transfer: what came of it, and what was decided for the next one.

        Args:
            columns: of `decision_columns`, `outcome_columns` or both.
            layers: names of the rows of the `layer.*` columns, where there are any.

        Returns:
            The columns on the host.
        """
        ...

    def epoch_finished(self, trainer: Trainer) -> None:
        """Commands are carried out here.

        Raises:
            StopRun: the run is to end at this boundary.
        """
        ...

    def round_finished(self, trainer: Trainer, update: PPOUpdate | None, columns: Frame) -> None:
        """Tell the round and save its checkpoint; a disk that refuses does not end the run.

        Args:
            columns: `test_accuracy` [N], and those of `shapley_columns` in the rounds that have them.
        """
        ...

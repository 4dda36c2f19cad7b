"""The interface of a task: what images and texts have in common for the hosts that learn them."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Literal, Protocol, Self

import torch
from torch import Tensor

Part = Literal["train", "val", "test"]
Kind = Literal["images", "text"]
NO_LABEL = -1
"""Label of an answer that does not count."""


class Examples(Protocol):
    """The examples of a split, laid out for gathering. An example has one answer or several."""

    def __len__(self) -> int: ...

    @property
    def answers(self) -> int | Tensor:
        """Labels that a mean over the split is over; int64 [n] where each env has its own examples."""
        ...

    @property
    def lengths(self) -> list[int] | None:
        """[n], examples of each env, where each has its own; else None."""
        ...

    @property
    def absent(self) -> Tensor | None:
        """bool [n, classes], outputs of the host that are no class of what env i learns; None: all are."""
        ...

    @property
    def numbers(self) -> int:
        """Numbers in one input."""
        ...

    @property
    def varies(self) -> bool:
        """True if a batch depends on keys, and not on the index alone."""
        ...

    def batch(self, index_nB: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Examples `index_nB[i]` as the inputs of env i.

        Args:
            index_nB: int64 [n, B].
            keys: int64 [n]; needed where the examples vary.

        Returns:
            Inputs [B, n*C, H, W] and labels [n, L], the L answers to B examples in their order.
        """
        ...

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Inputs [B, C, H, W] and labels [L] of examples `start` to `stop`, or to the end, for all envs.

        Where each env has its own: inputs [B, n*C, H, W] and labels [n, L]; `NO_LABEL` does not count.
        """
        ...


class Task(Protocol):
    """Examples in three splits: the policy is rewarded on `val`, and `test` is only reported."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind:
        """Kind of the examples; it decides which family of hosts can learn them."""
        ...

    @property
    def classes(self) -> int:
        """Kinds of answers."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of an input."""
        ...

    @property
    def train(self) -> Sized: ...

    @property
    def val(self) -> Sized: ...

    @property
    def test(self) -> Sized: ...

    @property
    def chance(self) -> float:
        """Accuracy of a guess that ignores the input."""
        ...

    @property
    def perplexity(self) -> float:
        """exp of the loss of a guess that ignores the input."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """Move its tensors to a device."""
        ...

    def examples(self, part: Part, dtype: torch.dtype, augment: Sequence[str] = ()) -> Examples:
        """A split as inputs of that dtype; `augment` as `task.augment`."""
        ...

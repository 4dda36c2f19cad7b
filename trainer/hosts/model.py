"""The interface of a host architecture to the group that trains it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from esper_overwatch.trainer.compute.stacked_ops import Init, Parameters


class Slot(Protocol):
    """The place behind a block where seeds are grafted."""

    @property
    def channels(self) -> int: ...

    @property
    def size(self) -> tuple[int, int]:
        """H, W of the map."""
        ...


class HostModel(Protocol):
    """Blocks with a slot behind each, and a head; parameters are passed in, stacked over n hosts.

    Activations between blocks are [B, n*C, H, W] in channels_last memory.
    """

    head_names: tuple[str, ...]
    """Tensors that `head` uses."""
    causal: bool
    """A position of the map must not depend on later ones, as in a text."""
    widest: int
    """Numbers in the largest activation of one host and example."""
    products: int
    """Multiplications of a forward pass of one host and example, about."""
    rows: int
    """Rows of slots: slot i is in row i % rows, behind the architecture's block i // rows."""

    @property
    def blocks(self) -> Sequence[Slot]: ...

    def specs(self) -> dict[str, Init]:
        """Trainable tensors of one host."""
        ...

    def block_names(self, i: int) -> Sequence[str]:
        """Trainable tensors that block i uses."""
        ...

    def buffer_specs(self) -> dict[str, Init]:
        """Statistics that validation uses and `measure_block` measures; empty where there are none."""
        ...

    def train_block(
        self, i: int, x: Tensor, weights: Parameters, dropout_keys: Tensor | None = None
    ) -> Tensor:
        """Block i in training, from what left the slot before.

        Block 0 takes inputs, which are [B, C, H, W] where all hosts see the same. Vectors among the weights
        may come as [n*C] instead of [n, C], which saves views in the graph of the gradients.

        Args:
            dropout_keys: int64 [n], what this step draws by; None = nothing is dropped.
        """
        ...

    def measure_block(
        self, i: int, x: Tensor, weights: Parameters, buffers: Parameters, batches: int
    ) -> Tensor:
        """`train_block` that averages the statistics of this and the `batches` - 1 before into `buffers`.

        Those that are not there yet are made.
        """
        ...

    def folded(self, i: int, weights: Parameters, buffers: Parameters) -> tuple[Tensor, ...]:
        """Tensors [n, ...] that block i needs in validation, so that rows can be chosen."""
        ...

    def eval_block(self, i: int, x: Tensor, *tensors: Tensor) -> Tensor:
        """Block i in validation, with rows of `folded`; inputs are [B, C, H, W], the same for all."""
        ...

    def head(self, x: Tensor, weights: Parameters) -> Tensor:
        """Logits [n, L, classes], L answers to the B examples, from the last slot's output [B, n*C, H, W]."""
        ...

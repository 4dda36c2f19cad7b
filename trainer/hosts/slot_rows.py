"""Several slots in series behind each block of a host."""

from __future__ import annotations

from torch import Tensor

from esper_overwatch.trainer.compute.stacked_ops import Init, Parameters

from .model import HostModel, Slot


class SlotRows:
    """A host with more slots behind each block: what leaves a slot goes into the one of the next row.

    To those who run hosts it is an architecture like the others, with an empty block before each slot of a
    later row. Slots keep the order of the path: r0c0, r1c0, r0c1 ...; slot i is behind block i // `rows`.

    Args:
        model: the architecture, with one slot behind each block.
        rows: slots behind each.
    """

    def __init__(self, model: HostModel, rows: int) -> None:
        self._model, self.rows = model, rows
        self.blocks: list[Slot] = [block for block in model.blocks for _ in range(rows)]
        """The block before each slot."""
        self.head_names, self.causal = model.head_names, model.causal
        self.widest, self.products = model.widest, model.products

    def specs(self) -> dict[str, Init]:
        return self._model.specs()

    def block_names(self, i: int) -> tuple[str, ...]:
        """Trainable tensors before slot i."""
        return () if i % self.rows else tuple(self._model.block_names(i // self.rows))

    def buffer_specs(self) -> dict[str, Init]:
        """Statistics of one host's batch norms."""
        return self._model.buffer_specs()

    def train_block(
        self, i: int, x: Tensor, weights: Parameters, dropout_keys: Tensor | None = None
    ) -> Tensor:
        """Run the block before slot i, in training."""
        return x if i % self.rows else self._model.train_block(i // self.rows, x, weights, dropout_keys)

    def measure_block(
        self, i: int, x: Tensor, weights: Parameters, buffers: Parameters, batches: int
    ) -> Tensor:
        """`train_block` that measures statistics; a later row has none."""
        if i % self.rows:
            return x
        return self._model.measure_block(i // self.rows, x, weights, buffers, batches)

    def folded(self, i: int, weights: Parameters, buffers: Parameters) -> tuple[Tensor, ...]:
        """Tensors that validation needs before slot i."""
        return () if i % self.rows else self._model.folded(i // self.rows, weights, buffers)

    def eval_block(self, i: int, x: Tensor, *tensors: Tensor) -> Tensor:
        """Run the block before slot i, in validation, with rows of `folded`."""
        return x if i % self.rows else self._model.eval_block(i // self.rows, x, *tensors)

    def head(self, x: Tensor, weights: Parameters) -> Tensor:
        """Logits from the last slot's output."""
        return self._model.head(x, weights)

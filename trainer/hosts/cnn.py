"""The convolutional host: blocks with a slot behind each, mean over the map, a linear head.

A block is a bias-free convolution, batch norm and ReLU. Between a slot and the next block a max pool halves
the map while it is at least 2x2.

Batch norm trains on the statistics of its batch. Those that validation uses are not collected on the way,
where they would lag behind weights that move fast, but measured afresh for the weights as they are ("precise
batch norm": Wu and Johnson, "Rethinking 'batch' in BatchNorm", 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esper_overwatch.trainer.compute.convolutions import GROUPED, Conv
from esper_overwatch.trainer.compute.pointwise import FusedFormula
from esper_overwatch.trainer.compute.stacked_ops import (
    Init,
    Parameters,
    linear,
    pooled,
)

EPSILON = 1e-5
"""Epsilon of the batch norms, as torch.nn's."""


def _folded(weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight * torch.rsqrt(variance + EPSILON)
    return scale, bias - mean * scale


FOLDED_NORM = FusedFormula(
    """template <typename T> void folded_norm(T weight, T bias, T mean, T variance, T& scale, T& shift) {
        scale = weight / ::sqrt(variance + T(1e-5));
        shift = bias - mean * scale;
    }""",
    2,
    _folded,
)
"""What a measured norm does to each channel."""


@dataclass(frozen=True)
class ConvBlock:
    """One block and the slot behind it."""

    inputs: int
    channels: int
    size: tuple[int, int]
    """Height and width of the map, in the block and in its slot."""
    pool: bool
    """The map is halved on the way in."""


class CNN:
    """The architecture; parameters are passed in, stacked over n hosts.

    Args:
        channels: width of each block.
        kernel: of every convolution, 1 or 3.
        classes: outputs of the head.
        conv: how to convolve.
    """

    def __init__(
        self,
        channels: tuple[int, ...],
        kernel: int,
        shape: tuple[int, int, int],
        classes: int,
        conv: Conv = GROUPED,
    ) -> None:
        self._conv = conv
        self.causal, self.rows = False, 1
        self.kernel, self.classes = kernel, classes
        self.head_names: tuple[str, ...] = ("head.weight", "head.bias")
        inputs, height, width = shape
        self.widest = inputs * height * width
        """Numbers in the largest activation of one host and image."""
        self.products = channels[-1] * classes
        """Multiplications of a forward pass of one host and image."""
        self.blocks: list[ConvBlock] = []
        for count in channels:
            pool = bool(self.blocks) and min(height, width) >= 2
            if pool:
                height, width = height // 2, width // 2
            self.blocks.append(ConvBlock(inputs, count, (height, width), pool))
            self.widest = max(self.widest, count * height * width)
            self.products += kernel**2 * inputs * count * height * width
            inputs = count

    def specs(self) -> dict[str, Init]:
        specs: dict[str, Init] = {}
        for i, block in enumerate(self.blocks):
            fan_in = block.inputs * self.kernel**2
            shape = (block.channels, block.inputs, self.kernel, self.kernel)
            specs[f"block{i}.conv.weight"] = Init(shape, fan_in=fan_in)
            specs[f"block{i}.norm.weight"] = Init((block.channels,), fill=1.0)
            specs[f"block{i}.norm.bias"] = Init((block.channels,))
        last = self.blocks[-1].channels
        specs["head.weight"] = Init((self.classes, last), fan_in=last)
        specs["head.bias"] = Init((self.classes,), fan_in=last)
        return specs

    def block_names(self, i: int) -> tuple[str, ...]:
        return f"block{i}.conv.weight", f"block{i}.norm.weight", f"block{i}.norm.bias"

    def buffer_specs(self) -> dict[str, Init]:
        """Statistics of one host's batch norms."""
        specs: dict[str, Init] = {}
        for i, block in enumerate(self.blocks):
            specs[f"block{i}.norm.mean"] = Init((block.channels,))
            specs[f"block{i}.norm.var"] = Init((block.channels,), fill=1.0)
        return specs

    def train_block(
        self,
        i: int,
        x: Tensor,
        weights: Parameters,
        dropout_keys: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Block i in training: [B, n*I, H, W] -> [B, n*C, h, w]."""
        tensors = (weights[name] for name in self.block_names(i))
        return self._conv.batch_normed(x, *tensors, pool=self.blocks[i].pool)

    def measure_block(
        self, i: int, x: Tensor, weights: Parameters, buffers: Parameters, batches: int
    ) -> Tensor:
        kernel, scale, shift = (weights[name] for name in self.block_names(i))
        names = f"block{i}.norm.mean", f"block{i}.norm.var"
        if batches == 1:
            buffers |= zip(names, scale.new_zeros(2, *scale.shape), strict=True)
        mean, variance = (buffers[name] for name in names)
        pool = self.blocks[i].pool
        return self._conv.batch_norm_averaged(x, kernel, scale, shift, mean, variance, batches, pool=pool)

    def folded(self, i: int, weights: Parameters, buffers: Parameters) -> tuple[Tensor, ...]:
        """Weight [n, C, I, k, k] and bias [n, C] of block i with its measured statistics folded in."""
        name = f"block{i}.norm"
        norm = weights[f"{name}.weight"], weights[f"{name}.bias"]
        scale, shift = FOLDED_NORM(*norm, buffers[f"{name}.mean"], buffers[f"{name}.var"])
        return weights[f"block{i}.conv.weight"] * scale[:, :, None, None, None], shift

    def eval_block(self, i: int, x: Tensor, *tensors: Tensor) -> Tensor:
        """Block i in validation, as `folded`; `x` may be [B, I, H, W] where all hosts see the same."""
        weight, bias = tensors
        return self._conv.biased_relu(x, weight, bias, pool=self.blocks[i].pool)

    def head(self, x: Tensor, weights: Parameters) -> Tensor:
        """Logits [n, B, classes] from the last slot's output [B, n*C, h, w]."""
        weight = weights["head.weight"]
        return linear(pooled(x, weight.shape[0]), weight, weights["head.bias"])

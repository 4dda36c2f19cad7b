"""The residual host: a small ResNet with a slot behind each stage, mean over the map, a linear head.

The network is that for small images of He et al., "Deep residual learning for image recognition", 2016,
section 4.2: a 3x3 convolution, then stages of residual blocks of two 3x3 convolutions, all with batch norm
and no bias. Every stage but the first halves the map, by the stride of its first convolution. Where a block
changes the shape, its shortcut is a 1x1 convolution with batch norm (option B of that paper). Three stages
of b blocks have 6b + 2 layers: b = 3 with 16, 32 and 64 channels is ResNet-20.

How batch norm is measured for validation is as in `cnn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from esper_overwatch.trainer.compute.convolutions import GROUPED, Conv
from esper_overwatch.trainer.compute.stacked_ops import (
    Init,
    Parameters,
    batch_norm,
    batch_norm_average,
    linear,
    pooled,
)

from .cnn import EPSILON


@dataclass(frozen=True)
class NormedConv:
    """A convolution and the batch norm behind it."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int

    @property
    def weight(self) -> str:
        """Names of its tensors, like those that follow."""
        return f"{self.name}.conv.weight"

    @property
    def affine(self) -> tuple[str, str]:
        return f"{self.name}.norm.weight", f"{self.name}.norm.bias"

    @property
    def statistics(self) -> tuple[str, str]:
        return f"{self.name}.norm.mean", f"{self.name}.norm.var"


@dataclass(frozen=True)
class ResidualBlock:
    """Two convolutions beside a shortcut."""

    first: NormedConv
    second: NormedConv
    projection: NormedConv | None
    """Convolution of the shortcut; None where it is the identity."""

    @property
    def weights(self) -> int:
        """Numbers in the kernels of all."""
        layers = (self.first, self.second, self.projection)
        return sum(c.inputs * c.outputs * c.kernel**2 for c in layers if c is not None)


@dataclass(frozen=True)
class ResNetStage:
    """Residual blocks, and the slot behind them."""

    stem: NormedConv | None
    """The network's first convolution; only the first stage has it."""
    residuals: tuple[ResidualBlock, ...]
    channels: int
    size: tuple[int, int]
    """Height and width of the map behind the stage, and in its slot."""

    def convolutions(self) -> Iterator[NormedConv]:
        """All of them."""
        if self.stem is not None:
            yield self.stem
        for block in self.residuals:
            yield from (block.first, block.second)
            if block.projection is not None:
                yield block.projection


class ResNet:
    """The architecture; parameters are passed in, stacked over n hosts. Its blocks are its stages.

    Args:
        channels: width of each stage.
        residuals: residual blocks in each stage.
        classes: outputs of the head.
        conv: how to convolve.
    """

    def __init__(
        self,
        channels: tuple[int, ...],
        residuals: int,
        shape: tuple[int, int, int],
        classes: int,
        conv: Conv = GROUPED,
    ) -> None:
        self._conv = conv
        self.causal, self.rows = False, 1
        self.classes = classes
        self.head_names: tuple[str, ...] = ("head.weight", "head.bias")
        inputs, height, width = shape
        self.widest = max(inputs, channels[0]) * height * width
        """Numbers in the largest activation of one host and image."""
        self.products = channels[0] * 9 * inputs * height * width + channels[-1] * classes
        """Multiplications of a forward pass of one host and image."""
        self.blocks: list[ResNetStage] = []
        for i, count in enumerate(channels):
            stem = NormedConv(f"block{i}.stem", inputs, count, 3, 1) if i == 0 else None
            inputs = count if stem else inputs
            blocks = []
            for j in range(residuals):
                stride = 2 if i > 0 and j == 0 else 1
                height, width = -(-height // stride), -(-width // stride)
                block = _residual_block(f"block{i}.residual{j}", inputs, count, stride)
                blocks.append(block)
                self.products += block.weights * height * width
                inputs = count
            self.blocks.append(ResNetStage(stem, tuple(blocks), count, (height, width)))
            self.widest = max(self.widest, count * height * width)

    def specs(self) -> dict[str, Init]:
        specs: dict[str, Init] = {}
        for layer in (layer for stage in self.blocks for layer in stage.convolutions()):
            shape = (layer.outputs, layer.inputs, layer.kernel, layer.kernel)
            specs[layer.weight] = Init(shape, fan_in=layer.inputs * layer.kernel**2)
            scale, shift = layer.affine
            specs |= {scale: Init((layer.outputs,), fill=1.0), shift: Init((layer.outputs,))}
        last = self.blocks[-1].channels
        specs["head.weight"] = Init((self.classes, last), fan_in=last)
        specs["head.bias"] = Init((self.classes,), fan_in=last)
        return specs

    def block_names(self, i: int) -> tuple[str, ...]:
        """Trainable tensors that stage i uses."""
        return tuple(
            name for layer in self.blocks[i].convolutions() for name in (layer.weight, *layer.affine)
        )

    def buffer_specs(self) -> dict[str, Init]:
        """Statistics of one host's batch norms."""
        specs: dict[str, Init] = {}
        for layer in (layer for stage in self.blocks for layer in stage.convolutions()):
            mean, variance = layer.statistics
            specs |= {mean: Init((layer.outputs,)), variance: Init((layer.outputs,), fill=1.0)}
        return specs

    def train_block(
        self,
        i: int,
        x: Tensor,
        weights: Parameters,
        dropout_keys: Tensor | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Stage i in training: [B, n*I, H, W] -> [B, n*C, h, w]."""

        def run(layer: NormedConv, x: Tensor) -> Tensor:
            scale, shift = layer.affine
            return batch_norm(self._convolved(layer, x, weights), weights[scale], weights[shift])

        return _run_stage(self.blocks[i], x, run)

    def measure_block(
        self, i: int, x: Tensor, weights: Parameters, buffers: Parameters, batches: int
    ) -> Tensor:

        def run(layer: NormedConv, x: Tensor) -> Tensor:
            scale, shift = (weights[name] for name in layer.affine)
            for statistic in layer.statistics:
                buffers.setdefault(statistic, torch.zeros_like(scale, requires_grad=False))
            mean, variance = (buffers[name] for name in layer.statistics)
            made = self._convolved(layer, x, weights)
            return batch_norm_average(made, scale, shift, mean, variance, batches)

        return _run_stage(self.blocks[i], x, run)

    def folded(self, i: int, weights: Parameters, buffers: Parameters) -> tuple[Tensor, ...]:
        """Weight [n, C, I, k, k] and bias [n, C] of each convolution, its measured statistics folded in."""
        tensors: list[Tensor] = []
        for layer in self.blocks[i].convolutions():
            gamma, shift = (weights[name] for name in layer.affine)
            mean, variance = (buffers[name] for name in layer.statistics)
            scale = gamma * torch.rsqrt(variance + EPSILON)
            tensors += [weights[layer.weight] * scale[:, :, None, None, None], shift - mean * scale]
        return tuple(tensors)

    def eval_block(self, i: int, x: Tensor, *tensors: Tensor) -> Tensor:
        """Stage i in validation, as `folded`; `x` may be [B, I, H, W] where all hosts see the same."""
        stage = self.blocks[i]
        names = [layer.name for layer in stage.convolutions()]
        of = dict(zip(names, zip(tensors[::2], tensors[1::2], strict=True), strict=True))
        return _run_stage(stage, x, lambda layer, x: self._conv(x, *of[layer.name], stride=layer.stride))

    def head(self, x: Tensor, weights: Parameters) -> Tensor:
        """Logits [n, B, classes] from the last slot's output [B, n*C, h, w]."""
        weight = weights["head.weight"]
        return linear(pooled(x, weight.shape[0]), weight, weights["head.bias"])

    def _convolved(self, layer: NormedConv, x: Tensor, weights: Parameters) -> Tensor:
        return self._conv(x, weights[layer.weight], stride=layer.stride)


def _residual_block(name: str, inputs: int, channels: int, stride: int) -> ResidualBlock:
    projection = None
    if stride > 1 or inputs != channels:
        projection = NormedConv(f"{name}.projection", inputs, channels, 1, stride)
    return ResidualBlock(
        NormedConv(f"{name}.first", inputs, channels, 3, stride),
        NormedConv(f"{name}.second", channels, channels, 3, 1),
        projection,
    )


def _run_stage(stage: ResNetStage, x: Tensor, run: Callable[[NormedConv, Tensor], Tensor]) -> Tensor:
    """A stage whose convolutions with their norms are `run`."""
    if stage.stem is not None:
        x = torch.relu_(run(stage.stem, x))
    for block in stage.residuals:
        branch = run(block.second, torch.relu_(run(block.first, x)))
        shortcut = x if block.projection is None else run(block.projection, x)
        x = torch.relu_(branch + shortcut)
    return x

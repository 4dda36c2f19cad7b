"""A residual host as ordinary modules, written from the paper; see `oracle`."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.dataset import Dataset
from tests.trainer.oracle import Env


def normed(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    """A convolution without bias, and batch norm."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = normed(inputs, outputs, 3, stride)
        self.second = normed(outputs, outputs, 3, 1)
        if stride != 1 or inputs != outputs:
            self.projection = normed(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.projection(x) if hasattr(self, "projection") else x
        return torch.relu(self.second(torch.relu(self.first(x))) + shortcut)


class ResNetEnv(Env):
    """A residual host, its seeds and their optimizer."""

    def __init__(self, config: Config, data: Dataset) -> None:
        super().__init__(config, data)
        del self.conv, self.norm
        channels = config.host.channels
        self.stem = normed(data.shape[0], channels[0], 3, 1)
        self.stages = nn.ModuleList()
        before = channels[0]
        for i, count in enumerate(channels):
            strides = [2 if i else 1] + [1] * (config.host.blocks - 1)
            widths = [before] + [count] * (config.host.blocks - 1)
            self.stages.append(
                nn.Sequential(*(BasicBlock(w, count, s) for w, s in zip(widths, strides, strict=True)))
            )
            before = count

    def forward(self, x: Tensor, without: Collection[int] = ()) -> Tensor:
        """Logits [B, classes]; with the slots `without` as if their alpha were 0."""
        x = torch.relu(self.stem(x))
        for i, stage in enumerate(self.stages):
            x = self._behind(i, stage(x), without)
        return self.head(x.mean((2, 3)))

    def engine_name(self, name: str, slots: list[str], blueprints: dict[str, str]) -> str:
        """What the engine calls a parameter of this module."""
        layers = {"0": "conv", "1": "norm"}
        match name.split("."):
            case "stem", layer, tensor:
                return f"block0.stem.{layers[layer]}.{tensor}"
            case "stages", stage, block, part, layer, tensor:
                return f"block{stage}.residual{block}.{part}.{layers[layer]}.{tensor}"
        return super().engine_name(name, slots, blueprints)

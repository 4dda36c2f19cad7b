"""Reports of the ranks to rank 0 at each boundary: their envs' columns, and their events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from esper_overwatch.protocol.messages.events import LogLine, SystemSample
from esper_overwatch.trainer.hosts.gradients import spread_layers
from esper_overwatch.trainer.telemetry.transfer import HostFrame

LAYER = "layer."
"""Columns [L, n]; all others are [n, ...]."""


class RankReport(msgspec.Struct):
    """One rank's epoch."""

    columns: dict[str, tuple[str, tuple[int, ...], bytes]]
    """dtype, shape and bytes by name."""
    layers: list[str] = []
    seconds: float = 0.0
    phases: dict[str, float] = {}
    logs: list[LogLine] = []
    samples: list[SystemSample] = []

    @classmethod
    def of(cls, frame: HostFrame, layers: Sequence[str] = ()) -> RankReport:
        """Pack a frame."""
        columns = {name: (c.dtype.str, c.shape, c.tobytes()) for name, c in frame.items()}
        return cls(columns, list(layers))

    @property
    def frame(self) -> HostFrame:
        """The columns that were packed."""
        return {
            name: np.frombuffer(data, np.dtype(dtype)).reshape(shape)
            for name, (dtype, shape, data) in self.columns.items()
        }


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(RankReport).decode


def merge_reports(reports: Sequence[RankReport]) -> tuple[HostFrame, list[str]]:
    """The columns of all envs, and the names of all layers; a layer that a rank lacks is NaN there."""
    frames = [report.frame for report in reports]
    layers = list(dict.fromkeys(name for report in reports for name in report.layers))
    merged: HostFrame = {}
    for name in dict.fromkeys(name for frame in frames for name in frame):
        if name.startswith(LAYER):
            parts = [
                _layer_column(layers, report, frame, name)
                for report, frame in zip(reports, frames, strict=True)
            ]
            merged[name] = np.concatenate(parts, axis=1)
        else:
            merged[name] = np.concatenate([frame[name] for frame in frames])
    return merged, layers


def _layer_column(layers: Sequence[str], report: RankReport, frame: HostFrame, name: str) -> Any:
    """A rank's rows [L', n] of a layer column on all layers: [L, n]."""
    if name in frame:
        return spread_layers(layers, report.layers, torch.tensor(frame[name])).numpy()
    envs = next(len(column) for other, column in frame.items() if not other.startswith(LAYER))
    return np.full((len(layers), envs), np.nan, dtype=np.float32)

"""What the ranks send to rank 0 at each boundary: their envs' columns, and what else they have to tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from .telemetry.transfer import Frame

LAYER = "layer."
"""Columns [L, n]; all others are [n, ...]."""


class Parcel(msgspec.Struct):
    """One rank's epoch."""

    columns: dict[str, tuple[str, tuple[int, ...], bytes]]
    """dtype, shape and bytes by name."""
    layers: list[str] = []
    seconds: float = 0.0
    phases: dict[str, float] = {}
    logs: list[dict[str, Any]] = []
    """Fields of `LogLine` events."""
    samples: list[dict[str, Any]] = []
    """Fields of `SystemSample` events."""

    @classmethod
    def of(cls, frame: Frame, layers: Sequence[str] = (), **told: Any) -> Parcel:
        """Pack a frame."""
        columns = {name: (c.dtype.str, c.shape, c.tobytes()) for name, c in frame.items()}
        return cls(columns, list(layers), **told)

    @property
    def frame(self) -> Frame:
        """The columns that were packed."""
        return {
            name: np.frombuffer(data, np.dtype(dtype)).reshape(shape)
            for name, (dtype, shape, data) in self.columns.items()
        }


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Parcel).decode


def side_by_side(parcels: Sequence[Parcel]) -> tuple[Frame, list[str]]:
    """The columns of all envs, and the names of all layers; a layer that a rank lacks is NaN there."""
    frames = [parcel.frame for parcel in parcels]
    layers = list(dict.fromkeys(name for parcel in parcels for name in parcel.layers))
    whole: Frame = {}
    for name in dict.fromkeys(name for frame in frames for name in frame):
        if name.startswith(LAYER):
            parts = [_on(layers, parcel, frame, name) for parcel, frame in zip(parcels, frames, strict=True)]
            whole[name] = np.concatenate(parts, axis=1)
        else:
            whole[name] = np.concatenate([frame[name] for frame in frames])
    return whole, layers


def _on(layers: Sequence[str], parcel: Parcel, frame: Frame, name: str) -> Any:
    """A rank's rows [L', n] of a layer column on all layers: [L, n]."""
    envs = next(len(column) for other, column in frame.items() if not other.startswith(LAYER))
    out = np.full((len(layers), envs), np.nan, dtype=np.float32)
    if name in frame:
        out[[layers.index(layer) for layer in parcel.layers]] = frame[name]
    return out

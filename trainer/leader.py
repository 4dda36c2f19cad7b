"""Rank 0's side of a run on several ranks; by itself it has nobody to lead and costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.emitter import Emitter
from protocol.events import LogLine, RankEpoch, SystemSample

from . import parcels
from .intervention import Act
from .parcels import Parcel
from .ranks import World
from .telemetry.transfer import Frame


class Leader:
    """Joins what the ranks saw, and tells them what comes next.

    Every rank passes the same boundaries in the same order; at each the others wait for `go`.

    Args:
        world: all ranks.
        emitter: takes what the other ranks have to tell.
    """

    def __init__(self, world: World, emitter: Emitter) -> None:
        self._world = world
        self._emitter = emitter

    def joined(self, frame: Frame, layers: Sequence[str] = ()) -> tuple[Frame, Sequence[str]]:
        """The columns of all envs from those of this rank, and the names of the layer rows."""
        if self._world.size == 1:
            return frame, layers
        own = Parcel.of(frame, layers)
        others = [parcels.decode(message) for message in self._world.collect(b"")[1:]]
        for rank, parcel in enumerate(others, 1):
            self._tell(rank, parcel)
        return parcels.side_by_side([own, *others])

    def states(self) -> list[bytes]:
        """What a checkpoint has to hold of the other ranks; at a boundary only."""
        if self._world.size == 1:
            return []
        self._world.tell({"do": "state"})
        return self._world.collect(b"")[1:]

    def go(self, layer_envs: NDArray[np.bool_]) -> None:
        """Let the ranks pass this boundary.

        Args:
            layer_envs: [N], whose layers to report on in the coming epoch.
        """
        self._world.tell({"do": "go", "layers": np.flatnonzero(layer_envs).tolist()})

    def set_parameter(self, key: str, value: float) -> None:
        """Have the ranks put a value in force, as this one does; at a boundary only."""
        self._world.tell({"do": "set", "key": key, "value": value})

    def act(self, act: Act) -> None:
        """Have the ranks carry out an operator's act, as this one does; at a boundary only."""
        self._world.tell({"do": "act", "act": act})

    def hold(self) -> None:
        """Keep the ranks waiting at this boundary; now and then, or they take this one for lost."""
        self._world.tell({"do": "wait"})

    def stop(self) -> None:
        """Send the ranks home from this boundary."""
        self._world.tell({"do": "stop"})

    def _tell(self, rank: int, parcel: Parcel) -> None:
        for line in parcel.logs:
            self._emitter.emit(LogLine(**line), rank=rank)
        for sample in parcel.samples:
            self._emitter.emit(SystemSample(**sample), rank=rank)
        if parcel.phases:
            self._emitter.emit(RankEpoch(seconds=parcel.seconds, phases=parcel.phases), rank=rank)

"""Python's collection of garbage, at moments that delay no frame.

A full collection looks at every container of the run: 80 ms of CPU with 256 envs, in the middle of a frame
or of a key. What was imported never becomes garbage and is left out of it; the rest waits for a pause after a
frame. Young objects are collected as always.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

PERIOD_SECONDS = 60.0
"""Time between two full collections."""
QUIET_SECONDS = 2.0
"""Least time between a key and a collection."""
NEVER = 1_000_000
"""Collections of the second generation before Python begins a full one by itself."""


class IdleCollection:
    """Begins full collections in pauses; the clock counts monotonic seconds."""

    def __init__(
        self, collect: Callable[[], object] = gc.collect, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._collect = collect
        self._clock = clock
        self._collected = self._pressed = clock()

    def take_over(self) -> None:
        """Keep Python from beginning full collections, and exempt all objects that exist now."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NEVER)
        gc.freeze()
        gc.enable()

    def note_key(self) -> None:
        """Note a key: more of them may follow."""
        self._pressed = self._clock()

    def note_pause(self) -> None:
        """Note that a frame was sent and nothing is due before the next one."""
        now = self._clock()
        if now - self._collected >= PERIOD_SECONDS and now - self._pressed >= QUIET_SECONDS:
            self._collect()
            self._collected = self._clock()

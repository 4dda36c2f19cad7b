"""How long a GPU worked in each phase, of every so many epochs: CUDA events, read when they have passed.

The wall time of a phase is what the host took to issue its work. An event on the stream marks where the
device is; asking whether it has passed waits for nothing, so a sampled epoch is reported some epochs later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

SAMPLE_EVERY_EPOCHS = 8
"""Epochs from one sampled epoch to the next."""


class TimedEvent(Protocol):
    """A torch.cuda.Event with timing."""

    def record(self) -> Any: ...

    def query(self) -> Any: ...

    def elapsed_time(self, end_event: Any) -> Any:
        """Milliseconds."""
        ...


def _cuda_event() -> TimedEvent:
    event: TimedEvent = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


class GpuClock:
    """Marks the boundaries of phases in sampled epochs.

    Args:
        event: makes a mark.
    """

    def __init__(self, event: Callable[[], TimedEvent] = _cuda_event) -> None:
        self._event = event
        self._epoch = 0
        self._marks: list[tuple[str, TimedEvent]] = []
        self._waiting: list[tuple[str, TimedEvent]] = []

    def mark(self, phase: str) -> None:
        """What was issued since the last mark belongs to that phase."""
        if self._epoch % SAMPLE_EVERY_EPOCHS == 0:
            event = self._event()
            event.record()
            self._marks.append((phase, event))

    def lap(self) -> dict[str, float]:
        """End the epoch; seconds per phase of one sampled earlier, if it has just become known."""
        seconds = self._read()
        if len(self._marks) > 1 and not self._waiting:
            self._waiting = self._marks
        self._marks = []
        self._epoch += 1
        return seconds

    def _read(self) -> dict[str, float]:
        if not self._waiting or not self._waiting[-1][1].query():
            return {}
        seconds: dict[str, float] = {}
        for (_, before), (phase, after) in zip(self._waiting, self._waiting[1:], strict=False):
            seconds[phase] = seconds.get(phase, 0.0) + before.elapsed_time(after) / 1000.0
        self._waiting = []
        return seconds

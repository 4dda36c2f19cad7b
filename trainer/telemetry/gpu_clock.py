"""GPU seconds of each phase, sampled every few epochs: CUDA events, read when they have passed.

The wall time of a phase is what the host took to issue its work. An event on the stream marks where the
device is; asking whether it has passed waits for nothing, so a sampled epoch is reported some epochs later,
with its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

SAMPLE_EVERY_EPOCHS = 8
"""Epochs from one sampled epoch to the next."""
EpochName = tuple[int, int]
"""Round of an epoch, and its number from 1."""


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
        self._epochs = 0
        self._marks: list[tuple[str, TimedEvent]] = []
        self._waiting: list[tuple[str, TimedEvent]] = []
        self._waiting_epoch: EpochName | None = None

    def mark(self, phase: str) -> None:
        """Assign what was issued since the last mark to a phase."""
        if self._epochs % SAMPLE_EVERY_EPOCHS == 0:
            event = self._event()
            event.record()
            self._marks.append((phase, event))

    def lap(self, of_epoch: EpochName | None) -> tuple[EpochName | None, dict[str, float]]:
        """End what was marked; an epoch sampled earlier and its seconds per phase, if they have become known.

        Args:
            of_epoch: None = no epoch, as between two rounds: it is not sampled, and nothing is returned.
        """
        marks, self._marks = self._marks, []
        if of_epoch is None:
            return None, {}
        known = self._waiting_epoch, self._read()
        if len(marks) > 1 and not self._waiting:
            self._waiting, self._waiting_epoch = marks, of_epoch
        self._epochs += 1
        return known if known[1] else (None, {})

    def _read(self) -> dict[str, float]:
        if not self._waiting or not self._waiting[-1][1].query():
            return {}
        seconds: dict[str, float] = {}
        for (_, before), (phase, after) in zip(self._waiting, self._waiting[1:], strict=False):
            seconds[phase] = seconds.get(phase, 0.0) + before.elapsed_time(after) / 1000.0
        self._waiting = []
        return seconds

"""Where the trainer's threads leave their events: a deque per stream, no lock, no wait.

The I/O thread drains it on a timer. A full queue refuses the newest event and counts it; the count itself
becomes an event (`telemetry.lost`).
"""

from __future__ import annotations

import dataclasses
import heapq
import os
import threading
import weakref
from collections import deque
from time import time_ns
from typing import NamedTuple

from msgspec import Struct

from protocol.messages.events import Context, TelemetryLost, spec_of
from protocol.messages.vocabulary import STREAMS, Level, Stream

MAX_QUEUED: dict[Stream, int] = {"life": 65_536, "metric": 65_536, "trace": 65_536, "log": 4_096}


class Emitted(Struct, frozen=True, gc=False):
    """An event in its queue; not tracked by the garbage collector, which would run in the emitting thread."""

    ns: int
    event: object
    env: int | None
    ctx: Context


class _Queue(NamedTuple):
    """Where the events of a class wait."""

    stream: Stream
    queue: deque[Emitted]
    bound: int


class _QueueByClass(dict[type, _Queue]):
    """By class, found once: all that `emit` has to look up, which counts where its caches are cold."""

    def __init__(self, queues: dict[Stream, deque[Emitted]]) -> None:
        super().__init__()
        self._queues = queues

    def __missing__(self, cls: type) -> _Queue:
        stream = spec_of(cls).stream
        lane = self[cls] = _Queue(stream, self._queues[stream], MAX_QUEUED[stream])
        return lane


@dataclasses.dataclass
class _Refused:
    total: int = 0
    unreported: int = 0
    from_ns: int = 0
    to_ns: int = 0


class Emitter:
    """Safe from any thread and from signal handlers; silent in a forked child."""

    def __init__(self) -> None:
        self._queues: dict[Stream, deque[Emitted]] = {stream: deque() for stream in STREAMS}
        self._queue_by_class = _QueueByClass(self._queues)
        self._context = Context()
        self._refused = {stream: _Refused() for stream in STREAMS}
        self._refusing = threading.RLock()
        self._silent = False
        _emitters.add(self)

    def emit(self, event: object, env: int | None = None, rank: int = 0) -> None:
        """Queue an event with the time and the clock of now.

        Args:
            event: instance of a registered event class; not to be changed afterwards.
            env: which env it is about.
            rank: the process that it comes from.

        Raises:
            KeyError: the class is not registered.
        """
        stream, queue, bound = self._queue_by_class[type(event)]
        if len(queue) >= bound or self._silent:
            self._refuse(stream)
        else:
            context = dataclasses.replace(self._context, rank=rank) if rank else self._context
            queue.append(Emitted(time_ns(), event, env, context))

    def set_clock(
        self, *, round: int | None = None, epoch: int | None = None, level: Level | None = None
    ) -> None:
        """Set what every event from now on carries as its context; None leaves a part as it is."""
        old = self._context
        self._context = Context(
            round=old.round if round is None else round,
            epoch=old.epoch if epoch is None else epoch,
            level=old.level if level is None else level,
        )

    @property
    def context(self) -> Context:
        """The clock as it stands."""
        return self._context

    @property
    def waiting(self) -> dict[str, int]:
        """Events queued, per stream."""
        return {stream: len(queue) for stream, queue in self._queues.items()}

    @property
    def dropped(self) -> dict[str, int]:
        """Events refused since the boot, per stream."""
        return {stream: refused.total for stream, refused in self._refused.items()}

    def drain(self, limit: int) -> list[Emitted]:
        """Take up to `limit` events per stream, by time; within a stream in the order emitted."""
        lanes = []
        for queue in self._queues.values():
            count = min(limit, len(queue))
            if count:
                lanes.append([queue.popleft() for _ in range(count)])
        return lanes[0] if len(lanes) == 1 else list(heapq.merge(*lanes, key=lambda item: item.ns))

    def take_losses(self) -> list[TelemetryLost]:
        """What was refused since the last call."""
        losses = []
        with self._refusing:
            for stream, refused in self._refused.items():
                if refused.unreported:
                    losses.append(
                        TelemetryLost(
                            stream=stream,
                            count=refused.unreported,
                            from_ts=refused.from_ns // 1000,
                            to_ts=refused.to_ns // 1000,
                        )
                    )
                    refused.unreported = 0
        return losses

    def _refuse(self, stream: Stream) -> None:
        if self._silent:
            return
        now = time_ns()
        with self._refusing:
            refused = self._refused[stream]
            refused.from_ns = refused.from_ns if refused.unreported else now
            refused.to_ns = now
            refused.total += 1
            refused.unreported += 1

    def _silence(self) -> None:
        self._silent = True
        for queue in self._queues.values():
            queue.clear()


_emitters: weakref.WeakSet[Emitter] = weakref.WeakSet()


def _silence_all() -> None:
    for emitter in list(_emitters):
        emitter._silence()


os.register_at_fork(after_in_child=_silence_all)

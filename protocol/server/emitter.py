"""Queues for the events of the trainer's threads: a deque per stream, no lock, no wait.

The I/O thread drains it on a timer. A full queue refuses the newest event and counts it; the count itself
becomes an event (`telemetry.lost`). Events of `life` that find no room go to the disk instead, in order.
"""

from __future__ import annotations

import dataclasses
import heapq
import logging
import os
import tempfile
import threading
import weakref
from collections import deque
from pathlib import Path
from time import time_ns

from msgspec import Struct

from esper_overwatch.protocol.codec.json_lines import Encoder, decode_line
from esper_overwatch.protocol.messages.events import Context, TelemetryLost, spec_of
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Level, Stream

logger = logging.getLogger(__name__)

MAX_QUEUED: dict[Stream, int] = {"life": 65_536, "metric": 65_536, "trace": 65_536, "log": 4_096}


class Emitted(Struct, frozen=True, gc=False):
    """An event in its queue; not tracked by the garbage collector, which would run in the emitting thread."""

    ns: int
    event: object
    env: int | None
    ctx: Context


@dataclasses.dataclass(slots=True)
class _Queue:
    """Waiting events of a stream."""

    stream: Stream
    bound: int
    """Events from which on `emit` looks closer; 0 while older ones are on the disk."""
    events: deque[Emitted] = dataclasses.field(default_factory=deque)


class _QueueByClass(dict[type, _Queue]):
    """Queues by class, each found once: all that `emit` looks up, which counts where its caches are cold."""

    def __init__(self, queues: dict[Stream, _Queue]) -> None:
        super().__init__()
        self._queues = queues

    def __missing__(self, cls: type) -> _Queue:
        queue = self[cls] = self._queues[spec_of(cls).stream]
        return queue


@dataclasses.dataclass
class _Refused:
    total: int = 0
    unreported: int = 0
    from_ns: int = 0
    to_ns: int = 0


class OverflowFile:
    """Spill file for events of `life` that find their queue full, in order. Not safe between threads.

    The file has no name, so that nothing is left of it where the process dies.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        """Folder of the file; None = the one for temporary files."""
        self._fd: int | None = None
        self._lengths: list[int] = []
        """Sizes of the entries; those from `_taken` on are left, the first of them at `_begin`."""
        self._taken = 0
        self._begin = self._end = 0

    def __len__(self) -> int:
        return len(self._lengths) - self._taken

    def append(self, data: bytes) -> None:
        """Write an entry.

        Raises:
            OSError: the disk refuses it.
        """
        if self._fd is None:
            with tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
                self._fd = os.dup(file.fileno())
        at, view = self._end, memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            at, view = at + written, view[written:]
        self._lengths.append(len(data))
        self._end = at

    def take(self, limit: int) -> list[bytes]:
        """Up to `limit` of the oldest entries; an emptied file gives its space back.

        Raises:
            OSError: the disk does not give them.
        """
        lengths = self._lengths[self._taken : self._taken + limit]
        if not lengths or self._fd is None:
            return []
        found, data = [], os.pread(self._fd, sum(lengths), self._begin)
        if len(data) < sum(lengths):
            raise OSError("the file is shorter than what was written")
        for length in lengths:
            found.append(data[:length])
            data = data[length:]
        self._taken += len(lengths)
        self._begin += sum(lengths)
        if not len(self):
            self.close()
        return found

    def close(self) -> None:
        """Forget everything."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._lengths = None, []
        self._taken = self._begin = self._end = 0


class Emitter:
    """Safe from any thread and from signal handlers; silent in a forked child."""

    def __init__(self) -> None:
        self._queues = {stream: _Queue(stream, MAX_QUEUED[stream]) for stream in STREAMS}
        self._queue_by_class = _QueueByClass(self._queues)
        self._context = Context()
        self._refused = {stream: _Refused() for stream in STREAMS}
        self._refusing = threading.RLock()
        self._overflow = OverflowFile()
        """Events of `life`; used under `_refusing`."""
        self._is_overflow_used = False
        self._silent = False
        _emitters.add(self)

    def emit(
        self, event: object, env: int | None = None, rank: int = 0, context: Context | None = None
    ) -> None:
        """Queue an event with the time and the clock of now.

        Args:
            event: instance of a registered event class; not to be changed afterwards.
            env: which env it is about.
            rank: the process that it comes from.
            context: where the run was, in the place of the clock of now.

        Raises:
            KeyError: the class is not registered.
        """
        queue = self._queue_by_class[type(event)]
        context = context or self._context
        if rank:
            context = dataclasses.replace(context, rank=rank)
        emitted = Emitted(time_ns(), event, env, context)
        if len(queue.events) >= queue.bound or self._silent:
            if queue.stream != "life" or self._silent or not self._overflowed(queue, emitted):
                self._refuse(queue.stream)
        else:
            queue.events.append(emitted)

    def overflow_into(self, folder: Path) -> None:
        """Name the folder on whose disk events wait that memory has no room for."""
        self._overflow.folder = folder

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
        waiting: dict[str, int] = {stream: len(queue.events) for stream, queue in self._queues.items()}
        waiting["life"] += len(self._overflow)
        return waiting

    @property
    def dropped(self) -> dict[str, int]:
        """Events refused since the boot, per stream."""
        return {stream: refused.total for stream, refused in self._refused.items()}

    def drain(self, limit: int) -> list[Emitted]:
        """Take up to `limit` events per stream, by time; within a stream in the order emitted."""
        lanes = []
        for queue in self._queues.values():
            count = min(limit, len(queue.events))
            taken = [queue.events.popleft() for _ in range(count)]
            if count < limit and not queue.bound:
                taken += self._take_overflow(queue, limit - count)
            if taken:
                lanes.append(taken)
        return lanes[0] if len(lanes) == 1 else list(heapq.merge(*lanes, key=lambda item: item.ns))

    def take_losses(self) -> list[TelemetryLost]:
        """Return what was refused since the last call."""
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

    def _overflowed(self, queue: _Queue, emitted: Emitted) -> bool:
        """Write an event to the disk; False where that is not possible."""
        with self._refusing:
            if self._is_overflow_used:  # this is a signal's handler, which came between
                queue.events.append(emitted)
                return True
            self._is_overflow_used = True
            try:
                self._overflow.append(_line_of(emitted))
            except Exception:
                if not self._refused[queue.stream].unreported:
                    logger.exception("an event of life finds no room, neither in memory nor on the disk")
                return False
            finally:
                self._is_overflow_used = False
            queue.bound = 0
            return True

    def _take_overflow(self, queue: _Queue, limit: int) -> list[Emitted]:
        """Take events from the disk, once memory is empty; then memory is used again."""
        with self._refusing:
            if queue.events:  # of a thread that was about to append when the disk came into use
                return []
            self._is_overflow_used = True
            try:
                taken = [_emitted_of(line) for line in self._overflow.take(limit)]
            except OSError:
                lost = len(self._overflow)
                logger.exception("%d events of life cannot be read back from the disk", lost)
                taken = []
                self._overflow.close()
                self._refuse(queue.stream, lost)
            finally:
                self._is_overflow_used = False
            if not len(self._overflow):
                queue.bound = MAX_QUEUED[queue.stream]
        return taken

    def _refuse(self, stream: Stream, count: int = 1) -> None:
        if self._silent:
            return
        now = time_ns()
        with self._refusing:
            refused = self._refused[stream]
            refused.from_ns = refused.from_ns if refused.unreported else now
            refused.to_ns = now
            refused.total += count
            refused.unreported += count

    def _silence(self) -> None:
        self._silent = True
        for queue in self._queues.values():
            queue.events.clear()
        self._overflow.close()


def _line_of(emitted: Emitted) -> bytes:
    """Encode an event as the journal will have it, but for its number."""
    encoder = Encoder(dict.fromkeys(STREAMS, 0))
    return encoder.add(emitted.ns // 1000, emitted.ctx, emitted.event, emitted.env).line(0)


def _emitted_of(line: bytes) -> Emitted:
    event = decode_line(line)
    return Emitted(event.ts * 1000, event.data, event.ctx.env, event.ctx)


_emitters: weakref.WeakSet[Emitter] = weakref.WeakSet()


def _silence_all() -> None:
    for emitter in list(_emitters):
        emitter._silence()


os.register_at_fork(after_in_child=_silence_all)

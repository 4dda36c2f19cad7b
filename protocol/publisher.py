"""From the queues to the journal and onto the wire: number, encode, write, publish."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .emitter import Emitted, Emitter
from .events import STREAMS, Anomaly, Context, JournalRemoved, RunStarted, Stream, TelemetryLost, spec_of
from .journal import Journal
from .snapshot import Snapshot
from .wire import Stamped, encode_batches, encode_event

logger = logging.getLogger(__name__)

TICK_EVENTS = 512
RING_EVENTS = 20_000
RING_BYTES = 32 * 1024 * 1024
SYNC_S = 1.0


class Ring:
    """The newest lines of one stream in memory, contiguous, bounded in number and bytes."""

    def __init__(self) -> None:
        self._items: deque[Stamped] = deque()
        self._bytes = 0

    def extend(self, items: list[Stamped]) -> None:
        """Take in the next events; the oldest go where the bounds are passed."""
        self._items.extend(items)
        self._bytes += sum([len(item.line) for item in items])
        while len(self._items) > RING_EVENTS or self._bytes > RING_BYTES:
            self._bytes -= len(self._items.popleft().line)

    @property
    def first(self) -> int | None:
        """The oldest number held."""
        return self._items[0].seq if self._items else None

    def range(self, first: int, last: int, *, limit: int) -> list[tuple[int, bytes]]:
        """Lines `first`..`last` as (seq, line), up to `limit` bytes; `first` is to be held."""
        assert self.first is not None
        found = []
        start = first - self.first
        for item in itertools.islice(self._items, start, start + last - first + 1):
            found.append((item.seq, item.line))
            limit -= len(item.line) + 1
            if limit <= 0:
                break
        return found


class Publisher:
    """One tick after another; owned by the I/O thread.

    Args:
        emitter: where events come from.
        journal: written before anything is sent.
        run: id of the run.
        boot: id of this boot.
        send: takes the frames of one message.
        note: sees each event of `life` and its time in microseconds.
    """

    def __init__(
        self,
        emitter: Emitter,
        journal: Journal,
        *,
        run: str,
        boot: str,
        send: Callable[[list[bytes]], None],
        note: Callable[[object, int], None],
    ) -> None:
        self._emitter = emitter
        self._journal = journal
        self._run = run
        self._boot = boot
        self._send = send
        self._note = note
        self.last: dict[str, int] = {stream: journal.last.get(stream, 0) for stream in STREAMS}
        """The newest number given, per stream."""
        self.snapshot = Snapshot()
        self.rings = {stream: Ring() for stream in STREAMS}
        self.unencodable = 0
        self._newest: dict[str, bytes] = {}
        self.started: RunStarted | None = None
        """The boot's first event, for who asks for the status."""
        self._synced = time.monotonic()
        self._journal_ill_since = 0
        self._journal_lost = 0

    def tick(self) -> bool:
        """Drain, number, encode, write, publish; True where more waits than one tick takes."""
        emitted = self._emitter.drain(TICK_EVENTS)
        for loss in self._emitter.losses():
            emitted.append(self._own(loss))
        stamped = self._stamp(emitted)
        self._journal.append(stamped)
        now = time.monotonic()
        if now - self._synced >= SYNC_S or any(item.stream == "life" for item in stamped):
            self._journal.sync()
            self._synced = now
        self._publish(stamped)
        self._watch_journal()
        self._tell_removed()
        return any(self._emitter.waiting.values())

    def take_view(self) -> list[bytes]:
        """The newest line of each metric type that has come since this was last asked, by number."""
        lines = list(self._newest.values())
        self._newest.clear()
        return lines

    def range(self, stream: Stream, first: int, last: int, *, limit: int) -> list[tuple[int, bytes]]:
        """Lines of a stream from memory or, older ones, from the journal; see `Journal.range`."""
        oldest = self.rings[stream].first
        if oldest is not None and first >= oldest:
            return self.rings[stream].range(first, last, limit=limit)
        return self._journal.range(stream, first, last, limit=limit)

    def oldest(self, stream: Stream, first: int) -> int:
        """The first number from `first` on that is held; the one after the newest where there is none."""
        found = self.range(stream, first, self.last[stream], limit=1)
        return found[0][0] if found else self.last[stream] + 1

    def _stamp(self, emitted: list[Emitted]) -> list[Stamped]:
        stamped = []
        for ns, event, env, ctx in emitted:
            spec = spec_of(type(event))
            if env is not None:
                ctx = dataclasses.replace(ctx, env=env)
            seq = self.last[spec.stream] + 1
            try:
                line = encode_event(seq, ns // 1000, ctx, event)
            except Exception:
                self.unencodable += 1
                logger.exception("an event of type %s was left out", spec.type)
                continue
            item = Stamped(spec.stream, seq, ns // 1000, line)
            self.last[spec.stream] = seq
            stamped.append(item)
            self.snapshot.add(spec, ctx, event, item)
            if spec.stream == "life":
                self._note(event, item.ts)
            elif spec.stream == "metric":
                self._newest.pop(spec.type, None)
                self._newest[spec.type] = line
            if isinstance(event, RunStarted):
                self.started = event
        return stamped

    def _publish(self, stamped: list[Stamped]) -> None:
        now = time.time_ns() // 1000
        dropped = self._emitter.dropped
        by_stream: dict[Stream, list[Stamped]] = {stream: [] for stream in STREAMS}
        for item in stamped:
            by_stream[item.stream].append(item)
        for stream, part in by_stream.items():
            if part:
                self.rings[stream].extend(part)
                batches = encode_batches(
                    part, run=self._run, boot=self._boot, ts=now, dropped=dropped[stream]
                )
                for frames in batches:
                    self._send(frames)

    def _watch_journal(self) -> None:
        """Raise an anomaly while the disk refuses the journal; tell what was lost when it is over."""
        ill = self._journal.error is not None
        if ill == bool(self._journal_ill_since):
            return
        now = time.time_ns() // 1000
        since = self._journal_ill_since or now
        self._journal_ill_since = now if ill else 0
        self._emitter.emit(
            Anomaly(
                kind="journal_write",
                source="telemetry",
                severity="critical",
                active=ill,
                value=float(self._journal.waiting),
                since=since,
                hint=f"the journal cannot be written ({self._journal.error}): free space on its disk"
                if ill
                else "the journal is written again",
            )
        )
        lost, self._journal_lost = self._journal.lost - self._journal_lost, self._journal.lost
        if lost:
            self._emitter.emit(TelemetryLost(stream="journal", count=lost, from_ts=since, to_ts=now))

    def _tell_removed(self) -> None:
        for gone in self._journal.take_removed():
            self._emitter.emit(
                JournalRemoved(
                    segment=gone.file,
                    bytes=gone.bytes,
                    from_ts=gone.from_ts,
                    to_ts=gone.to_ts,
                    last={stream: span.last for stream, span in gone.streams.items()},
                )
            )

    def _own(self, event: Any) -> Emitted:
        return Emitted(time.time_ns(), event, None, Context(**vars(self._emitter.context)))

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
        self._lines: deque[bytes] = deque()
        self._last = 0
        self._bytes = 0

    def extend(self, lines: list[bytes], last: int) -> None:
        """Take in the next lines, up to number `last`; the oldest go where the bounds are passed."""
        self._lines.extend(lines)
        self._last = last
        self._bytes += sum(map(len, lines))
        while len(self._lines) > RING_EVENTS or self._bytes > RING_BYTES:
            self._bytes -= len(self._lines.popleft())

    def clear(self) -> None:
        """Hold nothing any more."""
        self._lines.clear()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def first(self) -> int | None:
        """The oldest number held."""
        return self._last - len(self._lines) + 1 if self._lines else None

    def range(self, first: int, last: int, *, limit: int) -> list[tuple[int, bytes]]:
        """Lines `first`..`last` as (seq, line), up to `limit` bytes; `first` is to be held."""
        assert self.first is not None
        found = []
        start = first - self.first
        for seq, line in enumerate(itertools.islice(self._lines, start, start + last - first + 1), first):
            found.append((seq, line))
            limit -= len(line) + 1
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
        self._newest: dict[str, Stamped] = {}
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
        lived = self.last["life"]
        stamped = self._stamp(emitted)
        self._journal.append(stamped)
        now = time.monotonic()
        if now - self._synced >= SYNC_S or self.last["life"] > lived:
            self._journal.sync()
            self._synced = now
        self._publish(stamped)
        self._watch_journal()
        self._tell_removed()
        return any(self._emitter.waiting.values())

    def take_view(self) -> list[bytes]:
        """The newest line of each metric type that has come since this was last asked, by number."""
        newest = sorted(self._newest.values(), key=lambda item: item.seq)
        self._newest.clear()
        return [item.line for item in newest]

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
        for item in emitted:
            event, ctx = item.event, item.ctx
            spec = spec_of(type(event))
            stream, ts = spec.stream, item.ns // 1000
            if item.env is not None:
                ctx = dataclasses.replace(ctx, env=item.env)
            seq = self.last[stream] + 1
            try:
                line = encode_event(seq, ts, ctx, event)
            except Exception:
                self.unencodable += 1
                logger.exception("an event of type %s was left out", spec.type)
                continue
            self.last[stream] = seq
            newest = Stamped(stream, seq, ts, line)
            stamped.append(newest)
            self.snapshot.add(spec, ctx, event, line)
            if stream == "metric":
                self._newest[spec.type] = newest
            elif stream == "life":
                self._live(event, ts)
        return stamped

    def _live(self, event: object, ts: int) -> None:
        self._note(event, ts)
        if isinstance(event, RunStarted):
            self.started = event

    def _publish(self, stamped: list[Stamped]) -> None:
        now = time.time_ns() // 1000
        dropped = self._emitter.dropped
        by_stream: dict[Stream, list[Stamped]] = {stream: [] for stream in STREAMS}
        for item in stamped:
            by_stream[item.stream].append(item)
        for stream, part in by_stream.items():
            if part:
                self.rings[stream].extend([item.line for item in part], part[-1].seq)
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

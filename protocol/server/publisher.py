"""From the queues to the journal and onto the wire: number, encode, write, publish."""

from __future__ import annotations

import bisect
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, fsum, isfinite
from typing import Any, NamedTuple, TypeAlias

from esper_overwatch.protocol.codec.frames import Frames, encode_batches
from esper_overwatch.protocol.codec.json_lines import Batch, Encoder
from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages.events import (
    Context,
    EventSpec,
    JournalRemoved,
    RunStarted,
    TelemetryLost,
    spec_of,
)
from esper_overwatch.protocol.messages.headers import Window
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream

from .alarm import Alarm, Finding
from .emitter import Emitted, Emitter
from .incidents import IncidentKeeper
from .snapshot import Snapshot

logger = logging.getLogger(__name__)

MAX_TICK_EVENTS = 512
MAX_RING_EVENTS = 20_000
MAX_RING_BYTES = 32 * 1024 * 1024
SYNC_SECONDS = 1.0
MIN_TOLD_BYTES = 64 * 1024
"""Of events that wait for the disk, before it is told again that their bytes have doubled."""

Observer: TypeAlias = Callable[[EventSpec, Sequence[Emitted]], None]
"""Sees events of one type in their order, in the I/O thread: to be quick, as everything waits for it."""


class Ring:
    """The newest batches of one stream in memory, contiguous, bounded in lines and bytes."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._count = 0
        self._bytes = 0

    def extend(self, batches: list[Batch]) -> None:
        """Take in the next batches; the oldest go where the bounds are passed, all where a number lacks."""
        for batch in batches:
            if self._batches and batch.first != self._batches[-1].last + 1:
                self.clear()
            self._batches.append(batch)
            self._count += len(batch)
            self._bytes += len(batch.body)
        while self._count > MAX_RING_EVENTS or self._bytes > MAX_RING_BYTES:
            gone = self._batches.popleft()
            self._count -= len(gone)
            self._bytes -= len(gone.body)

    def clear(self) -> None:
        """Drop all batches."""
        self._batches.clear()
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> int | None:
        """The oldest number held."""
        return self._batches[0].first if self._batches else None

    def range(self, first: int, last: int, *, limit: int) -> list[tuple[int, bytes]]:
        """Lines `first`..`last` as (seq, line), up to `limit` bytes; `first` is to be held."""
        found = []
        at = bisect.bisect_right(self._batches, first, key=lambda batch: batch.first) - 1
        for batch in itertools.islice(self._batches, at, None):
            for seq in range(max(first, batch.first), min(last, batch.last) + 1):
                line = batch.line(seq - batch.first)
                found.append((seq, line))
                limit -= len(line) + 1
                if limit <= 0:
                    return found
            if batch.last >= last:
                break
        return found


class _TypeRun(NamedTuple):
    """Events of one type whose lines follow each other in a batch."""

    spec: EventSpec
    batch: Batch
    begin: int
    events: list[Emitted]


class MetricSummary:
    """Content of `1/view`: the newest metric of each type since the last, and spans. One thread owns it."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[Batch, int]] = {}
        self._came: dict[str, list[object]] = {}
        self._watched = False

    def extend(self, type_: str, events: Sequence[Emitted], batch: Batch, begin: int) -> None:
        """Take in events of one type whose lines are in the batch, from `begin` on."""
        self._newest[type_] = batch, begin + len(events) - 1
        if self._watched:
            self._came.setdefault(type_, []).extend([item.event for item in events])

    def take(self, *, watched: bool) -> tuple[list[bytes], dict[str, Window]]:
        """The newest lines by number, and a window of each type of which more than one has come.

        Args:
            watched: whether windows are wanted from now on; without a reader they are not worth their time.
        """
        newest = sorted(self._newest.values(), key=lambda one: one[0].first + one[1])
        windows = {type_: _window(events) for type_, events in self._came.items() if len(events) > 1}
        self._newest.clear()
        self._came.clear()
        self._watched = watched
        return [batch.line(index) for batch, index in newest], windows


def _window(events: Sequence[object]) -> Window:
    lowest, mean, highest = {}, {}, {}
    for name in vars(events[0]):
        column = [getattr(event, name) for event in events]
        values = [value for value in column if type(value) in (float, int) and isfinite(value)]
        if values:
            lowest[name], highest[name] = min(values), max(values)
            mean[name] = fsum(values) / len(values)
    return Window(n=len(events), min=lowest, mean=mean, max=highest)


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
        send: Callable[[Frames], None],
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
        self.last_before = dict(self.last)
        self.snapshot = Snapshot()
        self.rings = {stream: Ring() for stream in STREAMS}
        self.unencodable = 0
        self._encoder = Encoder(self.last)
        self.view = MetricSummary()
        self.started: RunStarted | None = None
        """The boot's first event, for the answer to `status`."""
        self.incidents = IncidentKeeper(emitter.emit, boot)
        self.observers: list[Observer] = [self.incidents.observe]
        self._synced = time.monotonic()
        self._written_ns = self._synced_ns = 0
        """Moments (`time.monotonic_ns`) before which what was emitted is in the journal, and on the disk."""
        self._sync_wanted_ns = 0
        """The moment up to which somebody waits for the disk."""
        self._sync_pending: tuple[int, int] | None = None
        """A ticket of the journal, and the moment that it reaches."""
        self._drained: list[Emitted] = []
        self._unwritten: list[Batch] = []
        self._disk_full = Alarm(emitter.emit, "telemetry", "disk_full")
        self._journal_write = Alarm(emitter.emit, "telemetry", "journal_write")
        self._told_bytes = 0
        """That waited when it was last told of a disk that refuses."""
        self._journal_ill_since = 0
        self._journal_lost = 0

    def tick(self) -> int:
        """Drain, number, encode, write, publish.

        Where a step fails, the next tick goes on with it: nothing is drained before what was drained earlier
        has been written. What cannot be sent is not sent again; readers repair it.

        Returns:
            Events that wait, in the stream that has most of them.
        """
        begun = 0
        if not self._drained and not self._unwritten:
            if max(self._emitter.waiting.values()) <= MAX_TICK_EVENTS:
                begun = time.monotonic_ns()
            self._drained = self._emitter.drain(MAX_TICK_EVENTS)
            self._drained += map(self._wrap, self._emitter.take_losses())
        emitted, self._drained = self._drained, []
        self._unwritten += self._encode(emitted)
        self._journal.append(self._unwritten)
        batches, self._unwritten = self._unwritten, []
        self._written_ns = max(self._written_ns, begun)
        try:
            now = time.monotonic()
            is_wanted = self._sync_wanted_ns > self._synced_ns
            has_life = any(batch.stream == "life" for batch in batches)
            if is_wanted or has_life or now - self._synced >= SYNC_SECONDS:
                self._note_sync(begun, self._journal.sync())
                self._synced = now
        finally:
            self._publish(batches)
        self._report_journal_state()
        self._report_removed()
        return max(self._emitter.waiting.values())

    def now(self, *, synced: bool) -> int:
        """This moment, for `has`; any thread may ask.

        Args:
            synced: have what was emitted before it brought onto the disk soon.
        """
        now = time.monotonic_ns()
        if synced:
            self._sync_wanted_ns = now
        return now

    def has(self, moment: int, *, synced: bool) -> bool:
        """True if what was emitted before a moment has been given to the journal, or is on the disk."""
        return (self._synced_ns if synced else self._written_ns) >= moment

    def _note_sync(self, begun: int, ticket: int | None) -> None:
        """Take note of how far the disk is, and of a ticket for what was emitted before `begun`, if any."""
        if self._sync_pending is not None and self._journal.synced >= self._sync_pending[0]:
            self._synced_ns, self._sync_pending = self._sync_pending[1], None
        if begun and ticket is not None and self._sync_pending is None:
            self._sync_pending = ticket, begun

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

    def _encode(self, emitted: list[Emitted]) -> list[Batch]:
        runs: list[_TypeRun] = []
        at = 0
        while at < len(emitted):
            spec = spec_of(type(emitted[at].event))
            try:
                batch, count = self._encoder.extend(emitted, at)
            except Exception:
                self.unencodable += 1
                logger.exception("an event of type %s was left out", spec.type)
                at += 1
                continue
            if not runs or batch is not runs[-1].batch or spec is not runs[-1].spec:
                runs.append(_TypeRun(spec, batch, len(batch) - count, []))
            runs[-1].events.extend(emitted[at : at + count])
            at += count
        for run in runs:
            try:
                self._keep_run(run)
            except Exception:
                logger.exception("the snapshot lacks %d events of type %s", len(run.events), run.spec.type)
            for observe in self.observers:
                try:
                    observe(run.spec, run.events)
                except Exception:
                    logger.exception("%d events of type %s were not observed", len(run.events), run.spec.type)
        return self._encoder.take()

    def _keep_run(self, run: _TypeRun) -> None:
        """Keep of events what is kept beside their lines, once their batch is complete."""
        spec, batch, begin, events = run
        self.snapshot.extend(spec, events, batch, begin)
        if spec.stream == "metric":
            self.view.extend(spec.type, events, batch, begin)
        elif spec.stream == "life":
            for item in events:
                self._note(item.event, item.ns // 1000)
                if isinstance(item.event, RunStarted):
                    self.started = item.event

    def _publish(self, batches: list[Batch]) -> None:
        now = time.time_ns() // 1000
        dropped = self._emitter.dropped
        by_stream: dict[Stream, list[Batch]] = {stream: [] for stream in STREAMS}
        for batch in batches:
            by_stream[batch.stream].append(batch)
        for stream, part in by_stream.items():
            if part:
                self.rings[stream].extend(part)
                for frames in encode_batches(
                    part, run=self._run, boot=self._boot, ts=now, dropped=dropped[stream]
                ):
                    self._send(frames)

    def _report_journal_state(self) -> None:
        """Raise an anomaly while the disk refuses the journal; report what was lost when it is over."""
        journal, now = self._journal, time.time_ns() // 1000
        if journal.error is None:
            if not self._journal_ill_since:
                return
            self._disk_full.follow(None)
            self._journal_write.follow(None)
            self._told_bytes = 0
            lost, self._journal_lost = journal.lost - self._journal_lost, journal.lost
            if lost:
                since = self._journal_ill_since
                self._emitter.emit(TelemetryLost(stream="journal", count=lost, from_ts=since, to_ts=now))
            self._journal_ill_since = 0
            return
        self._journal_ill_since = self._journal_ill_since or now
        alarm, other = self._disk_full, self._journal_write
        if not journal.is_full:
            alarm, other = other, alarm
        other.follow(None)
        if alarm.finding is not None and journal.waiting < 2 * self._told_bytes:
            return
        self._told_bytes = max(MIN_TOLD_BYTES, journal.waiting)
        number = journal.num_waiting
        if journal.is_full:
            hint = f"disk full: {number} events wait, {ceil(journal.waiting / 2**20)} MiB needed"
        else:
            hint = f"the journal cannot be written ({journal.error}): {number} events wait"
        alarm.follow(Finding(severity="critical", value=float(number), hint=hint), again=True)

    def _report_removed(self) -> None:
        while self._journal.removed:
            gone = self._journal.removed.popleft()
            self._emitter.emit(
                JournalRemoved(
                    segment=gone.file,
                    bytes=gone.bytes,
                    from_ts=gone.from_ts,
                    to_ts=gone.to_ts,
                    last={stream: span.last for stream, span in gone.streams.items()},
                )
            )

    def _wrap(self, event: Any) -> Emitted:
        return Emitted(time.time_ns(), event, None, Context(**vars(self._emitter.context)))

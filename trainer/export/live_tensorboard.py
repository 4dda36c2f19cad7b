"""TensorBoard event files of a run while it trains: what its journal holds, then what comes.

A boot that resumes from a checkpoint plays epochs again, and TensorBoard's files can only grow: the file is
then written again, from the journal. Its beginning makes readers forget the older file, which is emptied.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from torch.utils.tensorboard import SummaryWriter

from esper_overwatch.protocol.client.endpoint import STARTING_SECONDS, TargetSource
from esper_overwatch.protocol.client.event_log import EventLog
from esper_overwatch.protocol.client.subscriber import Subscriber
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.journal.reader import JournalRange
from esper_overwatch.protocol.messages.events import RunStarted, RunStopped
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream
from esper_overwatch.trainer.query.timeline import REPEATED_TYPES, Timeline

from .scalars import scalars
from .tensorboard import write_other

QUIET_SECONDS = 1.0
"""After so long without an event the run is looked after, and a run that has said its end has ended."""
FLUSH_SECONDS = 1
NAME_SECONDS = 1.0
"""Files are named by the second, then by a count without leading zeros."""
_CONNECTED = ("live", "slow", "stale")
_STREAMS: tuple[Stream, ...] = ("life", "metric", "log")
"""Streams with scalars and texts, and with the boots' beginnings and ends."""


class LiveExport:
    """The event file of one run, kept up with its events; a context manager.

    Args:
        open_log: opens the run's past; called for each catching up.
        folder: exists; earlier event files of the run in it are replaced.
        run_id: part of the file's name.
        episode_epochs: the length of an episode.
    """

    def __init__(
        self, open_log: Callable[[], EventLog], folder: Path, *, run_id: str, episode_epochs: int
    ) -> None:
        self.damage = DamageReport()
        """Damage found in the journal at the newest catching up."""
        self.count = 0
        """Scalars in the file."""
        self.missing: list[str] = []
        """Events that came between others and could not be read afterwards; in words."""
        self.has_ended = False
        """The newest event of the run's life is its end."""
        self._open_log = open_log
        self._folder = folder
        self._suffix = f".esper-{run_id}"
        self._episode_epochs = episode_epochs
        self._writer: SummaryWriter | None = None
        self._file = folder
        self._held: BinaryIO | None = None
        self._seen: dict[str, int] = {}
        self._newest_step: dict[str, int] = {}
        self._num_boots = 0
        self._rewritten_at_boot = 0

    def write_past(self) -> None:
        """Write what is held now into a new file, and remove the older ones.

        Raises:
            EsperError: the past cannot be read.
            OSError: the folder cannot be written.
        """
        self._open_file()
        self.damage, self._num_boots, self.has_ended = DamageReport(), 0, False
        self._newest_step.clear()
        with closing(self._open_log()) as log:
            self.damage.expect({stream: log.oldest(stream) for stream in STREAMS})
            timeline = Timeline(log.read(JournalRange(), on_bad=lambda *_: None))
            events = self.damage.watch(log.read(JournalRange(), on_bad=self.damage.note))
            for event in timeline.valid(self._note(events)):
                self._add(event)
        self._rewritten_at_boot = self._num_boots
        self._remove_older_files()

    def take(self, event: Event) -> None:
        """Write a live event; those before it that are missing are read from the journal first.

        Raises:
            EsperError: a boot plays again what is written, and the past cannot be read.
            OSError: the folder cannot be written.
        """
        if event.stream not in _STREAMS:
            return
        self.check()
        expected = self._seen.get(event.stream, 0) + 1
        if event.seq > expected:
            try:
                self._take_range(event.stream, expected, event.seq - 1)
            except EsperError as error:  # a daemon behind a port has ended meanwhile
                self.missing.append(f"{event.stream} {expected}..{event.seq - 1}: {error}")
        self._take_next(event)

    def take_rest(self) -> None:
        """Write what the journal holds beyond the events that were taken."""
        for stream in _STREAMS:
            self._take_range(stream, self._seen.get(stream, 0) + 1, None)

    def check(self) -> None:
        """Raise FileNotFoundError where somebody has removed the file."""
        if self._is_removed():
            raise FileNotFoundError(2, f"{self._file.name} was removed; is another export running?")

    def flush(self) -> None:
        """Have on the disk what was taken; that happens by itself about once a second."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what is still in memory; nothing is left of a file that somebody has removed."""
        if self._writer is None or self._held is None:
            return
        self._writer.close()
        self._writer = None
        if self._is_removed():
            self._file.unlink(missing_ok=True)
        self._held.close()
        self._held = None

    def _is_removed(self) -> bool:
        """True if the file is another than the one that was begun, or gone.

        The writer opens it by name for each flush, from a thread of its own: after a removal it creates a new
        one, without the beginning. The file that is held open keeps its identity from being given again.
        """
        assert self._held is not None
        try:
            return not os.path.samestat(os.fstat(self._held.fileno()), self._file.stat())
        except FileNotFoundError:
            return True

    def __enter__(self) -> LiveExport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_file(self) -> None:
        """A new file, that begins with the order to forget every step before it."""
        self.close()
        self.count = 0
        before = set(self._folder.glob(f"events.out.tfevents.*{self._suffix}"))
        self._begin_file(before)
        if before and self._file < max(before):  # TensorBoard reads files in the order of their names
            self.close()
            self._file.unlink()
            time.sleep(NAME_SECONDS)
            self._begin_file(before)

    def _begin_file(self, before: set[Path]) -> None:
        self._writer = SummaryWriter(
            self._folder, filename_suffix=self._suffix, purge_step=0, flush_secs=FLUSH_SECONDS
        )
        (self._file,) = set(self._folder.glob(f"events.out.tfevents.*{self._suffix}")) - before
        self._held = self._file.open("rb")

    def _remove_older_files(self) -> None:
        """Empty the older files, and remove those that were empty before.

        A TensorBoard that has read a file does not find the next one where its own is gone.
        """
        for old in self._folder.glob(f"events.out.tfevents.*{self._suffix}"):
            if old == self._file:
                continue
            if old.stat().st_size:
                os.truncate(old, 0)
            else:
                old.unlink()

    def _take_range(self, stream: str, first: int, last: int | None) -> None:
        """Take events of a stream from the past; None = up to its end."""
        with closing(self._open_log()) as log:
            wanted = JournalRange(stream, max(first, log.oldest(stream)), last)
            for event in log.read(wanted, on_bad=self.damage.note):
                self._take_next(event)

    def _take_next(self, event: Event) -> None:
        """An event whose predecessors were taken; those that were taken themselves are passed over."""
        if event.seq <= self._seen.get(event.stream, 0):
            return
        for noted in self._note([event]):
            if self._is_repeated(noted):
                self.write_past()
            else:
                self._add(noted)

    def _note(self, events: Iterator[Event] | list[Event]) -> Iterator[Event]:
        """Pass events through; keeps their numbers, and whether a boot began or ended."""
        for event in events:
            self._seen[event.stream] = max(event.seq, self._seen.get(event.stream, 0))
            if isinstance(event.data, RunStarted):
                self._num_boots += 1
                self.has_ended = False
            elif isinstance(event.data, RunStopped):
                self.has_ended = True
            yield event

    def _is_repeated(self, event: Event) -> bool:
        """True if a boot repeats what is written; once per boot for types that may go back in one."""
        steps = [
            (step, self._newest_step[tag])
            for tag, _, step in scalars(event, self._episode_epochs)
            if tag in self._newest_step
        ]
        if event.type in REPEATED_TYPES:
            return any(step <= newest for step, newest in steps)
        return self._rewritten_at_boot < self._num_boots and any(step < newest for step, newest in steps)

    def _add(self, event: Event) -> None:
        assert self._writer is not None
        for tag, value, step in scalars(event, self._episode_epochs):
            self._writer.add_scalar(tag, value, step, walltime=event.ts / 1e6)
            self._newest_step[tag] = step
            self.count += 1
        write_other(self._writer, event)


def follow(
    export: LiveExport,
    source: TargetSource,
    *,
    client: str,
    is_held: Callable[[], bool],
    on_lost: Callable[[str], None],
) -> None:
    """Write a run's past, then keep up with it, over its boots, until it ends in order.

    Args:
        export: into which it is written.
        source: of the run's daemon; it stays open.
        client: how it calls itself in the audit events.
        is_held: whether a process on this machine holds the run.
        on_lost: called with the reason when the daemon is lost, or not there.

    Raises:
        EsperError: the past cannot be read.
        OSError: the folder cannot be written.
    """
    was_told = False
    with Subscriber(streams=_STREAMS, client=client, source=source) as subscriber:
        _join(subscriber)
        export.write_past()
        while True:
            for item in subscriber.items(QUIET_SECONDS):
                if isinstance(item, Event):
                    export.take(item)
            export.check()
            if subscriber.state in _CONNECTED:
                was_told = False
            elif not is_held() and (export.has_ended or subscriber.state == "ended"):
                break
            elif subscriber.state in ("searching", "lost") and not (export.has_ended or was_told):
                on_lost(subscriber.problem or "not there")
                was_told = True
            subscriber.wait(0.1)
    if not source.is_remote:
        export.take_rest()


def _join(subscriber: Subscriber) -> None:
    """Have the events to come queued before the past is read, so that none falls between.

    What is drained here is in the journal, which is written before anything is sent.
    """
    end = time.monotonic() + STARTING_SECONDS
    while subscriber.state not in (*_CONNECTED, "ended") and time.monotonic() < end:
        subscriber.drain()
        subscriber.wait(0.1)

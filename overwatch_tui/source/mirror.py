"""What a live run's past is read from: its journal, or another one of what was received and fetched of it."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.protocol.client.items import RequestOutcome
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.journal.segments import SegmentFolder
from esper_overwatch.protocol.messages.events import EVENTS
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

from .backfill import Reach, Stretch
from .replay import ReplayFeed, time_of
from .temporary_folders import make_temporary_folder, remove_temporary_folder

AskDaemon = Callable[[str, dict[str, Any], Callable[[RequestOutcome], None]], None]
"""Ask the daemon something; the answer is handed over when it comes."""
RUN_BEGINS = "the run begins here"
JOURNAL_BEGINS = "the journal no longer reaches back further"
WARM_UP_EPOCHS = EVENTS["epoch"].keep
"""Epochs before the first moment that is shown; a snapshot has as many for a terminal that joins."""
PART_BYTES = 64 * 1024 * 1024
"""Of received lines: of two such parts the older one goes when the newer one is full."""
ANSWERS = 4
"""Answers of `metric` that are asked for at first."""
_FETCHED, _OLDER = 1, 2
"""Numbers of the segments beside the newest part."""


class Mirror:
    """The run's journal on this machine, which holds everything.

    Args:
        journal: path of `events.jsonl`.
    """

    has_holes = False
    """True if not all of the run's events may be there."""
    whole_from = 0.0
    """Moments before this time are not whole, microseconds."""
    is_spent = True
    """True if there is nothing older than what it has."""
    begins = RUN_BEGINS
    """Why there is nothing older."""
    amount = "0%"
    """Amount that has been fetched."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def append(self, event: Event) -> bool:  # noqa: ARG002
        """Take in an event as it comes; True if a part begins behind it."""
        return False

    def fetch(self, before: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Go on with fetching what was before these numbers; True once all of it is there.

        Raises:
            EsperError: it does not come.
        """
        return True

    def fetch_more(self) -> bool:
        """Have `fetch` bring older events than it has; False where there are none to be had."""
        return False

    def read(self) -> ReplayFeed:
        """All events that it has.

        Raises:
            EsperError: they cannot be read.
        """
        feed = ReplayFeed(self._journal, math.inf)
        first = feed.peek()
        self.begins = RUN_BEGINS if first is not None and first.seq == 1 else JOURNAL_BEGINS
        return feed

    def read_after(self, state: State) -> ReplayFeed:
        """Events after a moment; likewise."""
        feed = ReplayFeed(self._journal, math.inf)
        feed.rewind(state)
        first = feed.peek()
        is_behind_hole = first is not None and first.seq > state.numbers.get(first.stream, 0) + 1
        if is_behind_hole and state.numbers and not self.has_holes:
            raise EsperError(f"that moment is not held: {JOURNAL_BEGINS}")
        return feed

    def close(self) -> None:
        """Close files, remove what was received."""


class WireMirror(Mirror):
    """A remote daemon's events in a temporary folder: as they come, and its answers to `history`.

    It is asked from the newest event back, as far as needed. Each step asks for as much of `metric` as all
    steps before it, and for `trace` and `log` as far back. All of `life` is asked for, and the newest of the
    rare types of `metric` from before that.

    Args:
        ask: sends a question.
        max_bytes: of each stream, altogether.
        answer_bytes: of one answer.
    """

    has_holes = True

    def __init__(self, ask: AskDaemon, max_bytes: int = 8 << 20, answer_bytes: int = 128 << 10) -> None:
        super().__init__(Path())
        self.is_spent, self.amount = False, "0 KiB"
        self._ask, self._max, self._answer, self._wanted = ask, max_bytes, answer_bytes, 0
        self._tail: BinaryIO | None = None
        """The newest part."""
        self._problem = ""
        """Why what comes cannot be kept."""
        self._before: Mapping[str, int] | None = None
        self._stretches: dict[Stream, Stretch] = {}
        self._lines: dict[Stream, list[bytes]] = {}
        """The newest first."""
        self._rare: tuple[bytes, ...] | None = None
        """Lines of `metric` from before all others; None = not known."""
        self._is_asking = False
        self._error = ""

    def append(self, event: Event) -> bool:
        with suppress(EsperError), self._keeping() as tail:
            tail.write(event.line + b"\n")
            if tail.tell() < PART_BYTES:
                return False
            tail.close()
            os.replace(self._journal, SegmentFolder(self._journal).raw(_OLDER))
            self._tail = self._journal.open("wb")
            return True
        return False

    @contextmanager
    def _keeping(self) -> Iterator[BinaryIO]:
        """Write to the folder; nothing any more once that has failed, since there would be a hole."""
        try:
            if self._tail is None and not self._problem:
                self._journal = make_temporary_folder("esper-past-") / EVENTS_FILE
                SegmentFolder(self._journal).path.mkdir()
                self._tail = self._journal.open("wb")
            if self._tail is not None and not self._problem:
                yield self._tail
        except OSError as error:
            self._problem = f"what came since joining cannot be kept: {error.strerror}"
        if self._problem:
            raise EsperError(self._problem)

    def fetch_more(self) -> bool:
        if self.is_spent:
            return False
        self._wanted, self._rare = min(2 * self._wanted, self._max), None
        return True

    def fetch(self, before: Mapping[str, int]) -> bool:
        if self._error:
            error, self._error = self._error, ""
            raise EsperError(f"what was before joining cannot be read: {error}")
        if before != self._before:
            self._before, self._wanted, self._rare = before, ANSWERS * self._answer, None
            for stream in STREAMS:
                reach = Reach(stream, (), math.inf, 0.0, self._max, self._answer)
                self._stretches[stream] = Stretch(reach, before.get(stream, 0) + 1)
                self._lines[stream] = []
        if self._is_asking:
            return False
        for stream in ("metric", "life", "trace", "log"):
            if self._is_wanted(stream):
                self._ask_history(stream)
                return False
        if self._stretches["metric"].is_held and self._rare is None:
            self._ask_history("metric", interval=3600.0)
            return False
        return True

    def _is_wanted(self, stream: Stream) -> bool:
        stretch, lines, metric = self._stretches[stream], self._lines[stream], self._lines["metric"]
        if not stretch.is_held or stretch.is_spent:
            return False
        if stream == "metric":
            return stretch.num_bytes < self._wanted
        if stream == "life" or not metric or not lines:
            return True
        return time_of(lines[-1]) > time_of(metric[-1])

    def _ask_history(self, stream: Stream, **changes: float) -> None:
        stretch = self._stretches[stream]

        def answered(reply: RequestOutcome) -> None:
            self._is_asking = False
            if stretch is not self._stretches[stream]:
                return
            if reply.result is None:
                self._error = str(reply.error)
            elif changes:
                self._rare = reply.lines
            else:
                stretch.take(reply.result, reply.lines)
                self._lines[stream] += reversed(reply.lines)
                self.amount = f"{sum(each.num_bytes for each in self._stretches.values()) >> 10} KiB"

        self._is_asking = True
        self._ask("history", stretch.question | changes, answered)

    def read(self) -> ReplayFeed:
        streams = {stream: lines[::-1] for stream, lines in self._lines.items()}
        streams["metric"][:0] = self._rare or ()
        # By time between streams; within one as numbered, since the daemon's clock may have stepped back.
        found = heapq.merge(*streams.values(), key=time_of)
        with self._keeping() as tail:
            tail.flush()
            fetched = SegmentFolder(self._journal).raw(_FETCHED)
            fetched.write_bytes(b"".join(line + b"\n" for line in found))
        feed = super().read()
        self._tell_reach()
        return feed

    def read_after(self, state: State) -> ReplayFeed:
        with self._keeping() as tail:
            tail.flush()
        return super().read_after(state)

    def _tell_reach(self) -> None:
        """Say how far back what was fetched goes."""
        metric = self._stretches["metric"]
        if not metric.is_held:
            self.is_spent, self.whole_from = True, 0.0
            self.begins = RUN_BEGINS if metric.before <= 1 else JOURNAL_BEGINS
            return
        self.is_spent, limit = metric.is_spent, self._max >> 10
        self.begins = f"no more than {limit} KiB are fetched; esper-tui --replay there shows the whole run"
        lines = self._lines["metric"]
        epochs = [line for line in lines if b'"type":"epoch"' in line[:128]] or lines
        is_warm = len(epochs) > WARM_UP_EPOCHS
        self.whole_from = time_of(epochs[-1 - WARM_UP_EPOCHS]) if is_warm else math.inf

    def close(self) -> None:
        if self._tail is not None:
            with suppress(OSError):
                self._tail.close()
            remove_temporary_folder(self._journal.parent)

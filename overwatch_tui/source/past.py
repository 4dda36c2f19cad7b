"""Events from before a terminal joined a live run, as a recording: the journal, or a daemon's answers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from esper_overwatch.overwatch_tui.model.timeline import (
    EventReader,
    Folding,
    Keyframe,
    RunTimeline,
    Seek,
    SeekTarget,
)
from esper_overwatch.protocol.client.items import RequestOutcome
from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.events import EVENTS, RunStarted
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

from .cursor import rejoined
from .replay import ReplayFeed
from .temporary_folders import make_temporary_folder, remove_temporary_folder

AskDaemon = Callable[[str, dict[str, Any], Callable[[RequestOutcome], None]], None]
"""Ask the daemon something; the answer is handed over when it comes."""
RUN_BEGINS = "the run begins here"
JOURNAL_BEGINS = "the journal no longer reaches back further"
WARM_UP_EPOCHS = EVENTS["epoch"].keep
"""Epochs before the first moment that is shown; a snapshot has as many for a terminal that joins."""


class Past(Protocol):
    """Source of the recording."""

    @property
    def from_ts(self) -> float:
        """Moments before are not whole, microseconds."""

    @property
    def is_spent(self) -> bool:
        """True if `ask_more` brings nothing more."""

    @property
    def begins(self) -> str:
        """Why there is nothing older."""

    @property
    def progress(self) -> str:
        """Amount that has come."""

    def step(self) -> bool:
        """Go on with what was asked for; whether all of it is there.

        Raises:
            EsperError: it does not come.
        """

    def ask_more(self) -> bool:
        """Have `step` bring older events, for another `open`; False where there are none to be had."""

    def open(self) -> ReplayFeed:
        """The recording.

        Raises:
            EsperError: it cannot be read.
        """

    def close(self) -> None:
        """Remove what was fetched."""


class JournalPast:
    """The run's `events.jsonl` on this machine."""

    from_ts = 0.0
    is_spent = True
    progress = "0%"

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.begins = RUN_BEGINS

    def step(self) -> bool:
        return True

    def ask_more(self) -> bool:
        return False

    def open(self) -> ReplayFeed:
        feed = ReplayFeed(self._journal, math.inf)
        first = feed.peek()
        self.begins = RUN_BEGINS if first is not None and first.seq == 1 else JOURNAL_BEGINS
        return feed

    def close(self) -> None:
        """Nothing was fetched."""


class _Head(msgspec.Struct):
    seq: int
    ts: int
    type: str


_decode_head = msgspec.json.Decoder(_Head).decode


class WirePast:
    """A remote daemon's answers to `history`, from the newest event back, as far as needed.

    Each step asks for as much of `metric` as all steps before it, and for `trace` and `log` as far back. All
    of `life` is asked for, and the newest of the rare types of `metric` from before that.

    Args:
        ask: sends a question.
        before: the newest number of each stream that is not asked for.
        num_bytes: of `metric` to ask for at first.
        max_bytes: of each stream, altogether.
        answer_bytes: of one answer.
    """

    def __init__(
        self, ask: AskDaemon, before: Mapping[str, int], *, num_bytes: int, max_bytes: int, answer_bytes: int
    ) -> None:
        self._ask = ask
        self._before = {stream: before.get(stream, 0) + 1 for stream in STREAMS}
        self._lines: dict[Stream, list[bytes]] = {stream: [] for stream in STREAMS}
        """The newest first."""
        self._rare: tuple[bytes, ...] = ()
        """Lines of `metric` from before all others."""
        self._is_rare_known = False
        self._bytes = dict.fromkeys(STREAMS, 0)
        self._held = {stream: self._before[stream] > 1 for stream in STREAMS}
        """True for streams of which the daemon has older events."""
        self._wanted, self._max, self._answer = num_bytes, max_bytes, answer_bytes
        self._is_asking = False
        self._error = ""
        self._folder: Path | None = None

    @property
    def _is_metric_whole(self) -> bool:
        return not self._held["metric"]

    @property
    def from_ts(self) -> float:
        if self._is_metric_whole:
            return 0.0
        heads = [_decode_head(line) for line in reversed(self._lines["metric"])]
        epochs = [head for head in heads if head.type == "epoch"] or heads
        return epochs[WARM_UP_EPOCHS].ts if len(epochs) > WARM_UP_EPOCHS else math.inf

    @property
    def is_spent(self) -> bool:
        return self._is_metric_whole or self._bytes["metric"] >= self._max

    @property
    def begins(self) -> str:
        if self._is_metric_whole:
            return RUN_BEGINS if self._before["metric"] <= 1 else JOURNAL_BEGINS
        return f"no more than {self._max >> 10} KiB are fetched; esper-tui --replay there shows the whole run"

    @property
    def progress(self) -> str:
        return f"{sum(self._bytes.values()) >> 10} KiB"

    def ask_more(self) -> bool:
        if self.is_spent:
            return False
        self._wanted = min(2 * self._wanted, self._max)
        self._rare, self._is_rare_known = (), False
        return True

    def step(self) -> bool:
        if self._error:
            error, self._error = self._error, ""
            raise EsperError(f"what was before joining cannot be read: {error}")
        if self._is_asking:
            return False
        for stream in ("metric", "life", "trace", "log"):
            if self._is_wanted(stream):
                self._ask_history(stream, {"interval": 0.0, "bytes": self._answer}, self._take)
                return False
        if not self._is_metric_whole and not self._is_rare_known:
            self._ask_history("metric", {"interval": 3600.0, "bytes": self._answer}, self._take_rare)
            return False
        return True

    def _is_wanted(self, stream: Stream) -> bool:
        if not self._held[stream]:
            return False
        num_bytes = self._bytes[stream]
        if stream == "metric":
            return num_bytes < self._wanted
        if num_bytes >= self._max:
            return False
        if stream == "life" or not self._lines["metric"] or not self._lines[stream]:
            return True
        return _decode_head(self._lines[stream][-1]).ts > _decode_head(self._lines["metric"][-1]).ts

    def _ask_history(self, stream: Stream, params: dict[str, Any], take: Callable[..., None]) -> None:
        def answered(reply: RequestOutcome) -> None:
            self._is_asking = False
            if reply.result is None:
                self._error = str(reply.error)
            else:
                take(stream, reply.result, reply.lines)

        self._is_asking = True
        self._ask("history", {"stream": stream, "before": self._before[stream], **params}, answered)

    def _take(self, stream: Stream, result: dict[str, Any], lines: tuple[bytes, ...]) -> None:
        self._lines[stream] += reversed(lines)
        self._bytes[stream] += sum(map(len, lines))
        self._before[stream] = min(self._before[stream] - 1, int(result["first"]))
        self._held[stream] = bool(result["more"]) and self._before[stream] > 1

    def _take_rare(self, stream: Stream, result: dict[str, Any], lines: tuple[bytes, ...]) -> None:  # noqa: ARG002
        self._rare, self._is_rare_known = lines, True

    def open(self) -> ReplayFeed:
        streams = {stream: lines[::-1] for stream, lines in self._lines.items()}
        streams["metric"][:0] = self._rare
        # By time between streams; within one as numbered, since the daemon's clock may have stepped back.
        found = heapq.merge(*streams.values(), key=lambda line: _decode_head(line).ts)
        self._folder = self._folder or make_temporary_folder("esper-past-")
        path = self._folder / EVENTS_FILE
        path.write_bytes(b"".join(line + b"\n" for line in found))
        return ReplayFeed(path, math.inf)

    def close(self) -> None:
        if self._folder is not None:
            remove_temporary_folder(self._folder)
            self._folder = None


class PastReader:
    """Reads a past from its beginning, and then from any of its keyframes on.

    Args:
        border: the first keyframe that the past is not needed for.
    """

    def __init__(self, source: Past, border: Keyframe) -> None:
        self.border = border
        self.is_read = False
        """True once it has been read up to the border."""
        self._source = source
        self._feed: ReplayFeed | None = None
        self._timeline = RunTimeline()
        self._reading: Seek | None = None
        self._first_ts = 0

    @property
    def from_ts(self) -> float:
        """Time of the oldest moment that can be shown, microseconds."""
        return max(self._first_ts, self._source.from_ts)

    @property
    def is_spent(self) -> bool:
        return self._source.is_spent

    @property
    def begins(self) -> str:
        return self._source.begins

    @property
    def progress(self) -> str:
        if self._reading is None:
            return self._source.progress
        share = self._reading.progress
        return f"{self._reading.folding.position} events" if share is None else f"{share:.0%}"

    def step(self, seconds: float) -> RunTimeline | None:
        """Go on for about `seconds`; the timeline once it is whole.

        Raises:
            EsperError: it cannot be read; the next call begins anew.
        """
        try:
            reading = self._reading or self._begin()
            if reading is None or not reading.step(seconds):
                return None
            if self._feed is not None and self._feed.problem is not None:
                raise self._feed.problem
        except EsperError:
            self._close_recording()
            raise
        self.is_read = True
        return self._timeline

    def _begin(self) -> Seek | None:
        if not self._source.step():
            return None
        self._feed = feed = self._source.open()
        self._timeline, present, run = RunTimeline(), Folding(), self.border.state.run
        self._first_ts, first = feed.clock, feed.peek()
        if run is not None and not isinstance(first and first.data, RunStarted):
            feed.rewind({}, position=0, ts=feed.now(), run=run)  # it begins in the midst of a boot
            present.state.run, present.state.rounds_planned = run, run.rounds
        self._reading = Seek(self._timeline, present, feed, SeekTarget(ts=self.border.ts), rejoined)
        return self._reading

    def read_after(self, present: Folding) -> EventReader:
        """Events after a moment.

        Raises:
            EsperError: it cannot be read any more.
        """
        assert self._feed is not None
        run = present.state.run
        self._feed.rewind(present.numbers, position=present.position, ts=present.ts, run=run)
        return self._feed

    def ask_more(self) -> bool:
        """Have `step` read it again with older events; False where there are none to be had."""
        if not self._source.ask_more():
            return False
        self._close_recording()
        return True

    def _close_recording(self) -> None:
        if self._feed is not None:
            self._feed.close()
        self._feed, self._reading, self.is_read = None, None, False

    def close(self) -> None:
        """Close files, remove what was fetched."""
        self._close_recording()
        self._source.close()


def make_past(journal: Path | None, ask: AskDaemon, before: Mapping[str, int], *, is_thin: bool) -> Past:
    """Reader of a live run's past, up to the newest known number of each stream."""
    if journal is not None:
        return JournalPast(journal)
    if is_thin:
        return WirePast(ask, before, num_bytes=32 << 10, max_bytes=256 << 10, answer_bytes=8 << 10)
    return WirePast(ask, before, num_bytes=512 << 10, max_bytes=8 << 20, answer_bytes=256 << 10)

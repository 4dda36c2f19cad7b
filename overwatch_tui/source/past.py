"""Events from before a terminal joined a live run, as a recording: the journal, or a daemon's answers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

from .replay import ReplayFeed
from .temporary_folders import make_temporary_folder, remove_temporary_folder

AskDaemon = Callable[[str, dict[str, Any], Callable[[RequestOutcome], None]], None]
"""Ask the daemon something; the answer is handed over when it comes."""
RUN_BEGINS = "the run begins here"
JOURNAL_BEGINS = "the journal no longer reaches back further"
WARM_UP_EPOCHS = EVENTS["epoch"].keep
"""Epochs before the first moment that is shown; a snapshot has as many for a terminal that joins."""


class Past:
    """What was before a terminal joined, read from its beginning; then from any of its keyframes on.

    Args:
        border: the first keyframe that it is not needed for.
    """

    whole_from = 0.0
    """Moments before this time are not whole, microseconds."""
    is_spent = True
    """True if `ask_more` brings nothing more."""
    begins = RUN_BEGINS
    """Why there is nothing older."""
    amount = "0%"
    """Amount that has been fetched."""

    def __init__(self, border: Keyframe) -> None:
        self.border = border
        self.is_read = False
        """True once it has been read up to the border."""
        self._feed: ReplayFeed | None = None
        self._timeline = RunTimeline()
        self._reading: Seek | None = None
        self._first_ts = 0

    def fetch(self) -> bool:
        """Go on with what has to be fetched; True once all of it is there.

        Raises:
            EsperError: it does not come.
        """
        return True

    def fetch_more(self) -> bool:
        """Have `fetch` bring older events, for another `open`; False where there are none to be had."""
        return False

    def open(self) -> ReplayFeed:
        """The recording.

        Raises:
            EsperError: it cannot be read.
        """
        raise NotImplementedError

    @property
    def from_ts(self) -> float:
        """Time of the oldest moment that can be shown, microseconds."""
        return max(self._first_ts, self.whole_from)

    @property
    def progress(self) -> str:
        return self.amount if self._reading is None else self._reading.progress

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
        if not self.fetch():
            return None
        self._feed = feed = self.open()
        self._timeline, present, run = RunTimeline(), Folding(), self.border.state.run
        self._first_ts, first = feed.clock, feed.peek()
        if run is not None and not isinstance(first and first.data, RunStarted):
            feed.rewind({}, position=0, ts=feed.now(), run=run)  # it begins in the midst of a boot
            present.state.run, present.state.rounds_planned = run, run.rounds
        self._reading = Seek(self._timeline, present, feed, SeekTarget(ts=self.border.ts))
        return self._reading

    def read_after(self, present: Folding) -> EventReader:
        """Events after a moment.

        Raises:
            EsperError: it cannot be read any more.
        """
        assert self._feed is not None
        run = present.state.run
        self._feed.rewind(present.state.numbers, position=present.position, ts=present.ts, run=run)
        return self._feed

    def ask_more(self) -> bool:
        """Have `step` read it again with older events; False where there are none to be had."""
        if not self.fetch_more():
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


class JournalPast(Past):
    """The run's `events.jsonl` on this machine."""

    def __init__(self, border: Keyframe, journal: Path) -> None:
        super().__init__(border)
        self._journal = journal

    def open(self) -> ReplayFeed:
        feed = ReplayFeed(self._journal, math.inf)
        first = feed.peek()
        self.begins = RUN_BEGINS if first is not None and first.seq == 1 else JOURNAL_BEGINS
        return feed


class _Head(msgspec.Struct):
    seq: int
    ts: int
    type: str


_decode_head = msgspec.json.Decoder(_Head).decode


class WirePast(Past):
    """A remote daemon's answers to `history`, from the newest event back, as far as needed.

    Each step asks for as much of `metric` as all steps before it, and for `trace` and `log` as far back. All
    of `life` is asked for, and the newest of the rare types of `metric` from before that.

    Args:
        ask: sends a question.
        num_bytes: of `metric` to ask for at first.
        max_bytes: of each stream, altogether.
        answer_bytes: of one answer.
    """

    def __init__(
        self, border: Keyframe, ask: AskDaemon, *, num_bytes: int, max_bytes: int, answer_bytes: int
    ) -> None:
        super().__init__(border)
        self._ask = ask
        self._before = {stream: border.state.numbers.get(stream, 0) + 1 for stream in STREAMS}
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

    def fetch_more(self) -> bool:
        if not self._held["metric"] or self._bytes["metric"] >= self._max:
            return False
        self._wanted = min(2 * self._wanted, self._max)
        self._rare, self._is_rare_known = (), False
        return True

    def fetch(self) -> bool:
        if self._error:
            error, self._error = self._error, ""
            raise EsperError(f"what was before joining cannot be read: {error}")
        if self._is_asking:
            return False
        for stream in ("metric", "life", "trace", "log"):
            if self._is_wanted(stream):
                self._ask_history(stream, {"interval": 0.0, "bytes": self._answer}, self._take)
                return False
        if self._held["metric"] and not self._is_rare_known:
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
        self.amount = f"{sum(self._bytes.values()) >> 10} KiB"

    def _take_rare(self, stream: Stream, result: dict[str, Any], lines: tuple[bytes, ...]) -> None:  # noqa: ARG002
        self._rare, self._is_rare_known = lines, True

    def open(self) -> ReplayFeed:
        self._tell_reach()
        streams = {stream: lines[::-1] for stream, lines in self._lines.items()}
        streams["metric"][:0] = self._rare
        # By time between streams; within one as numbered, since the daemon's clock may have stepped back.
        found = heapq.merge(*streams.values(), key=lambda line: _decode_head(line).ts)
        self._folder = self._folder or make_temporary_folder("esper-past-")
        path = self._folder / EVENTS_FILE
        path.write_bytes(b"".join(line + b"\n" for line in found))
        return ReplayFeed(path, math.inf)

    def _tell_reach(self) -> None:
        """Say how far back what was fetched goes."""
        if not self._held["metric"]:
            self.is_spent, self.whole_from = True, 0.0
            self.begins = RUN_BEGINS if self._before["metric"] <= 1 else JOURNAL_BEGINS
            return
        self.is_spent, limit = self._bytes["metric"] >= self._max, self._max >> 10
        self.begins = f"no more than {limit} KiB are fetched; esper-tui --replay there shows the whole run"
        heads = [_decode_head(line) for line in reversed(self._lines["metric"])]
        epochs = [head for head in heads if head.type == "epoch"] or heads
        self.whole_from = epochs[WARM_UP_EPOCHS].ts if len(epochs) > WARM_UP_EPOCHS else math.inf

    def close(self) -> None:
        super().close()
        if self._folder is not None:
            remove_temporary_folder(self._folder)
            self._folder = None


def make_past(border: Keyframe, journal: Path | None, ask: AskDaemon, *, is_thin: bool) -> Past:
    """Reader of a live run's past, up to a keyframe."""
    if journal is not None:
        return JournalPast(border, journal)
    if is_thin:
        return WirePast(border, ask, num_bytes=32 << 10, max_bytes=256 << 10, answer_bytes=8 << 10)
    return WirePast(border, ask, num_bytes=512 << 10, max_bytes=8 << 20, answer_bytes=256 << 10)

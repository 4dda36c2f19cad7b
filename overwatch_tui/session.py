"""Feed, state and link held together: what the screen and `--once` both drive."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from esper_overwatch.protocol.client.items import LinkChanged, RequestOutcome, Reset
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError, NoReply, RunNotFound

from .model.commands import TrackedCommand
from .model.state import State, fold_late
from .model.time_series import SECOND
from .render.env_rows import worst_env
from .render.link_text import link_text
from .render.panel import PanelInputs
from .render.view_state import ViewState
from .source.backfill import THIN_PUBLISHED_REACHES, THIN_REACHES, Backfill
from .source.cursor import SEEK_SECONDS, RecordedCursor
from .source.feed import Feed, LiveFeed
from .source.link_status import LinkStatus
from .source.live_cursor import LiveCursor
from .source.mirror import Mirror, WireMirror
from .source.replay import ReplayFeed

RATE_WINDOW_SECONDS = 10
"""Window of the mean of events per second."""
SEARCH_SECONDS = 5.0
"""Time for which `--once` looks for a live run."""
ANSWER_SECONDS = 15.0
"""Time for which `--once` waits for a run that was found."""
FIRST_EPOCH_SECONDS = 60.0
"""Time that `wait` gives a live run for its first epoch: it may hang or have no epochs at all."""
POLL_SECONDS = 0.02
COMMANDS_SECONDS = 10.0
"""Seconds between two questions which commands a published run has: its loop adds some as it goes."""


class RunEnded(EsperError):
    """A run that ended before the awaited event came."""

    exit_code = 3


class Session:
    """Follows one feed; the env of the view is kept within the run's."""

    def __init__(self, feed: Feed, view: ViewState) -> None:
        self.feed = feed
        self.view = view
        self.link = LinkStatus()
        self._begin()
        self.needs_paint = True
        """True if something came in that is painted at once."""
        self._boot: str | None = None
        self._run: str | None = None
        self._problem: EsperError | None = None
        self._recent: deque[int] = deque()
        """Times of the events of the last seconds, by the daemon's clock."""
        self._ask_commands_at = 0.0
        self._questions: dict[str, Callable[[RequestOutcome], None]] = {}

    def tick(self) -> int:
        """Take in what has come; returns the number of events."""
        came: list[int] = []
        self._move_cursor()
        is_rewound = isinstance(self.cursor, RecordedCursor) and self.cursor.is_seeking
        for item in () if is_rewound else self.feed.drain():
            if isinstance(item, Event):
                self.cursor.fold(self.state, item)
                if self.backfill is not None:
                    self.backfill.note(item)
                came.append(item.ts)
            elif isinstance(item, Reset):
                self._reset(item.reason)
            elif isinstance(item, RequestOutcome):
                self._replied(item)
            elif isinstance(item, LinkChanged):
                self.needs_paint = True
        self._tell_problem()
        if isinstance(self.cursor, LiveCursor) and self.feed.is_caught_up:
            self.cursor.caught_up(self.state)
        self.show_cursor()
        self.view.expire_message()
        self.state.commands.mark_overdue(self.feed.now())
        self.feed.update_link(self.link)
        self._ask_commands()
        if self.backfill is not None:
            is_live = self.link.state == "live"
            self.backfill.step(self.state, is_live=is_live, is_caught_up=self.feed.is_caught_up)
        self.link.is_caught_up |= self.feed.is_caught_up
        self.link.events_per_second = self._rate(came)
        self.view.env = max(0, min(self.view.env, self.state.num_envs - 1))
        return len(came)

    def _move_cursor(self) -> None:
        """Go on towards the moment that was asked for."""
        if not self.cursor.is_seeking:
            return
        arrived = self.cursor.step(SEEK_SECONDS)
        if arrived is not None:
            self.state = arrived
        self.cursor.step_on()
        if self.cursor.notice:
            self.view.show_message(self.cursor.notice)
            self.cursor.notice = ""
        self.needs_paint = True

    def _tell_problem(self) -> None:
        """Say once why a recording ends before its end."""
        problem = self.feed.problem if isinstance(self.feed, ReplayFeed) else None
        if problem is not None and problem is not self._problem:
            self.state.note(str(problem), now=self.feed.now(), severity="warning")
            self.view.show_message(str(problem))
            self.needs_paint = True
        self._problem = problem

    def _begin(self) -> None:
        """Begin with a run of which nothing is known."""
        feed = self.feed
        self.state = State()
        self.cursor: RecordedCursor | LiveCursor = LiveCursor(self._make_mirror)
        if isinstance(feed, ReplayFeed):
            self.cursor = RecordedCursor(feed)
        self.backfill: Backfill | None = None
        """Asks for events from before joining; None for a recording."""
        if isinstance(feed, LiveFeed):
            reaches = (THIN_REACHES, THIN_PUBLISHED_REACHES) if feed.is_thin else ()
            self.backfill = Backfill(feed.request, *reaches)

    def _make_mirror(self) -> Mirror:
        feed = self.feed
        if isinstance(feed, LiveFeed) and feed.journal is not None:
            return Mirror(feed.journal)
        is_thin = isinstance(feed, LiveFeed) and feed.is_thin
        return WireMirror(self.ask, 256 << 10, 8 << 10) if is_thin else WireMirror(self.ask)

    def show_cursor(self) -> None:
        """Show in the header where the time cursor stands."""
        view, cursor = self.view, self.cursor
        view.is_frozen, view.num_arrived, view.seeking = cursor.is_held, cursor.num_after, cursor.progress

    def _reset(self, reason: str) -> None:
        """A snapshot follows: of the same boot, of a new one, or of another run."""
        now = self.feed.now()
        is_new_run = self._run is not None and self.feed.run_id != self._run
        if isinstance(self.cursor, LiveCursor):
            self.cursor.rejoin()
        if self.backfill is not None:
            self.backfill.rejoin(self.state.numbers)
        if is_new_run:
            self.cursor.close()
            self._begin()
            self.state.note(f"now following {reason}", now=now)
        elif self._boot is not None and self.feed.boot != self._boot:
            reason = f"the daemon restarted: {reason}"
            self.view.show_message(reason)
            self.state = self.state.reset_copy(reason, now=now)
        else:
            if self._boot is not None:
                self.view.show_message(f"resynchronised: {reason}")
            self.state.rejoin(reason, now=now)
        self._run, self._boot = self.feed.run_id, self.feed.boot
        self._ask_commands_at = 0.0
        self.link.is_caught_up = False
        self.needs_paint = True

    def _ask_commands(self) -> None:
        """Ask a published run now and then for its commands."""
        is_due = self.link.state == "live" and time.monotonic() >= self._ask_commands_at
        if self.state.is_published and is_due:
            self._ask_commands_at = time.monotonic() + COMMANDS_SECONDS
            self.ask("status", {}, self._take_commands)

    def _take_commands(self, reply: RequestOutcome) -> None:
        if reply.result is not None:
            self.state.loop_commands = dict(reply.result.get("commands") or {})

    def _replied(self, reply: RequestOutcome) -> None:
        late = None if self.backfill is None else self.backfill.take(reply)
        if late is not None:
            fold_late(self.state, late)
            return
        self.needs_paint = True
        answered = self._questions.pop(reply.id, None)
        if answered is not None:
            answered(reply)
            return
        if reply.error is not None and reply.error.kind == "no_reply":
            self.state.commands.mark_no_reply(reply.id, str(reply.error))
        else:
            error = None if reply.error is None else str(reply.error)
            result = reply.result or {}
            note = result.get("note", "") if result.get("state") == "accepted" else ""
            self.state.commands.add_reply(reply.id, error=error, rtt=reply.rtt_seconds, note=note)

    def _rate(self, came: list[int]) -> float | None:
        """Events per second over the last ten, without times in the future of a rewound clock."""
        now = self.feed.now()
        first, last = now - RATE_WINDOW_SECONDS * SECOND, now + SECOND
        self._recent.extend(ts for ts in came if first <= ts <= last)
        while self._recent and not first <= self._recent[0] <= last:
            self._recent.popleft()
        return len(self._recent) / RATE_WINDOW_SECONDS if self.link.events else None

    @property
    def speaks_for_all(self) -> bool:
        """True if the daemon shares acknowledgements: it is connected and knows the method."""
        is_live = self.link.is_current and not self.link.is_replay
        return is_live and not self.view.read_only and "anomaly.acknowledge" in self.link.methods

    def ask(self, method: str, params: dict[str, Any], answered: Callable[[RequestOutcome], None]) -> None:
        """Ask a question; the answer is handed over when it comes."""
        self._questions[self.feed.request(method, params)] = answered

    def send(self, method: str, params: dict[str, Any]) -> TrackedCommand:
        """Send a command; it is shown as SENT from now on."""
        id_ = self.feed.request(method, params)
        return self.state.commands.add_sent(id_, method, params, self.feed.now())

    def wait(self, *, after_round: int) -> bool:
        """Follow until there is something to show.

        Args:
            after_round: 0 waits for the first epoch (of a recording: for its end), N for the end of round N.

        Returns:
            False where no epoch came within `FIRST_EPOCH_SECONDS` of a live run, or a recording holds none.

        Raises:
            RunNotFound: no live run within 5 s.
            NoReply: found, but silent.
            RunEnded: it ended before.
            EsperError: a published run has no rounds to wait for.
        """
        began = time.monotonic()
        while not self._is_ready(after_round):
            if after_round and self.state.is_published:
                raise EsperError(f"published run {self.link.name} has no rounds: leave out --after-round")
            if self.tick():
                continue
            link, waited = self.link, time.monotonic() - began
            if not after_round and self._shows_no_epoch(waited):
                break
            if link.state == "searching" and waited > SEARCH_SECONDS:
                raise RunNotFound(link_text(link))
            if link.state == "ended":
                rounds = f"; it finished {self.state.rounds_done} rounds" if after_round else ""
                raise self._problem or RunEnded(f"{link_text(link)}{rounds}")
            if link.state == "lost" or (link.state == "connecting" and waited > ANSWER_SECONDS):
                silence = ": ".join(filter(None, (f"run {link.name} does not answer", link.problem)))
                raise NoReply(link_text(link) if link.outcome else silence)
            time.sleep(POLL_SECONDS)
        self.tick()
        if self._problem is not None:
            raise self._problem
        return self.state.is_measured

    def _shows_no_epoch(self, waited: float) -> bool:
        """True if the run is to be shown although it has no epoch."""
        if self.link.is_replay:
            return self.link.state == "ended"
        return self.link.state in ("live", "slow") and waited > FIRST_EPOCH_SECONDS

    def _is_ready(self, after_round: int) -> bool:
        if not self.state.is_measured or not self.link.is_caught_up:
            return False
        if after_round:
            return self.state.rounds_done >= after_round
        return self.link.state in (("ended",) if self.link.is_replay else ("live", "slow"))

    def panel_inputs(self) -> PanelInputs:
        """This moment; until the operator chooses an env, the one that needs attention most is selected."""
        inputs = PanelInputs(self.state, self.view, self.link, self.feed.now())
        if not (self.view.is_env_chosen or self.view.is_frozen):
            self.view.env = worst_env(self.state)
        return inputs

    def shown_inputs(self) -> PanelInputs:
        """The moment of the cursor: what every view shows."""
        moment = self.cursor.moment
        if moment is None:
            return self.panel_inputs()
        return PanelInputs(moment.state, self.view, self.link, moment.ts)

    def close(self) -> None:
        """Close the feed, and what the cursor has opened."""
        self.cursor.close()
        self.feed.close()

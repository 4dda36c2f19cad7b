"""A terminal that joins late has the curves from before, and loses none in a reconnection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from esper_overwatch.overwatch_tui.model.curves import metric_curve
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.backfill import FULL_REACHES, THIN_REACHES, Backfill
from esper_overwatch.overwatch_tui.source.feed import LiveFeed
from esper_overwatch.protocol.client.items import RequestOutcome
from esper_overwatch.protocol.codec.json_lines import Event, decode_line
from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.events import EpochFinished, RunStarted, Scalars
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from tests.overwatch_tui import journal
from tests.overwatch_tui.runs import PUBLISHED
from tests.protocol.harness import until


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    server = Server(RunFolder.claim("alpha"), hello={})
    server.start()
    server.set_state("TRAINING")
    yield server
    server.close()
    server.run.release()


def epochs(count: int) -> list[EpochFinished]:
    return [event.data for event in journal.events(envs=4, rounds=8) if event.type == "epoch"][:count]


def told(server: Server, found: list[EpochFinished]) -> None:
    for epoch in found:
        server.emitter.emit(epoch)
    assert server.flush(60)


def num_values(made: Session, name: str) -> int:
    history = made.state.curves.histories.get(name)
    return 0 if history is None else sum(history._rings[-1].count)


def joined() -> Session:
    """A session that asks for everything: the events of these tests come within the same second."""
    made = Session(LiveFeed("alpha"), ViewState())
    made.backfill = Backfill(made.feed.request, tuple(replace(r, interval_seconds=0.0) for r in FULL_REACHES))
    return made


def is_done(backfill: Backfill | None) -> bool:
    """True once everything has been asked for."""
    if backfill is None or backfill._is_joining:
        return False
    return backfill._asked is None and all(each.done for each in backfill._stretches)


def test_late_joiner_gets_the_curves_of_each_env(server: Server) -> None:
    told(server, epochs(120))
    made = joined()
    try:
        until(lambda: (made.tick(), is_done(made.backfill))[1])
        assert num_values(made, "accuracy/3") == 120, "of which the snapshot has 40"
        assert made.state.epoch == epochs(120)[-1]
    finally:
        made.close()


def test_late_joiner_gets_the_curves_of_a_published_run(server: Server) -> None:
    server.emitter.emit(RunStarted(**PUBLISHED))
    for step in range(500):
        server.emitter.emit(Scalars(step=step, values={"loss": 1.0 / (step + 1)}))
    assert server.flush(60)
    made = Session(LiveFeed("alpha"), ViewState())
    try:
        until(lambda: (made.tick(), is_done(made.backfill))[1])
        assert num_values(made, metric_curve("loss")) == 500, "of which the snapshot has 200"
    finally:
        made.close()


def test_reconnection_asks_only_for_what_is_missing(server: Server) -> None:
    found = epochs(190)
    told(server, found[:60])
    made = joined()
    try:
        until(lambda: (made.tick(), is_done(made.backfill))[1])
        assert num_values(made, "accuracy/0") == 60
        told(server, found[60:])
        feed = made.feed
        assert isinstance(feed, LiveFeed)
        feed._subscriber._start_over("a test wants it")
        until(lambda: (made.tick(), num_values(made, "accuracy/0") >= 190)[1])
        until(lambda: (made.tick(), is_done(made.backfill))[1])
        assert num_values(made, "accuracy/0") == 190, "each value once"
    finally:
        made.close()


class Daemon:
    """Answers `history` from a list, as the server does; counts what it is asked."""

    def __init__(self, found: list[Event]) -> None:
        self.found = found
        self.asked: list[dict[str, object]] = []

    def request(self, method: str, params: dict[str, object]) -> str:
        assert method == "history"
        self.asked.append(params)
        return f"q{len(self.asked)}"


def note(made: Backfill, *found: Event) -> State:
    """A snapshot of these; the state that it makes."""
    state = State()
    for event in found:
        state.fold(event)
        made.note(event)
    return state


def test_older_daemon_without_the_query_is_asked_once() -> None:
    daemon = Daemon([])
    made = Backfill(daemon.request, FULL_REACHES)
    state = note(made, journal.events(envs=4, rounds=1)[-1])
    while not daemon.asked:
        made.step(state, is_live=True, is_caught_up=True)
    refusal = RequestError("unknown_method", "no method 'history'")
    assert made.take(RequestOutcome("q1", "history", None, refusal, 0.01)) == []
    made.step(state, is_live=True, is_caught_up=True)
    assert is_done(made)
    assert len(daemon.asked) == 1


def test_nothing_is_asked_while_the_picture_is_not_live() -> None:
    daemon = Daemon([])
    made = Backfill(daemon.request)
    made.step(State(), is_live=True, is_caught_up=False)
    made.step(State(), is_live=False, is_caught_up=True)
    assert daemon.asked == []


def test_slow_link_is_left_to_the_live_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    daemon = Daemon([])
    made = Backfill(daemon.request, THIN_REACHES)
    lines = [event for event in journal.events(envs=16, rounds=2) if event.type == "epoch"]
    state = note(made, lines[-1])
    made.step(state, is_live=True, is_caught_up=True)
    assert daemon.asked[0]["bytes"] == 2048
    answer = {"stream": "metric", "first": lines[-2].seq, "n": 1, "more": True}
    made.take(RequestOutcome("q1", "history", answer, None, 1.0, (lines[-2].line,)))
    clock[0] += 3.9
    made.step(state, is_live=True, is_caught_up=True)
    assert len(daemon.asked) == 1, "an answer that took a second is followed by a pause of four"
    clock[0] += 0.2
    made.step(state, is_live=True, is_caught_up=True)
    assert len(daemon.asked) == 2
    assert daemon.asked[1]["before"] == lines[-2].seq
    assert sum(reach.total_bytes for reach in THIN_REACHES) <= 128 * 1024


def test_events_that_are_too_old_end_the_questions() -> None:
    daemon = Daemon([])
    made = Backfill(daemon.request, FULL_REACHES[:1])
    run = journal.Run(rounds=0)
    for gap in (0, 901, 99):
        run.emit(epochs(1)[0], after=gap * SECOND)
    old, middle, newest = map(decode_line, run.lines)
    state = note(made, newest)
    made.step(state, is_live=True, is_caught_up=True)
    answer = {"stream": "metric", "first": 1, "n": 2, "more": True}
    assert made.take(RequestOutcome("q1", "history", answer, None, 0.0, (old.line, middle.line))) == [middle]
    made.step(state, is_live=True, is_caught_up=True)
    assert is_done(made)
    assert len(daemon.asked) == 1


def test_reconnections_leave_no_numbers_behind() -> None:
    daemon = Daemon([])
    made = Backfill(daemon.request, FULL_REACHES[:1])
    event = journal.events(envs=4, rounds=1)[-1]
    state = State()
    for reconnection in range(10):
        made.rejoin(state.numbers)
        numbers = range(100 * reconnection + 1, 100 * reconnection + 101)
        found = [replace(event, stream=stream, seq=seq) for seq in numbers for stream in ("metric", "log")]
        state = note(made, *found)
        made.step(state, is_live=True, is_caught_up=True)
        answer = {"stream": "metric", "first": 100 * reconnection + 1, "n": 0, "more": False}
        made.take(RequestOutcome(f"q{len(daemon.asked)}", "history", answer, None, 0.0))
        assert is_done(made)
    assert len(made._seen) <= 100, "those of the newest snapshot, of the one stream that is asked for"

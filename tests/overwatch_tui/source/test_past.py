"""A terminal that joins late goes back to before: what it shows there is what the recording shows."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.model.time_target import TimeTarget
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source import mirror as mirror_module
from esper_overwatch.overwatch_tui.source.feed import LiveFeed
from esper_overwatch.overwatch_tui.source.live_cursor import LiveCursor
from esper_overwatch.overwatch_tui.source.mirror import ANSWERS, Mirror, WireMirror
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed
from esper_overwatch.protocol.client.items import LinkChanged, RequestOutcome, Reset
from esper_overwatch.protocol.codec.addresses import with_key
from esper_overwatch.protocol.codec.json_lines import Event, encode_event
from esper_overwatch.protocol.errors import FolderError, RequestError
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.history import thin_lines
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from esper_overwatch.protocol.storage.keys import make_client
from tests.overwatch_tui import harness, journal
from tests.overwatch_tui.harness import VIEWS, ListFeed, draw, in_loop, panel_inputs
from tests.overwatch_tui.test_app import LARGE, SMALL, press, shown
from tests.overwatch_tui.test_moments import clock, walk
from tests.protocol.harness import serving, until
from tests.protocol.sshd import free_ports

ENVS = 4


def events() -> tuple[Event, ...]:
    """Five rounds; the terminal joins at the end of the third."""
    return harness.events(envs=8, rounds=5)


def written(folder: Path) -> Path:
    return journal.write(folder / EVENTS_FILE, envs=8, rounds=5)


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a port, with a key that is let in."""
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    make_client("laptop", server=None, role="viewer")
    return f"tcp://127.0.0.1:{free_ports(3)}"


@pytest.fixture
def server(address: str) -> Iterator[Server]:
    server = Server(RunFolder.claim("alpha"), hello={})
    server.start()
    server.set_state("TRAINING")
    with serving(address):
        yield server
    server.close()
    server.run.release()


def tell(server: Server, found: list[Event]) -> None:
    for event in found:
        server.emitter.set_clock(round=event.ctx.round, epoch=event.ctx.epoch, level=event.ctx.level)
        server.emitter.emit(event.data, env=event.ctx.env)
    assert server.flush(60)


def rounds(first: int, last: int) -> list[Event]:
    return [e for e in journal.events(envs=ENVS, rounds=last) if first <= 1 or e.ctx.round >= first]


def pictures(state: State) -> dict[str, str]:
    """Every view of a state, with the same link; without what the terminal itself noted in the log."""
    notes = [each for each in state.log if each.stream == "view"]
    for note in notes:
        state.log.remove(note)

    def drawn(name: str) -> str:
        view = ViewState(env=1, is_env_chosen=True)
        PANELS.show(view, name)
        return draw(panel_inputs(state, view), 120, 40)

    return {name: drawn(name) for name in VIEWS}


async def go(app: OverwatchApp, pilot: object, *keys: str) -> State:
    """Press keys; the state that is shown when the cursor has arrived."""
    await press(pilot, *keys)
    until(lambda: (app.tick(), not app.session.cursor.is_seeking)[1])
    app.tick()
    app.paint()
    return app.session.shown_inputs().state


async def as_recorded(path: Path, *moments: str) -> list[dict[str, str]]:
    """All views of the recording at moments."""
    app = OverwatchApp(Session(ReplayFeed(path, math.inf), ViewState(read_only=True)))
    async with app.run_test(size=LARGE) as pilot:
        until(lambda: (app.tick(), app.session.link.state == "ended")[1])
        return [pictures(await go(app, pilot, "colon", *f"go_to {moment}", "enter")) for moment in moments]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["journal", "wire"])
@in_loop
async def test_late_joiner_steps_to_what_the_recording_shows(server: Server, address: str, way: str) -> None:
    tell(server, rounds(1, 3))
    session = Session(LiveFeed("alpha" if way == "journal" else with_key(address, "laptop")), ViewState())
    app = OverwatchApp(session)
    try:
        until(lambda: (session.tick(), session.link.is_caught_up and session.state.is_measured)[1])
        tell(server, rounds(4, 4))
        until(lambda: (session.tick(), session.state.epoch_ctx.round == 4)[1])
        async with app.run_test(size=LARGE) as pilot:
            found = [await go(app, pilot, "colon", *"go_to r2e5", "enter")]
            assert clock(app) == (2, 5), "it joined at the end of round 3"
            assert "FROZEN" in shown(app)
            await go(app, pilot, "colon", *"go_to r4e1", "enter", "comma")
            assert clock(app) == (3, 24), "the moment of joining"
            found.append(await go(app, pilot, "comma"))
            assert clock(app) == (3, 23)
            await go(app, pilot, "full_stop")
            assert clock(app) == (3, 24)
            await go(app, pilot, "colon", *"go_to r4e1", "enter")
            for by in (-1,) * 5:  # faster than any tick
                app.action_step_epochs(by)
            await go(app, pilot)
            assert clock(app) == (3, 20)
            for by in (1,) * 6:
                app.action_step_epochs(by)
            await go(app, pilot)
            assert clock(app) == (4, 2), "over the border of the past"
            await go(app, pilot, "0")
            assert clock(app) == (4, 24)
        path = server.run.path / EVENTS_FILE
        assert [pictures(each) for each in found] == await as_recorded(path, "r2e5", "r3e23")
    finally:
        session.close()


def live(
    make_mirror: Callable[[], Mirror],
    *,
    envs: int = 8,
    joined: int = 4,
    found: Sequence[Event] = (),
) -> Session:
    found = found or harness.events(envs=envs, rounds=5)
    first = next(i for i, event in enumerate(found) if event.ctx.round == joined)
    feed = ListFeed([LinkChanged("live"), Reset("run digits-7f3a, boot b1"), *found[:first]])
    session = Session(feed, ViewState())
    session.cursor = LiveCursor(make_mirror)
    session.tick()
    feed.items = list(found[first:])
    session.tick()
    return session


def go_to(session: Session, clock: tuple[int, int]) -> str:
    """Go to a (round, epoch); what the operator is told."""
    return follow(session, session.cursor.go_to(TimeTarget(clock=clock)))


def step(session: Session, by: int) -> str:
    return follow(session, session.cursor.step_by(by, "epoch"))


def follow(session: Session, message: str) -> str:
    """Until the cursor has arrived."""
    session.view.message = ""
    until(lambda: (session.tick(), not session.cursor.is_seeking)[1])
    return message or session.view.message


def shown_clock(session: Session) -> tuple[int, int]:
    ctx = session.shown_inputs().state.epoch_ctx
    return ctx.round, ctx.epoch


@in_loop
async def test_steps_cross_the_joining_both_ways(tmp_path: Path) -> None:
    path = written(tmp_path)
    app = OverwatchApp(live(lambda: Mirror(path)))
    async with app.run_test(size=SMALL) as pilot:
        assert await walk(app, pilot, "colon", *"go_to r4e1", "enter", *["comma"] * 3) == (3, 22)
        newer = sum(1 for e in events() if (e.ctx.round, e.ctx.epoch) > (3, 22))
        after = app.session.cursor.num_after
        assert newer <= after <= newer + 8, "what came with that epoch, after it"
        assert await walk(app, pilot, *["full_stop"] * 3) == (4, 1)
        assert app.session.cursor.is_held
        await walk(app, pilot, "colon", *"go_to start", "enter")
        assert app.session.shown_inputs().state.epoch is None
        assert await walk(app, pilot, "full_stop") == (1, 1)
        await walk(app, pilot, "comma")
        assert "no epoch before this moment: the run begins here" in shown(app)
        assert clock(app) == (1, 1), "where it stood"
        assert await walk(app, pilot, "0") == (5, 24)
        assert "FROZEN" not in shown(app)


def test_incidents_before_joining_are_stepped_to(tmp_path: Path) -> None:
    path = journal.write(tmp_path / EVENTS_FILE, rounds=5)
    session = live(lambda: Mirror(path), envs=16, joined=5)
    found = harness.events(rounds=5)
    began = [e for e in found if e.type == "incident" and e.data.change == "began"]
    newest = max(e.ts for e in began if e.ctx.round < 5)
    go_to(session, (5, 1))
    while (ts := session.shown_inputs().state.ts) > newest:
        follow(session, session.cursor.step_by(-1, "incident"))
        assert session.shown_inputs().state.ts < ts
    assert ts == newest
    follow(session, session.cursor.step_by(1, "incident"))
    assert session.shown_inputs().state.ts > ts


def test_journal_that_was_cut_says_where_it_begins(tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(i for i, event in enumerate(events()) if event.ctx.round == 2)
    path.write_bytes(b"".join(lines[first:]))
    session = live(lambda: Mirror(path))
    ends = "the journal no longer reaches back further"
    assert go_to(session, (1, 3)) == f"round 1 epoch 3 is not held: {ends}"
    assert not session.cursor.is_held
    assert go_to(session, (2, 1)) == ""
    assert shown_clock(session) == (2, 1)
    found = session.shown_inputs().state
    assert found.run == events()[0].data, "what the terminal knows of the boot"
    assert step(session, -1) == f"no epoch before this moment: {ends}"
    assert shown_clock(session) == (2, 1)
    path.write_bytes(b"".join(lines[-5:]))
    assert go_to(session, (4, 3)) == f"that moment is not held: {ends}"
    path.unlink()
    session = live(lambda: Mirror(path))
    assert "cannot read the journal" in go_to(session, (2, 1))


class Wire:
    """A daemon that answers `history` at once, as the server does, for as far as it holds."""

    def __init__(self, held_from: int = 1, found: Sequence[Event] = ()) -> None:
        self.held_from = held_from
        self._found = found or events()
        self.asked = 0
        self.is_mute = False

    def ask(self, method: str, params: dict[str, object], answered: Callable[[RequestOutcome], None]) -> None:
        assert method == "history"
        self.asked += 1
        if self.is_mute:
            error = RequestError("no_reply", "no answer within 10 s")
            answered(RequestOutcome("q", method, None, error, 10.0))
            return
        lines = [
            (e.seq, e.line)
            for e in self._found
            if e.stream == params["stream"] and self.held_from <= e.seq < params["before"]  # type: ignore[operator]
        ]
        kept = thin_lines(lines, types=(), interval_seconds=params["interval"], limit=params["bytes"])  # type: ignore[arg-type]
        result = {"first": kept.first, "more": bool(lines) and kept.first > lines[0][0]}
        answered(RequestOutcome("q", method, result, None, 0.01, tuple(kept.lines)))

    def mirror(self, num_bytes: int, max_bytes: int) -> WireMirror:
        return WireMirror(self.ask, max_bytes, num_bytes // ANSWERS)


def test_wire_is_asked_no_further_than_needed() -> None:
    wire = Wire()
    session = live(lambda: wire.mirror(280_000, 1 << 20))
    assert go_to(session, (4, 1)) + step(session, -1) + step(session, -1) == ""
    assert shown_clock(session) == (3, 23)
    asked = wire.asked
    assert step(session, -1) == ""
    assert wire.asked == asked
    assert go_to(session, (1, 3)) == ""
    assert shown_clock(session) == (1, 3)
    assert wire.asked > asked
    assert go_to(session, (3, 20)) == ""
    assert shown_clock(session) == (3, 20)


def test_fetched_moments_equal_the_recorded_ones(tmp_path: Path) -> None:
    wire = Wire()
    fetched = live(lambda: wire.mirror(100_000, 1 << 20))
    path = written(tmp_path)
    read = live(lambda: Mirror(path))
    tables = []
    for session in (fetched, read):
        go_to(session, (3, 20))
        drawn = pictures(session.shown_inputs().state)["run"].splitlines()
        tables.append(drawn[3:14])
    assert tables[0] == tables[1]
    assert "07" in "".join(tables[0])


@pytest.mark.parametrize("num_bytes", [1 << 20, 60_000], ids=["whole", "rare ones before"])
def test_what_is_fetched_keeps_each_streams_order(num_bytes: int) -> None:
    half = len(events()) // 2
    shifted = [replace(e, ts=e.ts - 600 * SECOND) for e in events()[half:]]
    lines = [replace(e, line=encode_event(e.seq, e.ts, e.ctx, e.data)) for e in (*events()[:half], *shifted)]
    newest = {stream: max(e.seq for e in lines if e.stream == stream) for stream in ("metric", "life")}
    past = Wire(found=lines).mirror(num_bytes, 1 << 20)
    until(lambda: past.fetch(newest))
    feed = past.read()
    numbers: dict[str, list[int]] = {"metric": [], "life": []}
    while (event := feed.peek()) is not None:
        numbers[event.stream].append(event.seq)
        feed.take()
    past.close()
    assert numbers["life"] == list(range(1, newest["life"] + 1))
    assert len(numbers["metric"]) > 20
    assert numbers["metric"] == sorted(numbers["metric"])
    assert (len(numbers["metric"]) == newest["metric"]) == (num_bytes == 1 << 20)


def test_end_of_what_is_fetched_is_said() -> None:
    wire = Wire()
    session = live(lambda: wire.mirror(10_000, 70_000))
    message = go_to(session, (1, 3))
    assert message.startswith("round 1 epoch 3 is not held: no more than 68 KiB are fetched")
    assert not session.cursor.is_held
    held = Wire(held_from=30)
    session = live(lambda: held.mirror(20_000, 1 << 20))
    assert "the journal no longer reaches back further" in go_to(session, (1, 3))
    held.is_mute = True
    session = live(lambda: held.mirror(20_000, 1 << 20))
    assert go_to(session, (1, 3)) == "what was before joining cannot be read: no answer within 10 s"


def test_journal_that_vanishes_can_be_tried_again(tmp_path: Path) -> None:
    path = written(tmp_path)

    class Vanishing(Mirror):
        num_opened = 0

        def read(self) -> ReplayFeed:
            feed = super().read()
            self.num_opened += 1
            if self.num_opened == 1:
                feed._events = broken()
            return feed

    def broken() -> Iterator[Event]:
        yield from events()[1:40]
        raise FolderError("cannot read the journal: No such file or directory")

    vanishing = Vanishing(path)
    session = live(lambda: vanishing)
    assert go_to(session, (1, 3)) == "cannot read the journal: No such file or directory"
    assert not session.cursor.is_held
    assert go_to(session, (1, 3)) == ""
    assert shown_clock(session) == (1, 3)


def test_freeze_stops_on_the_way_to_the_past(tmp_path: Path) -> None:
    path = written(tmp_path)
    session = live(lambda: Mirror(path))
    cursor = session.cursor
    cursor.go_to(TimeTarget(clock=(1, 3)))
    session.show_cursor()
    assert cursor.is_seeking
    assert session.view.seeking
    cursor.hold(session.state, session.feed.now())
    assert not cursor.is_seeking
    assert not cursor.is_held
    cursor.go_to(TimeTarget(clock=(1, 3)))
    until(lambda: (session.tick(), not cursor.is_seeking)[1])
    wanted = [e for e in events() if e.type == "epoch"][2]
    assert session.shown_inputs().state.epoch == wanted.data


@pytest.mark.parametrize("epoch_us", [600_000, 10_000_000], ids=["one keyframe", "several"])
def test_steps_go_on_where_received_events_have_gone(monkeypatch: pytest.MonkeyPatch, epoch_us: int) -> None:
    found = tuple(journal.events(envs=4, rounds=3, epoch_us=epoch_us))
    epochs = {(event.ctx.round, event.ctx.epoch): event for event in found if event.type == "epoch"}
    monkeypatch.setattr(mirror_module, "PART_BYTES", 30_000)
    wire = Wire(found=found)
    session = live(lambda: wire.mirror(1 << 20, 1 << 23), joined=2, found=found)
    cursor = session.cursor
    assert cursor.timeline.keyframes[0].state.position > 100, "what is tested here"

    def stands_at(clock: tuple[int, int]) -> bool:
        state = session.shown_inputs().state
        return shown_clock(session) == clock and state.epoch == epochs[clock].data

    border = sum(event.ts < cursor.timeline.keyframes[0].state.ts for event in epochs.values())
    way = list(epochs)[border - 4 : border + 4]
    assert len(way) > 5, "from what is fetched into what came"
    assert go_to(session, way[-1]) == ""
    for at in reversed(way[:-1]):
        assert step(session, -1) == ""
        assert stands_at(at)
    for at in way[1:]:
        assert step(session, 1) == ""
        assert stands_at(at)
    assert go_to(session, (1, 3)) == ""
    assert stands_at((1, 3))
    session.cursor.to_end()
    assert stands_at(list(epochs)[-1])


def test_past_is_read_again_where_received_events_go(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(journal.events(envs=4, rounds=4, epoch_us=10_000_000))
    half = next(i for i, event in enumerate(found) if event.ctx.round == 3)
    monkeypatch.setattr(mirror_module, "PART_BYTES", 30_000)
    wire = Wire(found=found)
    session = live(lambda: wire.mirror(1 << 20, 1 << 23), joined=2, found=found[:half])
    assert go_to(session, (1, 3)) == ""
    assert len(session.cursor.timelines) == 2
    assert isinstance(session.feed, ListFeed)
    session.feed.items = list(found[half:])
    session.tick()
    assert len(session.cursor.timelines) == 1, "what is tested here"
    assert shown_clock(session) == (1, 3)
    for by, clock_ in ((1, (1, 4)), (1, (1, 5)), (-1, (1, 4)), (-4, (1, 1))):
        step(session, by)
        assert shown_clock(session) == clock_


def test_received_lines_take_bounded_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mirror_module, "PART_BYTES", 30_000)
    monkeypatch.setattr(mirror_module, "make_temporary_folder", lambda _: tmp_path)
    mirror = Wire().mirror(20_000, 1 << 20)
    ends = [event for event in events() if mirror.append(event)]
    assert len(ends) > 3, "what is tested here"
    longest = max(len(event.line) for event in events()) + 1
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.jsonl")) <= 2 * (30_000 + longest)
    state = harness.folded(events()[: events().index(ends[-2]) + 1])
    reader = mirror.read_after(state)
    while (event := reader.peek()) is not None:
        state.fold(event)
        reader.take()
    assert state.numbers == harness.state(envs=8, rounds=5).numbers
    assert state.epoch == harness.state(envs=8, rounds=5).epoch
    mirror.close()


def test_disk_that_refuses_what_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mirror_module, "make_temporary_folder", refuse)
    session = live(lambda: Wire().mirror(20_000, 1 << 20))
    assert session.state.epoch == [event for event in events() if event.type == "epoch"][-1].data
    assert go_to(session, (4, 5)) == "what came since joining cannot be kept: No space left on device"


def test_journal_fills_what_a_reconnection_has_missed(tmp_path: Path) -> None:
    path = written(tmp_path)
    session = live(lambda: Mirror(path), found=[e for e in events() if e.ctx.round <= 4])
    assert isinstance(session.feed, ListFeed)
    missed = [event for event in events() if event.ctx.round == 5]
    session.feed.items = [Reset("1 event behind on metric"), *harness.snapshot_of(missed)]
    session.tick()
    session.feed.items = [harness.after_all(event) for event in missed[-1:]]
    session.tick()
    ts = next(event.ts for event in missed if event.type == "epoch" and event.ctx.epoch == 3)
    follow(session, session.cursor.go_to(TimeTarget(ts=ts)))
    found, wanted = session.shown_inputs().state, harness.folded(e for e in events() if e.ts <= ts)
    assert (found.numbers, found.epoch) == (wanted.numbers, wanted.epoch)


@in_loop
async def test_screen_takes_keys_while_the_past_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper_overwatch.overwatch_tui.session.SEEK_SECONDS", 0.0)
    path = written(tmp_path)
    app = OverwatchApp(live(lambda: Mirror(path)))
    async with app.run_test(size=SMALL) as pilot:
        app.session.cursor.go_to(TimeTarget(clock=(2, 5)))
        progress = set()
        for key in ("3", "4", "5"):
            await press(pilot, key)
            app.tick()
            progress.add(app.session.cursor.progress)
            assert app.session.cursor.is_seeking
            assert "SEEKING" in shown(app)
            assert app.session.view.name == VIEWS[int(key) - 1]
        assert len(progress) == 3, "it goes on meanwhile, and says how far it is"

"""What one viewer acknowledges and mutes, the others know: sessions on a real server."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.incidents import IncidentRecord
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.feed import LiveFeed
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from tests.e2e.terminal import Terminal
from tests.overwatch_tui.harness import in_loop
from tests.protocol.harness import until


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="esper-"))
    (folder / "run").mkdir(mode=0o700)
    monkeypatch.setenv("ESPER_HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    server = Server(RunFolder.claim("alpha"), hello={})
    server.start()
    server.set_state("TRAINING")
    yield server
    server.close()
    server.run.release()
    shutil.rmtree(folder)


@pytest.fixture
def join(server: Server) -> Iterator[Callable[..., Session]]:
    """A viewer that has taken in the snapshot."""
    made: list[Session] = []

    def join(*, read_only: bool = False) -> Session:
        found = Session(LiveFeed("alpha"), ViewState(read_only=read_only))
        made.append(found)
        until(lambda: found.tick() >= 0 and found.link.is_current and found.state.run_state is not None)
        return found

    yield join
    for session in made:
        session.close()


def explode(server: Server, severity: str = "warning") -> None:
    server.emitter.emit(
        ev.Anomaly(
            kind="gradient_exploding",
            source="env07",
            severity=severity,
            active=True,
            value=12.0,
            threshold=10.0,
        ),
        env=7,
    )


def record_of(session: Session) -> IncidentRecord | None:
    session.tick()
    return next(iter(session.state.incidents.ordered()), None)


def waits(session: Session) -> bool:
    session.tick()
    return bool(session.state.incidents.unseen(session.feed.now()))


@in_loop
async def test_what_one_viewer_acknowledges_no_other_waits_for(
    server: Server, join: Callable[..., Session]
) -> None:
    ann, ben = join(), join()
    explode(server)
    until(lambda: waits(ann) and waits(ben))
    app = OverwatchApp(ann)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("a")
        assert "for all viewers" in ann.view.message
    until(lambda: not waits(ben))
    late = join()
    until(lambda: record_of(late) is not None)
    for session in (ben, late):
        record = record_of(session)
        assert record is not None
        assert record.acknowledged is not None
        assert record.acknowledged.by.startswith("esper-tui")
    explode(server, "critical")
    until(lambda: waits(ann) and waits(ben) and waits(late))


@in_loop
async def test_a_mute_holds_for_all_and_any_viewer_ends_it(
    server: Server, join: Callable[..., Session]
) -> None:
    ann, ben = join(), join()
    explode(server)
    until(lambda: waits(ann) and waits(ben))
    for session, other, expected in ((ann, ben, False), (ben, ann, True)):
        app = OverwatchApp(session)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("2", "colon", *"mute", "enter")
            await pilot.pause()
        until(lambda other=other, expected=expected: waits(other) is expected)


@in_loop
async def test_who_only_watches_acknowledges_for_itself(server: Server, join: Callable[..., Session]) -> None:
    ann, guest = join(), join(read_only=True)
    explode(server)
    until(lambda: waits(ann) and waits(guest))
    app = OverwatchApp(guest)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("a")
        assert "here only" in guest.view.message
        assert not waits(guest)
    server.emitter.emit(ev.Mark(text="later", client="x"))
    until(lambda: waits(ann) and any(entry.tag == "MARK" for entry in ann.state.log))


def test_the_terminal_is_sent_a_notification(server: Server) -> None:
    command = [sys.executable, "-m", "esper_overwatch.overwatch_tui", "alpha", "--notify", "osc777"]
    outside_tmux = {name: value for name, value in os.environ.items() if name not in ("TMUX", "STY")}
    terminal = Terminal(command, outside_tmux)
    try:
        terminal.wait_for("TRAINING")
        terminal.wait_for("LIVE")  # what begins before that is known when the watch begins
        explode(server, "critical")
        terminal.wait_for("CRIT  exploding gradients: env07")
        expected = b"\x1b]777;notify;esper alpha;exploding gradients: env07\x1b\\\a"
        until(lambda: terminal.read(0.1) or expected in terminal.output)
        explode(server, "critical")
        server.set_state("PAUSED")
        terminal.wait_for("PAUSED")
        assert terminal.output.count(b"]777;") == 1, "once for each incident"
    finally:
        terminal.close()

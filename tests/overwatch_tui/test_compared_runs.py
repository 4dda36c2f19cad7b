"""`esper-tui a b`: curves of several runs over each other."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from textual.pilot import Pilot

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.cli import main
from esper_overwatch.overwatch_tui.model.courses import Shifted
from esper_overwatch.overwatch_tui.model.curves import ComparedRun
from esper_overwatch.overwatch_tui.model.time_series import SECOND, History
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source import curve_readers
from esper_overwatch.overwatch_tui.source.compared_runs import ComparedRuns
from esper_overwatch.overwatch_tui.source.compared_runs import open_compared as open_runs
from esper_overwatch.overwatch_tui.source.curve_readers import CurveReader, from_elsewhere
from esper_overwatch.overwatch_tui.source.feed import NoFeed
from esper_overwatch.overwatch_tui.source.recording import DAMAGED
from esper_overwatch.overwatch_tui.source.run_list import LocalMachine, RunList
from esper_overwatch.overwatch_tui.start import RunChoice, find_named
from esper_overwatch.protocol.codec.json_lines import decode_line
from esper_overwatch.protocol.errors import EsperError, RunNotFound, TunnelError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder
from tests.overwatch_tui.runs import PUBLISHED

from . import journal
from .harness import events, in_loop, session, state
from .test_app import LARGE, do, press, shown
from .test_runs import text_of

HOUR = 3_600 * SECOND


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))


def make(name: str, *, begin: int = journal.START, rounds: int = 6) -> Path:
    """A run of this machine; returns its journal."""
    run = journal.Run(rounds=rounds, begin=begin)
    run.make()
    with RunFolder.claim(name) as folder:
        folder.events.write_bytes(b"".join(line + b"\n" for line in run.lines))
        return folder.events


def open_compared(name: str, others: Sequence[str]) -> ComparedRuns:
    return open_runs(find_named([name, *others], daemon=None, thin=None))


def read_all(compared: ComparedRuns) -> None:
    while compared.step(10.0):
        pass


def test_a_shifted_course_is_the_same_at_another_time() -> None:
    history = History()
    for i in range(100):
        history.add(i * SECOND, float(i))
    there = history.buckets(99 * SECOND, 50 * SECOND, 10)
    assert Shifted(history, HOUR).buckets(99 * SECOND + HOUR, 50 * SECOND, 10) == there


def test_curves_are_those_that_the_terminal_itself_folds() -> None:
    make("alpha")
    make("beta", begin=journal.START - HOUR)
    compared = open_compared("alpha", ["beta"])
    read_all(compared)
    (other,) = compared.others
    assert compared.watched.begin - other.run.begin == HOUR
    mine, theirs = state().curves.histories.get("accuracy/7"), other.run.curves.histories.get("accuracy/7")
    assert mine is not None
    assert theirs is not None
    at = mine.last_ts
    assert Shifted(theirs, HOUR).buckets(at, 60 * SECOND, 60) == mine.buckets(at, 60 * SECOND, 60)


def test_what_a_live_journal_gets_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    path = make("alpha", rounds=1)
    make("beta")
    compared = open_compared("beta", ["alpha"])
    read_all(compared)
    (other,) = compared.others
    longer = journal.Run(rounds=2)
    longer.make()
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"".join(line + b"\n" for line in [*lines, *longer.lines[len(lines) :]]))
    assert not compared.step(1.0), "not before it is time"
    monkeypatch.setattr(curve_readers, "AGAIN_SECONDS", 0.0)
    assert compared.step(10.0)
    history, once = (
        other.run.curves.histories.get("accuracy/7"),
        state(16, 2).curves.histories.get("accuracy/7"),
    )
    assert history is not None
    assert once is not None
    span = (once.last_ts, 60 * SECOND, 60)
    assert history.buckets(*span) == once.buckets(*span)


def test_journal_that_vanishes_is_told_others_are_read() -> None:
    make("alpha")
    gone = make("beta")
    make("gamma")
    compared = open_compared("alpha", ["beta", "gamma"])
    shutil.rmtree(gone.parent)
    read_all(compared)
    assert compared.notice.startswith("beta is no longer read: cannot read the journal")
    compared.notice = ""
    assert compared.others[1].run.curves.histories.get("accuracy/7") is not None
    compared.step(1.0)
    assert compared.notice == "", "told once"


class Connection:
    """Sends lines of a run of another machine, then ends, or breaks."""

    def __init__(self, lines: list[bytes], *, was_cut: bool) -> None:
        self._lines, self.was_cut = lines, was_cut
        self.is_stopped = False

    @property
    def ended(self) -> bool:
        return not self._lines

    def take_lines(self) -> list[bytes]:
        taken, self._lines = self._lines[:100], self._lines[100:]
        return taken

    def check(self, *, good: tuple[int, ...]) -> None:
        assert good == (0, DAMAGED)
        if self.was_cut:
            raise TunnelError("box cannot be reached: Broken pipe")

    def stop(self) -> None:
        self.is_stopped = True


def test_run_elsewhere_is_read_anew_after_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [event.line for event in events(16, 1)]
    connections = [Connection(lines[:200], was_cut=True), Connection(lines, was_cut=False)]
    run, left = ComparedRun("b", "box:beta", journal.START), list(connections)
    coming = from_elsewhere(run, lambda: left.pop(0))  # type: ignore[arg-type, return-value]
    reader = CurveReader(run, coming)
    assert reader.step(10.0)
    with pytest.raises(TunnelError, match="Broken pipe"):
        reader.step(10.0)
    assert not reader.is_over
    assert connections[0].is_stopped
    assert not reader.step(10.0), "not before it is time"
    monkeypatch.setattr(curve_readers, "AGAIN_SECONDS", 0.0)
    reader.read_whole()
    once = state(16, 1).curves.histories.get("accuracy/7")
    assert once is not None
    found = reader.run.curves.histories["accuracy/7"]._rings[0]
    assert (found.index, found.count) == (once._rings[0].index, once._rings[0].count), "each value once"
    assert connections[1].is_stopped


async def wait_until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end, text_of(pilot.app)  # type: ignore[arg-type]
        await pilot.pause(0.05)


def key_of(choice: RunChoice, name: str) -> tuple[str, str]:
    return next((machine.host, run.id) for machine, run in choice.runs.entries if run.name == name)


def compared_app(*others: str) -> OverwatchApp:
    choice = RunChoice(compared=open_compared("alpha", others))
    read_all(choice.compared)
    return OverwatchApp(session(events()), choice=choice)


@in_loop
async def test_runs_are_told_by_letter_colour_and_value() -> None:
    make("alpha")
    make("beta", begin=journal.START - HOUR, rounds=3)
    app = compared_app("beta")
    async with app.run_test(size=LARGE) as pilot:
        assert "charts are laid over those of beta" in shown(app)
        await do(pilot, "glyphs ascii")
        await press(pilot, "3", "enter")
        text = shown(app, "box-pins")
        assert re.search(r" a alpha +b beta", text)
        assert "over runs" in text
        rows = [line[7:] for line in text.splitlines()[3:-1]]
        drawn = "".join(rows)
        assert drawn.count("a") > 10
        assert drawn.count("b") > 0, "the same by epoch: it lies under the other"
        assert "by epoch" in text
        await do(pilot, "axis")
        assert "rounds" in shown(app, "box-pins")
        await do(pilot, "axis")
        text = shown(app, "box-pins")
        assert "since begin" in text
        assert "".join(line[7:] for line in text.splitlines()[3:-1]).count("b") > 5
        await do(pilot, "overlay", "overlay")
        assert "over all" in shown(app, "box-pins")
        await do(pilot, "overlay")
        assert "over runs" in shown(app, "box-pins")


@in_loop
async def test_a_curve_that_one_run_lacks_is_said() -> None:
    make("alpha")
    run = journal.Run()
    run.emit(ev.RunStarted(**PUBLISHED))
    with RunFolder.claim("other-kind") as folder:
        folder.events.write_bytes(b"".join(line + b"\n" for line in run.lines))
    app = compared_app("other-kind")
    async with app.run_test(size=LARGE) as pilot:
        await press(pilot, "3", "enter")
        assert re.search(r" b --", shown(app, "box-pins"))


def test_wrong_names_end_in_one_line() -> None:
    for name in ("alpha", "beta", *(f"run{i}" for i in range(6))):
        make(name, rounds=1)
    with pytest.raises(RunNotFound):
        open_compared("alpha", ["nowhere"])
    with pytest.raises(EsperError, match="alpha is named twice"):
        open_compared("alpha", ["beta", "alpha"])
    with pytest.raises(EsperError, match="at most 6"):
        open_compared("alpha", [f"run{i}" for i in range(6)])
    result = CliRunner().invoke(main, ("tcp://127.0.0.1:1", "beta"))
    assert result.exit_code == 2
    assert "leave out" in result.output
    with pytest.raises(RunNotFound, match="names no run"):
        open_compared("alpha", ["ssh://box"])


def test_a_damaged_journal_leaves_a_hole() -> None:
    path = make("alpha", rounds=1)
    make("beta", rounds=1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b"\xff not a line\n", *lines[6:]]))
    compared = open_compared("beta", ["alpha"])
    read_all(compared)
    (other,) = compared.others
    assert other.run.curves.histories.get("accuracy/3") is not None


@in_loop
async def test_compared_run_that_is_deleted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    make("alpha")
    gone = make("beta")
    app = compared_app("beta")
    async with app.run_test(size=LARGE) as pilot:
        shutil.rmtree(gone.parent)
        monkeypatch.setattr(curve_readers, "AGAIN_SECONDS", 0.0)
        app._read_compared()
        await pilot.pause()
        assert "beta is no longer read" in shown(app)


def test_once_prints_what_differs_and_last_values() -> None:
    for name, rate in (("slow", 0.1), ("fast", 0.1), ("other", 0.2)):
        run = journal.Run()
        run.emit(ev.RunStarted(**PUBLISHED | {"config": {"net": {"rate": rate}, "batch": 32}}))
        for step in range(50):
            run.emit(ev.Scalars(step=step, values={"loss": rate / (step + 1)}), after=round(rate * SECOND))
        with RunFolder.claim(name) as folder:
            folder.events.write_bytes(b"".join(line + b"\n" for line in run.lines))
    table = CliRunner().invoke(main, ["slow", "fast", "other", "--once"]).output
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["a", "slow", "b", "fast", "c", "other"]
    assert ["net.rate", "0.1", "0.1", "0.2"] in rows
    assert ["steps", "49", "49", "49"] in rows
    assert ["loss", "0.002", "0.002", "0.004"] in rows
    assert "batch" not in table
    found = json.loads(CliRunner().invoke(main, ["slow", "other", "--once", "--json"]).output)
    assert found["options"] == {"net.rate": ["0.1", "0.2"]}
    assert "all agree" in CliRunner().invoke(main, ["slow", "fast", "--once"]).output


@in_loop
async def test_marked_runs_of_the_list_are_compared() -> None:
    make("alpha")
    make("beta", begin=journal.START - HOUR, rounds=3)
    make("gamma")
    choice = RunChoice(RunList([LocalMachine()]), is_start=True)
    app = OverwatchApp(Session(NoFeed(), ViewState()), choice=choice)
    async with app.run_test(size=LARGE) as pilot:
        await wait_until(pilot, lambda: "gamma" in text_of(app))
        await press(pilot, "c")
        assert "Space marks a run" in text_of(app)
        choice.view.select("runs", key_of(choice, "beta"))
        await press(pilot, "space")
        choice.view.select("runs", key_of(choice, "gamma"))
        await press(pilot, "space", "space")
        choice.view.select("runs", key_of(choice, "alpha"))
        await press(pilot, "space")
        assert [line[2:].split()[:2] for line in text_of(app).split("\n")[3:6]].count(["a", "beta"]) == 1
        await press(pilot, "c")
        await wait_until(pilot, lambda: re.search(r"steps +72 +144", shown(app, "box-pins")))
        text = shown(app, "box-pins")
        assert re.search(r"by epoch +a beta +b alpha", text)
        assert re.search(r"return.mean +[\d.]+ +[\d.]+", text)
        assert "gamma" not in text
        assert "return of a round" in text
        await press(pilot, "escape", "R")
        assert "b alpha" in text_of(app), "the marks stay"
        await press(pilot, "enter")
        assert not choice.compared.others, "one that is opened is alone"
        assert app.session.view.charts.overlay == "off"


def test_configuration_that_a_loop_has_changed_is_compared() -> None:
    run = ComparedRun("a", "x", journal.START)
    made = journal.Run()
    made.emit(ev.RunStarted(**PUBLISHED | {"config": {"rate": 0.1}}))
    made.emit(ev.RunConfigured(config={"rate": 0.2}))
    for line in made.lines:
        run.fold(decode_line(line))
    assert run.config == {"rate": 0.2}


@in_loop
async def test_watched_run_that_was_joined_late_is_read_whole() -> None:
    make("alpha")
    make("beta")
    late = [event for event in events() if event.ctx.round >= 6]
    found = [
        (machine, replace(run, live=True))
        for machine, run in find_named(["alpha", "beta"], daemon=None, thin=None)
    ]
    choice = RunChoice(compared=open_runs(found))
    app = OverwatchApp(session(late), choice=choice)
    async with app.run_test(size=LARGE) as pilot:
        read_all(choice.compared)
        await press(pilot, "3", "enter")
        assert "150 epochs" in shown(app, "box-pins"), "from the first one on"
        assert re.search(r"steps +144 +144", shown(app, "box-pins"))

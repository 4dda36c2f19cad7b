"""The list of runs: what it shows, what its keys do, and where `esper-tui` begins."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from textual.events import MouseScrollDown

from esper_overwatch.overwatch_tui import start
from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.filters import parse_filter
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.run_rows import (
    FIELDS,
    RunListInputs,
    format_age,
    run_list_lines,
    spark_of,
)
from esper_overwatch.overwatch_tui.render.theme import ASCII, UNICODE
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.input_line import InputLine
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from esper_overwatch.overwatch_tui.screens.main import MainScreen
from esper_overwatch.overwatch_tui.screens.runs import RunsScreen
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.feed import NoFeed
from esper_overwatch.overwatch_tui.source.run_list import LocalMachine, RunList
from esper_overwatch.overwatch_tui.start import RunChoice, open_first
from esper_overwatch.protocol.catalogue.about import edit_about
from esper_overwatch.protocol.errors import RunNotFound
from tests.e2e.terminal import Terminal
from tests.protocol.harness import until

from .harness import ListFeed, in_loop
from .runs import FakeMachine, listed, make_run


def drawn(runs: RunList, width: int = 80, height: int = 24, view: ViewState | None = None) -> str:
    runs.poll()
    now = max([run.overview.ts for _, run in runs.entries if run.overview], default=0)
    inputs = RunListInputs(runs, view or ViewState(), now)
    lines = run_list_lines(inputs, width, height)
    assert len(lines) == height
    assert {len(plain(line)) for line in lines} <= {0, width}
    return "\n".join(plain(line).rstrip() for line in lines)


RUNS = [
    listed("beta", "DIED", critical=2, warning=1),
    listed("loop", kind="published", signal="loss", step=1500, values=(2.0, 1.0, 0.5)),
    listed("alpha", accuracy=0.714, rate=12.34),
    listed("gamma", "FAILED", error="ValueError: boom", exit_code=11),
]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
def test_every_run_has_a_row_with_its_figures(width: int, height: int) -> None:
    text = drawn(RunList([FakeMachine(RUNS)]), width, height)
    rows = {line[2:].split()[0]: line for line in text.split("\n")[3:7]}
    assert list(rows)[:2] == ["alpha", "loop"], "the live ones first"
    assert all(
        word in rows["alpha"] for word in ("TRAINING", "3/10", "71.4", "+4.00", "▁", "█", "+12.3", "1h")
    )
    assert all(word in rows["loop"] for word in ("step 1.5K", "0.5", " -- "))
    assert "DIED" in rows["beta"]
    assert "2! 1?" in rows["beta"]
    assert "2 live  2 ended  2 died or failed" in text


def test_selected_run_says_why_and_what_to_type() -> None:
    runs, view = RunList([FakeMachine(RUNS)]), ViewState()
    drawn(runs, view=view)
    view.select("runs", ("", "id-gamma"))
    text = drawn(runs, view=view)
    assert "FAILED" in text
    assert "ValueError: boom" in text
    assert "Enter opens its recording" in text
    assert "esper-daemon doctor gamma" in text
    assert "esper-daemon start --detach --resume gamma" in text
    view.select("runs", ("", "id-loop"))
    assert "Enter follows it" in drawn(runs, view=view)
    done = listed("zeta", "STOPPED", done=10)
    assert done.next_commands == ["esper-daemon start --detach --resume zeta --rounds 20"]


def test_machines_are_named_and_their_problems_told() -> None:
    one = FakeMachine([listed("alpha")], host="box")
    other = FakeMachine(None, host="crate", problem="crate cannot be reached: no route")
    text = drawn(RunList([one, other]))
    assert "HOST" in text
    assert " box " in text
    assert "TRAINING  " in text
    assert "!!  crate  cannot be reached: no route" in text


def test_list_shows_what_was_known_before_it() -> None:
    """Of a machine that was asked for one run by its name, and has nothing new to tell since."""
    asked = FakeMachine([listed("alpha"), listed("beta", "STOPPED")], host="box")
    asked.poll(batch=False)
    runs = RunList([asked])
    assert runs.poll()
    assert [run.name for _, run in runs.entries] == ["alpha", "beta"]
    assert not runs.poll()


def test_machine_that_died_is_marked_with_its_age() -> None:
    one = FakeMachine([listed("alpha"), listed("beta", "STOPPED")], host="box", silence=7)
    text = drawn(RunList([one]))
    assert "!!  box  last heard 7s ago  does not answer" in text
    assert "1 machine silent" in text
    assert "TRAINING?" in text
    assert "STOPPED?" not in text, "what has ended stays so"
    one.silence = 7200
    assert "last heard 2h ago" in drawn(RunList([one]))


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "--"),
        (0.0, "flat"),
        (12.34, "+12.3"),
        (-0.0123, "-0.012"),
        (54_321.0, "+54.3K"),
        (-1e300, "-1e+300"),
    ],
)
def test_rate_fits_into_its_column(rate: float | None, text: str) -> None:
    (row,) = [
        line for line in drawn(RunList([FakeMachine([listed("x", rate=rate)])])).split("\n") if " x " in line
    ][:1]
    assert f" {text} ." in row


def test_a_long_list_scrolls_and_says_what_is_below() -> None:
    runs = RunList([FakeMachine([listed(f"run-{i:02d}", "STOPPED") for i in range(60)])])
    view = ViewState()
    assert "45 more below" in drawn(runs, view=view)
    rows = [(machine.host, run.id) for machine, run in runs.entries]
    view.select("runs", rows[-1])
    text = drawn(runs, view=view)
    assert runs.entries[-1][1].name in text
    assert "more below" not in text


def test_no_run_and_no_answer_say_what_to_do() -> None:
    assert "esper-daemon start --detach" in drawn(RunList([FakeMachine([])]))
    assert "asking ..." in drawn(RunList([FakeMachine(None)]))


def test_hostile_names_and_figures_stay_in_their_columns() -> None:
    wild = listed("a" * 64, "X\x1b[2J" * 5, values=(1e300, -1e300, 1e300), accuracy=1e9, rounds=10**12)
    text = drawn(RunList([FakeMachine([wild, listed("n\x1b]0;x\x07")])]))
    assert "\x1b" not in text


def test_ascii_list_is_readable_without_colour() -> None:
    text = drawn(RunList([FakeMachine(RUNS)]), view=ViewState(glyphs=ASCII))
    assert text.isascii()
    assert "> alpha" in text


def test_ages_and_courses_in_few_characters() -> None:
    assert [format_age(s) for s in (5, 61, 3 * 3600, 9 * 86_400)] == ["now", "1m", "3h", "9d"]
    assert spark_of((1.0, 2.0, 3.0), 2, UNICODE) == "▁█"
    assert spark_of((5.0, 5.0), 9, ASCII) == "__"
    assert spark_of((), 5, ASCII) == ""


def text_of(app: OverwatchApp) -> str:

    panels = [panel for panel in app.screen.query(LinePanel) if panel.display]
    return "\n".join(plain(line) for panel in panels for line in panel.lines)


def started(machine: FakeMachine, **choice: bool) -> OverwatchApp:
    made = RunChoice(RunList([machine]), is_start=True, **choice)
    return OverwatchApp(Session(NoFeed(), ViewState()), choice=made)


@in_loop
async def test_open_a_run_return_and_open_another() -> None:
    machine = FakeMachine(RUNS)
    app = started(machine)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.3)
        assert isinstance(app.screen, RunsScreen)
        await pilot.press("escape")
        assert "no run is open yet" in text_of(app)
        await pilot.press("enter")
        await pilot.pause(0.2)
        assert machine.opened == ["alpha"]
        first = machine.feed
        assert "[1 Run]" in text_of(app)
        assert not app.session.view.read_only
        await pilot.press("R")
        await pilot.pause(0.3)
        assert "▶ alpha" in text_of(app), "the run that is watched is selected"
        assert "R back" in text_of(app).replace("  ", " ")
        await pilot.press("escape")
        assert "[1 Run]" in text_of(app)
        await pilot.press("R", "G", "enter")
        await pilot.pause(0.2)
        assert machine.opened[0] == "alpha"
        assert machine.opened[-1] in ("beta", "gamma")
        assert first.closed
        assert app.session.view.read_only, "a recording takes no commands"
        assert not machine.feed.closed


@in_loop
async def test_list_follows_what_happens_while_it_is_open() -> None:
    machine = FakeMachine(RUNS[:1])
    app = started(machine)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.3)
        machine.runs = [*RUNS[:1], listed("new-one")]
        await pilot.pause(0.4)
        assert "new-one" in text_of(app)
        assert "▶ beta" in text_of(app), "the selection stays with its run"


@in_loop
async def test_nothing_is_drawn_behind_the_list() -> None:
    machine = FakeMachine(RUNS)
    app = started(machine)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.3)
        await pilot.press("enter")
        await pilot.pause(0.2)
        await pilot.press("R")
        main = app.screen_stack[0]
        assert isinstance(main, MainScreen)
        before = [panel.lines for panel in main.query(LinePanel)]
        machine.feed.link["age_seconds"] = 9.9
        app.tick()
        app.paint()
        assert [panel.lines for panel in main.query(LinePanel)] == before
        await pilot.press("escape")
        await pilot.pause(0.2)
        assert [panel.lines for panel in main.query(LinePanel)] != before


@in_loop
async def test_a_run_that_cannot_be_opened_is_told() -> None:
    class Refusing(FakeMachine):
        def open(self, run: object) -> ListFeed:
            raise RunNotFound("it is gone")

    app = started(Refusing(RUNS))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.3)
        await pilot.press("enter")
        await pilot.pause(0.2)
        assert "alpha cannot be opened: it is gone" in text_of(app)


def test_local_machine_tells_tags_that_a_filter_finds(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        make_run(tmp_path, name, exit_code=0 if name == "alpha" else None)
    edit_about(tmp_path / "runs" / "beta", lambda about: about.tagged(["fast lane"], []))
    runs, view = RunList([LocalMachine(tmp_path)]), ViewState()
    until(runs.poll)
    assert {run.name: run.state for _, run in runs.entries} == {"alpha": "STOPPED", "beta": "DIED"}
    view.filters["runs"] = parse_filter("tag:lane st:died", FIELDS)
    text = drawn(runs, view=view)
    assert "alpha" not in text
    assert "fast lane" in text


@pytest.mark.slow
def test_start_screen_on_a_real_terminal(tmp_path: Path) -> None:
    make_run(tmp_path, "alpha", exit_code=0)
    make_run(tmp_path, "beta")
    environment = {**os.environ, "ESPER_HOME": str(tmp_path)}
    terminal = Terminal([sys.executable, "-m", "esper_overwatch.overwatch_tui"], environment)
    try:
        text = terminal.wait_for("2 ended")
        assert "1 died" in text
        terminal.press("G")
        terminal.press("g")
        terminal.wait_for("opens its recording")
        terminal.press("\r")
        terminal.wait_for("ENDED")
        terminal.press("R")
        terminal.wait_for("RUNS")
        terminal.press("\x1b")
        terminal.wait_for("ENDED")
        terminal.press("q")
        assert terminal.process.wait(300) == 0
    finally:
        terminal.close()


@in_loop
async def test_list_is_filtered_and_takes_clicks_and_wheel() -> None:
    machine = FakeMachine(RUNS)
    app = started(machine)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.3)
        await pilot.press("slash", *"sta:x", "enter")
        assert isinstance(app.screen, InputLine), "there is no such field"
        await pilot.press("ctrl+u", *"crit>1", "enter")
        assert "/crit>1  shows 1" in text_of(app)
        assert "beta" in text_of(app)
        assert "gamma" not in text_of(app)
        await pilot.press("escape")
        assert "gamma" in text_of(app)
        await pilot.press("slash", *"nobody", "enter")
        assert "no run passes /nobody" in text_of(app)
        await pilot.press("enter", "j", "escape")
        rows = [line[2:].split(" ")[0] for line in text_of(app).split("\n")[3:7]]
        await pilot.click(offset=(5, 5))
        assert f"▶ {rows[2]}" in text_of(app)
        app.screen.post_message(MouseScrollDown(None, 5, 5, 0, 1, 0, False, False, False))
        await pilot.pause()
        assert f"▶ {rows[3]}" in text_of(app)
        await pilot.click(offset=(5, 30))
        assert machine.opened == []
        await pilot.click(offset=(5, 6))
        await pilot.pause(0.2)
        assert machine.opened == [rows[3]]


@pytest.mark.parametrize(
    ("wanted", "opened"), [("beta", ["beta"]), ("bet", ["beta"]), ("id-gamma", ["gamma"])]
)
def test_ended_run_of_another_machine_is_fetched(wanted: str, opened: list[str]) -> None:
    machine = FakeMachine(RUNS, host="me@box")
    choice = RunChoice(RunList([machine]))
    assert open_first(f"ssh://me@box/{wanted}", choice, daemon=None, thin=None) is machine.feed
    assert machine.opened == opened


def test_live_or_unknown_run_elsewhere_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str | None] = []
    monkeypatch.setattr(start, "LiveFeed", lambda address, **_: followed.append(address))
    machine = FakeMachine(RUNS, host="me@box")
    for name in ("alpha", "nobody"):
        open_first(f"ssh://me@box/{name}", RunChoice(RunList([machine])), daemon=None, thin=None)
    assert followed == ["ssh://me@box/alpha", "ssh://me@box/nobody"]
    assert machine.opened == []

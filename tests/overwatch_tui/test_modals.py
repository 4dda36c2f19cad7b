"""Every screen and line above the main one: Esc closes it, it fits or scrolls, and its keys stay in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key, Paste
from textual.pilot import Pilot

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.screens.box import ConfirmScreen
from esper_overwatch.overwatch_tui.screens.input_line import InputLine
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from esper_overwatch.overwatch_tui.screens.page import AnswerScreen
from esper_overwatch.overwatch_tui.screens.palette import PaletteScreen
from esper_overwatch.overwatch_tui.screens.runs import RunsScreen
from esper_overwatch.overwatch_tui.settings.sources import Settings
from esper_overwatch.overwatch_tui.source.run_list import RunList
from esper_overwatch.overwatch_tui.start import RunChoice

from .harness import ListFeed, events, in_loop, session, type_keys
from .runs import FakeMachine, listed
from .scenes import published_events
from .test_app import DOCUMENTED, SMALL, press, press_as_read, within

TYPED = "3sTqE0+,[]RmvAXWc"
"""Characters that all mean something on the main screen."""
COMMANDS = {
    **{f"command{i:02d}": {"help": "a word " * 80} for i in range(30)},
    "zlast": {"help": "h " * 300, "parameters": {f"value{i:02d}": {"type": "str"} for i in range(30)}},
}


@dataclass(frozen=True)
class Modal:
    """What opens it, and what it is."""

    opens: tuple[str, ...]
    screen: type[Any]
    has_own: frozenset[str] = frozenset()
    """Keys that do something in it, or close it."""
    is_published: bool = False
    depth: int = 1
    """So many screens above the main one."""


PAGE = frozenset({"j", "k", "q", "g", "G", "question_mark", "f1", "enter", "escape", "space"})
LINE = frozenset({"enter", "escape", "ctrl+c"})
LIST = frozenset({"q", "ctrl+c", "enter", "escape", "R", "slash", "question_mark", "f1"})
MODALS = {
    "help": Modal(("question_mark",), PaletteScreen, LINE),
    "help by F1": Modal(("f1",), PaletteScreen, LINE),
    "filter": Modal(("slash",), InputLine, LINE),
    "palette": Modal(("colon",), PaletteScreen, LINE),
    "moment": Modal(("colon", *"go_to "), PaletteScreen, LINE),
    "answer": Modal(("colon", *"clients", "enter"), AnswerScreen, PAGE),
    "run's name": Modal(("ctrl+x",), InputLine, LINE),
    "undo": Modal(("n", "U"), ConfirmScreen, frozenset((*DOCUMENTED, *TYPED))),
    "question": Modal(("C",), ConfirmScreen, frozenset((*DOCUMENTED, *TYPED))),
    "list of runs": Modal(("R",), RunsScreen, LIST),
    "filter of runs": Modal(("R", "slash"), InputLine, LINE, depth=2),
    "own commands": Modal(("colon", *"comm"), PaletteScreen, LINE, is_published=True),
    "parameters": Modal(("colon", *"zlast "), PaletteScreen, LINE, is_published=True),
}
"""By name; incidents, evaluations and charts in detail are views, not screens of their own."""


@contextmanager
def opened(folder: Path, *, is_published: bool) -> Iterator[OverwatchApp]:
    """An app of a run of either kind; what it writes goes into the folder."""
    found = published_events() if is_published else events()
    runs = [listed(f"run{i:02d}") for i in range(40)]
    with within(folder):
        app = OverwatchApp(
            session(found),
            choice=RunChoice(RunList([FakeMachine(runs)])),
            settings=Settings(folder / "tui.toml"),
        )
        app.session.state.loop_commands = COMMANDS
        yield app


async def _open(app: OverwatchApp, pilot: Pilot[None], modal: Modal) -> None:
    await press(pilot, "1", *modal.opens)
    feed = app.session.feed
    assert isinstance(feed, ListFeed)
    if modal.screen is AnswerScreen:
        feed.answer({"clients": [{"name": f"viewer{i}"} for i in range(40)]})
        app.tick()
        await pilot.pause()
    if isinstance(app.screen, RunsScreen):
        app.choice.runs.poll()
        app.screen.draw()
    assert isinstance(app.screen, modal.screen), app.screen
    assert len(app.screen_stack) == 1 + modal.depth


def _known(app: OverwatchApp) -> tuple[object, ...]:
    """What a key that leaks would change."""
    view = app.session.view
    chosen = (view.name, view.sort, view.is_reversed, view.is_frozen, view.detail, view.window, view.rate)
    feed = app.session.feed
    assert isinstance(feed, ListFeed)
    waiting = app.session.state.incidents.unseen(feed.now())
    sent = [method for _, method, _ in feed.requests if method != "status"]
    pins = list(view.charts.pins)
    return (
        *chosen,
        dict(view.filters),
        view.glyphs.name,
        app.palette.name,
        len(waiting),
        sent,
        pins,
        app._exit,
    )


def _of_kind(*, is_published: bool) -> dict[str, Modal]:
    return {name: modal for name, modal in MODALS.items() if modal.is_published == is_published}


@pytest.mark.slow
@pytest.mark.parametrize("is_published", [False, True])
@in_loop
async def test_every_modal_fits_and_closes_with_escape(tmp_path: Path, is_published: bool) -> None:
    with opened(tmp_path, is_published=is_published) as app:
        async with app.run_test(size=SMALL) as pilot:
            for name, modal in _of_kind(is_published=is_published).items():
                await _open(app, pilot, modal)
                (panel,) = app.screen.query(LinePanel)
                assert panel.region.bottom <= SMALL[1], name
                assert panel.region.right <= SMALL[0], name
                assert len(panel.lines) <= panel.size.height, name
                for left in reversed(range(modal.depth)):
                    await press(pilot, "escape")
                    assert len(app.screen_stack) == 1 + left, name
            assert app.is_running


@pytest.mark.slow
@pytest.mark.parametrize("is_published", [False, True])
@in_loop
async def test_no_key_of_a_modal_reaches_the_main_screen(tmp_path: Path, is_published: bool) -> None:
    with opened(tmp_path, is_published=is_published) as app:
        async with app.run_test(size=SMALL) as pilot:
            for name, modal in _of_kind(is_published=is_published).items():
                await _open(app, pilot, modal)
                before = _known(app)
                leaving = {*modal.has_own, "ctrl+z", "ctrl+c"}
                await type_keys(app, *(key for key in (*DOCUMENTED, *TYPED) if key not in leaving))
                await pilot.pause()
                assert isinstance(app.screen, modal.screen), name
                assert _known(app) == before, name
                while len(app.screen_stack) > 1:
                    await press(pilot, "escape")
                assert _known(app) == before, name


async def _type_at_once(app: OverwatchApp, pilot: Pilot[None], *names: str) -> None:
    """As a terminal that delivers several keys in one piece."""
    for name in names:
        app.post_message(Key(name, name if len(name) == 1 else None))
    for _ in range(5):
        await pilot.pause()


@in_loop
async def test_keys_typed_at_once_reach_what_they_open(tmp_path: Path) -> None:
    with opened(tmp_path, is_published=False) as app:
        async with app.run_test(size=SMALL) as pilot:
            await _type_at_once(app, pilot, "colon", *"clients")
            assert isinstance(app.screen, InputLine)
            assert app.screen.text == "clients"
            await _type_at_once(app, pilot, "escape")
            await _type_at_once(app, pilot, "slash", *"st:roll", "enter")
            assert app.session.view.filters["envs"].text == "st:roll"


@in_loop
async def test_no_key_typed_before_a_question_answers_it(tmp_path: Path) -> None:
    with opened(tmp_path, is_published=False) as app:
        async with app.run_test(size=SMALL) as pilot:
            before = _known(app)
            await _type_at_once(app, pilot, "T", "y")
            assert isinstance(app.screen, ConfirmScreen)
            assert _known(app) == before
            await press(pilot, "y")
            assert _known(app) != before


@in_loop
async def test_keys_typed_behind_a_box_reach_the_main_screen(tmp_path: Path) -> None:
    with opened(tmp_path, is_published=False) as app:
        async with app.run_test(size=SMALL) as pilot:
            for keys in (("slash", *"st:roll", "enter"), ("question_mark", "escape")):
                await press(pilot, "1")
                await _type_at_once(app, pilot, *keys, "4")
                assert (len(app.screen_stack), app.session.view.name) == (1, "seeds"), keys


@in_loop
async def test_escape_and_digit_at_once_close_and_show_a_view(tmp_path: Path) -> None:
    with opened(tmp_path, is_published=False) as app:
        async with app.run_test(size=SMALL) as pilot:
            for name in ("help", "filter", "question", "palette", "list of runs"):
                await _open(app, pilot, MODALS[name])
                await press_as_read(app, pilot, "\x1b4")
                for _ in range(5):
                    await pilot.pause()
                assert (len(app.screen_stack), app.session.view.name) == (1, "seeds"), name
            before = _known(app)
            await _open(app, pilot, MODALS["question"])
            await press_as_read(app, pilot, "\x1b1")
            assert _known(app)[1:] == before[1:], "a command was sent"
            await _open(app, pilot, MODALS["filter"])
            await press(pilot, "alt+b")
            assert isinstance(app.screen, InputLine), "an editor's key leaves no text"


BOXES = ("question", "undo")


@in_loop
async def test_box_has_its_frame_on_any_terminal(tmp_path: Path) -> None:
    with opened(tmp_path, is_published=False) as app:
        async with app.run_test(size=SMALL) as pilot:
            for name in BOXES:
                await _open(app, pilot, MODALS[name])
                for size in ((60, 20), (24, 9)):
                    await pilot.resize_terminal(*size)
                    await pilot.pause()
                    (panel,) = app.screen.query(LinePanel)
                    assert (panel.region.width, panel.region.right <= size[0]) == (size[0], True), name
                    assert panel.region.bottom <= size[1], name
                    first, *rows, last = _shown(app)
                    assert first[0] + first[-1] + last[0] + last[-1] == "╭╮╰╯", name
                    assert {row[0] + row[-1] for row in rows} == {"││"}, name
                for size in ((11, 5), (7, 3), (4, 2), (1, 1), (60, 20)):
                    await pilot.resize_terminal(*size)
                    await pilot.pause()
                    assert {len(row) for row in _shown(app)} == {size[0]}, (name, size)
                await pilot.resize_terminal(*SMALL)
                while len(app.screen_stack) > 1:
                    await press(pilot, "escape")


def _shown(app: OverwatchApp) -> list[str]:
    return [plain(line) for panel in app.screen.query(LinePanel) for line in panel.lines]


SCROLLED = {
    "help": (("end",), "telemetry.", "its fields"),
    "answer": ("G", "viewer39", ":clients"),
    "list of runs": ("G", "run00", "run39"),
    "own commands": (("pagedown", "pagedown"), "command19", "command00"),
}
"""Name -> (keys to the end, what is there, what was at the beginning)."""


@pytest.mark.parametrize("name", SCROLLED)
@in_loop
async def test_modal_with_more_than_fits_scrolls(tmp_path: Path, name: str) -> None:
    modal, (keys, end, begin) = MODALS[name], SCROLLED[name]
    with opened(tmp_path, is_published=modal.is_published) as app:
        async with app.run_test(size=SMALL) as pilot:
            await _open(app, pilot, modal)
            assert any(begin in line for line in _shown(app))
            assert not any(end in line for line in _shown(app))
            await press(pilot, *keys)
            assert any(end in line for line in _shown(app))
            assert not any(begin in line for line in _shown(app))


@in_loop
async def test_long_question_is_cut_and_can_be_refused(tmp_path: Path) -> None:
    with opened(tmp_path, is_published=True) as app:
        async with app.run_test(size=SMALL) as pilot:
            await press(pilot, "colon", *"zlast ")
            app.screen.post_message(Paste(" ".join("x" * 12 for _ in range(30))))
            await pilot.pause()
            await press(pilot, "enter")
            assert isinstance(app.screen, ConfirmScreen)
            (panel,) = app.screen.query(LinePanel)
            assert panel.region.bottom <= SMALL[1]
            assert any("…" in line for line in _shown(app))
            assert any("y/N" in line for line in _shown(app))
            await press(pilot, "escape")
            assert len(app.screen_stack) == 1

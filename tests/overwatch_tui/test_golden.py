"""Pictures as text. After a change that is meant: `python -m tests.overwatch_tui.scenes`; read the diff."""

from __future__ import annotations

import pytest

from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.layout import compose_screen
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState

from .harness import VIEWS, draw, panel_inputs, state
from .scenes import FRAMES, KINDS, SCENES, SIZES, difference, goldens, kept


def test_screens_are_those_of_the_golden_files() -> None:
    before, found = kept(), goldens()
    assert set(before) == set(found)
    changed = [difference(name, before[name], text) for name, text in found.items() if text != before[name]]
    assert not changed, "\n".join(changed)


def test_styles_tell_severity_selection_and_what_is_secondary() -> None:
    made = panel_inputs(state(), ViewState(env=7))
    layout = compose_screen(PANELS, made, made, *SIZES[0])
    pieces = {
        (text.strip(), style) for lines in layout.lines.values() for line in lines for text, style in line
    }
    assert pieces >= {
        ("LIVE", "bar live"),
        ("CRIT", "alarm"),
        ("not finite", "bold"),
        ("ppo.learning_rate 0.001 -> 0.01", "accent"),
        ("[1 Run]", "tab"),
        ("warning", "warning select"),
        ("07", "bold select"),
        ("0.61", "info"),
        ("ok", "ok"),
        ("WAIT", "dim"),
        ("F", "fossilized"),
        ("?", "key"),
        ("help", "dim"),
    }


@pytest.mark.parametrize("name", SCENES)
def test_nothing_is_wider_or_taller_than_the_screen(name: str) -> None:
    for width, height in ((80, 24), (100, 31), (180, 50), (200, 60)):
        lines = SCENES[name](width, height).split("\n")
        assert len(lines) == height
        assert all(len(line) <= width for line in lines)


SAYS = {
    "empty": "SEARCHING",
    "joined-without-events": "STARTING",
    "ended": "ENDED",
    "died": "DIED",
    "lost": "LOST",
    "recording": "REPLAY",
    "paused": "PAUSED",
    "one-env": "1 env",
    "grid-64": "64 env",
    "envs-256": "256 env",
}
"""A word of the first line by which each state is known, whatever view is shown."""


@pytest.mark.parametrize("name", SAYS)
def test_each_view_shows_each_state_at_each_size(name: str) -> None:
    for view in VIEWS:
        for width, height in SIZES:
            made = FRAMES[name]()
            PANELS.show(made.view, view)
            lines = draw(made, width, height).split("\n")
            assert SAYS[name] in lines[0], f"{view} {width}x{height}"
            assert len(lines) == height
            assert max(map(len, lines)) <= width
            is_marked = any(f"[{n} " in lines[2] for n in range(1, 10))
            assert is_marked, "the tab of the view"


@pytest.mark.parametrize("view", VIEWS)
def test_no_command_is_offered_to_those_who_only_read(view: str) -> None:
    for width, height in SIZES:
        made = FRAMES["read-only"]()
        PANELS.show(made.view, view)
        last = draw(made, width, height).split("\n")[-1]
        assert "read-only" in last
        assert "pause" not in last


SIZES_TO_FILL = ((120, 40), (200, 60))
MAX_EMPTY = 8
"""Lines on end that a panel may leave empty there, or a third of it."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_view_is_half_empty(kind: str) -> None:
    known = KINDS[kind]()
    panels = PANELS.of(is_published=known.is_published)
    for view in panels.views:
        for width, height in SIZES_TO_FILL:
            for is_detail in (False, True):
                made = panel_inputs(known, ViewState(env=0))
                made.view.show_view(view.name)
                made.view.detail = is_detail
                first = panels[view.one[0]]
                if is_detail and first.detail is None:
                    made.view.charts.names = tuple(first.charts(made))
                found = compose_screen(PANELS, made, made, width, height)
                for box in found.boxes:
                    texts = [plain(line)[1 if box.x else 0 :].strip() for line in found.lines[box.name]]
                    empty = max(len(run) for run in "".join(" x"[bool(t)] for t in texts).split("x"))
                    where = f"{view.name} {width}x{height} detail={is_detail}: {box.name}"
                    assert empty <= max(MAX_EMPTY, box.height // 3), where


def test_ascii_is_ascii() -> None:
    for size in SIZES:
        assert SCENES["ascii"](*size).isascii()

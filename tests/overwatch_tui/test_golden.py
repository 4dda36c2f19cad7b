"""Pictures as text. After a change that is meant: `python -m tests.overwatch_tui.scenes`; read the diff."""

from __future__ import annotations

import pytest

from esper_overwatch.overwatch_tui.panels import PANELS, VIEWS
from esper_overwatch.overwatch_tui.render.layout import compose_screen
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState

from .harness import draw, panel_inputs
from .scenes import FOLDER, FRAMES, KINDS, SCENES, SIZES, STATES, all_views, path_of, path_of_views
from .snapshots import PACKED, SNAPSHOTS, difference, drawn, path_of_state, read_pack, svgs, views_of


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", SCENES)
def test_picture(name: str, size: tuple[int, int]) -> None:
    width, height = size
    path = path_of(name, width, height)
    assert SCENES[name](width, height) + "\n" == path.read_text(encoding="utf-8"), f"see {path.name}"


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", STATES)
def test_all_views_in_a_state(name: str, size: tuple[int, int]) -> None:
    path = path_of_views(name, *size)
    assert all_views(name, *size) == path.read_text(encoding="utf-8"), f"see {path.name}"


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_text_and_styles_of_every_view_in_a_state(name: str, size: tuple[int, int]) -> None:
    path = path_of_state(name, *size)
    kept, found = read_pack(path), drawn(name, *size)
    assert list(found) == [view for kind, view in kept if kind == "text"]
    for view, text in found.items():
        before = kept["text", view]
        assert text == before, f"see {path.name}\n{difference(before, text, view)}"


@pytest.mark.parametrize("name", ["live", "light", "16-colour"])
def test_drawing_of_the_main_view_in_a_theme(name: str) -> None:
    _compare_drawings(name, SIZES[0], ["envs"])


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_drawing_of_every_view_in_a_state(name: str, size: tuple[int, int]) -> None:
    _compare_drawings(name, size, views_of(name))


def _compare_drawings(name: str, size: tuple[int, int], views: list[str]) -> None:
    path = path_of_state(name, *size)
    kept = read_pack(path)
    for view, svg in svgs(name, *size, views).items():
        before = kept["svg", view]
        changed = difference(before, svg, view)[:2000]
        assert svg + "\n" == before, f"see {path.name}\n{changed}"


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
            made.view.show_view(view)
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
        made.view.show_view(view)
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
                if is_detail and view.renderer.detail is None:
                    made.view.charts.names = tuple(view.renderer.charts(made))
                found = compose_screen(PANELS, made, made, width, height)
                for box in found.boxes:
                    texts = [plain(line)[1 if box.x else 0 :].strip() for line in found.lines[box.name]]
                    empty = max(len(run) for run in "".join(" x"[bool(t)] for t in texts).split("x"))
                    where = f"{view.name} {width}x{height} detail={is_detail}: {box.name}"
                    assert empty <= max(MAX_EMPTY, box.height // 3), where


def test_ascii_is_ascii() -> None:
    for size in SIZES:
        assert SCENES["ascii"](*size).isascii()


def test_no_golden_file_is_left_over() -> None:
    known = {path_of(name, *size) for name in SCENES for size in SIZES}
    known |= {path_of_views(name, *size) for name in STATES for size in SIZES}
    assert set(FOLDER.rglob("*.txt")) == known
    assert set(PACKED.iterdir()) == {path_of_state(name, *size) for name in SNAPSHOTS for size in SIZES}

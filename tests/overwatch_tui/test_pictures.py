"""Images and tables of a published run on a terminal: with colours, in how many bytes, and without."""

from __future__ import annotations

import base64
import io
import zlib
from pathlib import Path
from typing import Any

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from esper_overwatch import publish
from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.panels import metrics
from esper_overwatch.overwatch_tui.render.lines import Line, fade, plain
from esper_overwatch.overwatch_tui.render.picture import picture_lines
from esper_overwatch.overwatch_tui.render.theme import ASCII
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.feed import LiveFeed
from esper_overwatch.protocol.messages import events as ev
from tests.protocol.harness import until

from .frame_bytes import KeepingDriver
from .harness import draw, in_loop, panel_inputs, session
from .scenes import disc, published_events, published_state

RED, BLUE, BLACK, WHITE, GREY = 196, 21, 16, 231, 244


def packed(*rows: list[int]) -> str:
    return base64.b64encode(zlib.compress(bytes(number for row in rows for number in row))).decode()


def colours(lines: tuple[Line, ...]) -> list[list[int]]:
    """Colours of the pixels, row by row."""
    rows: list[list[int]] = []
    for line in lines:
        pairs = [[int(part) for part in style.split(":")[1:]] for text, style in line for _ in text]
        rows += [[top for top, _ in pairs], [bottom for _, bottom in pairs]]
    return rows


def test_cell_shows_two_pixels_of_256_colours() -> None:
    rows = [[RED, BLUE, BLUE], [RED, BLUE, WHITE], [GREY, GREY, GREY]]
    lines = picture_lines(packed(*rows), 3, 3, 2)
    assert lines[0] == (
        (" ", f"pixels:{RED}:{RED}"),
        (" ", f"pixels:{BLUE}:{BLUE}"),
        ("▀", f"pixels:{BLUE}:{WHITE}"),
    )
    assert colours(lines) == [*rows, [BLACK] * 3], "an odd row has black below it"


def test_picture_is_as_large_as_fits() -> None:
    pixels = packed([BLACK, WHITE, RED, RED], [WHITE, BLACK, RED, RED])
    assert colours(picture_lines(pixels, 4, 2, 9)) == [[GREY, RED], [BLACK] * 2], (
        "each the mean of its pixels"
    )
    assert colours(picture_lines(pixels, 4, 11, 9))[:2] == [[BLACK, BLACK, WHITE, WHITE, *[RED] * 4]] * 2
    assert len(picture_lines(packed([RED]), 1, 30, 10)) == 10


@given(st.one_of(st.text(max_size=40), st.binary(max_size=40).map(lambda b: base64.b64encode(b).decode())))
def test_damaged_preview_is_no_picture(pixels: str) -> None:
    for columns in (-1, 0, 3):
        assert picture_lines(pixels, columns, 10, 10) == ()


def test_huge_or_odd_preview_is_bounded() -> None:
    assert len(picture_lines(packed(*[[RED] * 10_000] * 10_000), 100, 80, 20)) == 20
    assert picture_lines(packed([3, RED]), 2, 10, 10) == (), "the first 16 colours are the terminal's own"
    assert picture_lines(packed([RED]), 2**40, 10, 10) == ()


def test_picture_stays_where_the_link_is_stale() -> None:
    (line,) = picture_lines(packed([RED], [BLUE]), 1, 1, 1)
    assert fade((*line, ("x", "bold"))) == (*line, ("x", "dim"))


def details(name: str, view: ViewState, state: Any = None) -> list[Line]:
    view.select("metrics", ("", name))
    inputs = panel_inputs(state or published_state(), view)
    return metrics.detail(inputs, 80, 19).lines


@pytest.mark.parametrize("view", [ViewState(), ViewState(has_colour=True, glyphs=ASCII)])
def test_without_colours_or_unicode_it_is_told(view: ViewState) -> None:
    text = "\n".join(map(plain, details("shot", view)))
    assert all(word in text for word in ("shot", "384x384", "2.0 KiB", "step 39", "/runs/shot.png"))
    assert "▀" not in text


def test_table_of_any_rows_is_drawn() -> None:
    rows = [["x", 1], [], [None, {"a": 1}, "more"], ["two\nlines", float("nan")]]
    state = published_state()
    state.metrics.tables["odd"] = ev.LoggedTable(step=1, name="odd", columns=["a", "b"], rows=rows, size=4)
    state.metrics.tables["wide"] = ev.LoggedTable(
        step=1, name="wide", columns=[f"column{i}" for i in range(20)], rows=[[1] * 20], size=1
    )
    odd = [plain(line).split() for line in details("odd", ViewState(), state)]
    assert odd[0] == ["odd", "4", "rows", "step", "1"]
    assert odd[1:] == [["a", "b"], ["x", "1"], [], ["--", "{'a':", "1}"], ["two", "lines", "nan"]]
    wide = [plain(line) for line in details("wide", ViewState(), state)]
    assert wide[1].split()[-1] == "…"
    assert {len(line) for line in wide} == {80}


async def shown_on(screen: pyte.Screen, *, colour: bool) -> tuple[str, int]:
    """What a terminal of 256 colours shows of the disc, and the bytes that it took from the main screen."""
    app = OverwatchApp(session(published_events()), colour=colour)
    app.console = Console(file=io.StringIO(), force_terminal=True, color_system="256")
    driver = KeepingDriver(app, size=(80, 24))
    app._build_driver = lambda *_, **__: driver  # type: ignore[method-assign]
    stream = pyte.Stream(screen)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "j", "j", "j")
        stream.feed("".join(driver.written))
        driver.written.clear()
        await pilot.press("enter")
        await pilot.pause()
        sent = "".join(driver.written)
        stream.feed(sent)
    return "\n".join(screen.display), len(sent.encode())


@in_loop
async def test_terminal_of_80x24_shows_the_picture() -> None:
    screen = pyte.Screen(80, 24)
    text, count = await shown_on(screen, colour=True)
    assert " shot  384x384  2.0 KiB  step 39" in text
    cells = [[screen.buffer[y][x] for x in range(1, 37)] for y in range(4, 22)]
    found = [[(cell.fg if cell.data == "▀" else cell.bg, cell.bg) for cell in row] for row in cells]
    rows = [row for pairs in found for row in ([top for top, _ in pairs], [low for _, low in pairs])]
    preview = disc(48, 48)
    wanted = colours(picture_lines(preview.pixels, 48, 78, 18))
    names = {RED: "ff0000", BLUE: "0000ff"}
    assert {number for row in wanted for number in row} > {RED, BLUE}, "the edge is between both"
    agree = [
        names.get(a, b) == b
        for row, other in zip(wanted, rows, strict=True)
        for a, b in zip(row, other, strict=True)
    ]
    assert all(agree)
    assert count < 4096


@in_loop
async def test_terminal_without_colours_tells_of_it() -> None:
    text, count = await shown_on(pyte.Screen(80, 24), colour=False)
    assert "a preview needs a terminal with colours" in text
    assert "▀" not in text
    assert count < 1024


def test_what_a_loop_logs_is_drawn_from_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow, of which pictures are, is not installed")
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    view = ViewState(has_colour=True, detail=True)
    with publish("loop") as run:
        run.log(seen=image.new("RGB", (640, 480), "red"), scores=[{"who": "me", "points": 3}])
        made = Session(LiveFeed("loop"), view)
        try:
            until(lambda: (made.tick(), made.state.metrics.images and made.state.metrics.tables)[1])
            view.select("metrics", ("", "seen"))
            lines = metrics.detail(made.panel_inputs(), 80, 19).lines
            view.select("metrics", ("", "scores"))
            table = draw(made.panel_inputs(), 80, 24)
        finally:
            made.close()
    assert plain(lines[0]).startswith(" seen  640x480  ")
    assert lines[1] == ((" ", ""), (" " * 48, f"pixels:{RED}:{RED}"), (" " * 31, ""))
    assert "  me        3" in table

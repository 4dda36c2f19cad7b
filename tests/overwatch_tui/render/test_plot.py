"""Sparklines, charts and gauges."""

from __future__ import annotations

import pytest

from overwatch_tui.model.time_series import SECOND, History
from overwatch_tui.render.lines import plain
from overwatch_tui.render.plot import Series, TimeAxis, chart, gauge, sparkline
from overwatch_tui.render.theme import ASCII, UNICODE, Glyphs


def ramp(count: int = 60, top: float = 1.0) -> History:
    history = History()
    for i in range(count):
        history.add(i * SECOND, top * i / (count - 1))
    return history


def test_a_ramp_climbs_through_all_levels() -> None:
    text = sparkline(ramp(), 12, TimeAxis(59 * SECOND, 60 * SECOND), UNICODE)
    assert len(text) == 12
    assert list(text) == sorted(text)
    assert text[0] == "▁"
    assert text[-1] == "█"


def test_a_fixed_scale_keeps_quiet_things_quiet() -> None:
    text = sparkline(ramp(top=0.1), 12, TimeAxis(59 * SECOND, 60 * SECOND), UNICODE, low=0.0, high=1.0)
    assert set(text) == {"▁"}


def test_a_constant_is_a_low_line_not_a_full_bar() -> None:
    history = History()
    for i in range(60):
        history.add(i * SECOND, 7.0)
    assert set(sparkline(history, 10, TimeAxis(59 * SECOND, 60 * SECOND), ASCII)) == {ASCII.spark[1]}


def test_nothing_measured_is_blank() -> None:
    assert sparkline(None, 8, TimeAxis(0, SECOND), UNICODE) == " " * 8
    assert sparkline(History(), 8, TimeAxis(0, SECOND), UNICODE) == " " * 8
    lines = chart([Series("x", None)], 40, 8, TimeAxis(0, SECOND), UNICODE)
    assert "no data yet" in plain(lines[0])
    assert len(lines) == 8


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=lambda g: g.name)
def test_a_chart_has_its_size_its_axis_and_its_limits(glyphs: Glyphs) -> None:
    lines = chart(
        [Series("ramp", ramp(), scale=100.0)],
        50,
        10,
        TimeAxis(59 * SECOND, 60 * SECOND),
        glyphs,
        limits=[(50.0, "warning"), (400.0, "critical")],
        form="{:.0f}",
    )
    text = [plain(line) for line in lines]
    assert [len(line) for line in text] == [50] * 10
    assert text[0].strip().startswith("100")
    assert text[8].strip().startswith("0")
    assert text[-1].split() == ["-1m", "now"]
    styles = {style for line in lines for _, style in line}
    assert "warning" in styles
    assert "critical" not in styles, "a limit beyond the axis is not drawn"
    first, last = text[8], text[0]
    assert first.rstrip() != first[:7].rstrip(), "the ramp begins at the bottom left"
    assert last.rstrip()[-1] not in "│|0", "and ends at the top right"


def test_braille_draws_two_by_four_dots_a_cell() -> None:
    history = History()
    for i in range(8):
        history.add(i * SECOND, float(i))
    lines = chart([Series("x", history)], 7 + 4, 2, TimeAxis(7 * SECOND, 8 * SECOND), UNICODE)
    cells = [plain(line)[7:] for line in lines]
    dots = [ord(c) - 0x2800 for c in "".join(cells) if c != " "]
    assert all(0 < bits < 256 for bits in dots)
    columns = sum(bool(bits & 0x47) + bool(bits & 0xB8) for bits in dots)
    assert columns >= 8, "each of the eight values has a column of its own"


def test_gauges_round_and_say_when_they_do_not_know() -> None:
    assert plain(gauge(0.5, 10, ASCII)) == "#####....."
    assert plain(gauge(7.0, 4, ASCII)) == "####"
    assert plain(gauge(None, 4, ASCII)) == "...."


@pytest.mark.parametrize("top", [2_410.0, 123_456.0, 7.5e9, 1e-12, -54_321.0, 1e30])
def test_numbers_of_the_axis_are_never_cut(top: float) -> None:
    history = History()
    history.add(SECOND, top)
    history.add(2 * SECOND, top * 0.99)
    lines = chart([Series("x", history)], 40, 5, TimeAxis(3 * SECOND, 10 * SECOND), ASCII)
    label = plain(lines[0])[:6].strip()
    number = float(label.replace("K", "e3").replace("M", "e6").replace("G", "e9"))
    assert number == pytest.approx(max(top, top * 0.99), rel=0.2)

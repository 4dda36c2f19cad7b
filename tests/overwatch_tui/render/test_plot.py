"""Sparklines, charts and gauges."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from esper_overwatch.overwatch_tui.model.time_series import SECOND, History
from esper_overwatch.overwatch_tui.render.canvas import ChartMemory
from esper_overwatch.overwatch_tui.render.chart_axis import ChartAxis
from esper_overwatch.overwatch_tui.render.lines import Line, plain
from esper_overwatch.overwatch_tui.render.plot import (
    GUTTER,
    Series,
    chart,
    gauge,
    plot_grid,
    sparkline,
)
from esper_overwatch.overwatch_tui.render.theme import ASCII, UNICODE, Glyphs


def ramp(count: int = 60, top: float = 1.0) -> History:
    history = History()
    for i in range(count):
        history.add(i * SECOND, top * i / (count - 1))
    return history


def test_a_ramp_climbs_through_all_levels() -> None:
    text = sparkline(ramp(), 12, ChartAxis(59 * SECOND, 60 * SECOND), UNICODE)
    assert len(text) == 12
    assert list(text) == sorted(text)
    assert text[0] == "▁"
    assert text[-1] == "█"


def test_a_fixed_scale_keeps_quiet_things_quiet() -> None:
    text = sparkline(ramp(top=0.1), 12, ChartAxis(59 * SECOND, 60 * SECOND), UNICODE, low=0.0, high=1.0)
    assert set(text) == {"▁"}


def test_a_constant_is_a_line_not_a_row_of_bars() -> None:
    history = History()
    for i in range(60):
        history.add(i * SECOND, 7.0)
    assert set(sparkline(history, 10, ChartAxis(59 * SECOND, 60 * SECOND), ASCII)) == {ASCII.rule}


def test_nothing_measured_is_blank() -> None:
    assert sparkline(None, 8, ChartAxis(0, SECOND), UNICODE) == " " * 8
    assert sparkline(History(), 8, ChartAxis(0, SECOND), UNICODE) == " " * 8
    lines = chart([Series("x", None)], 40, 8, ChartAxis(0, SECOND), UNICODE)
    assert "no data yet" in plain(lines[0])
    assert len(lines) == 8


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0.981, 0.982), ["0.9820", "0.9815", "0.9810"]),
        ((0.0003,), ["4.5e-4", "3.0e-4", "1.5e-4"]),
        ((24_000.0, 24_040.0), ["24040", "24020", "24000"]),
        ((0.8822, 0.8827), ["0.8828", "0.8825", "0.8822"]),
        ((0.0, 2e6), ["2.0M", "1.0M", "0"]),
    ],
)
def test_no_two_labels_of_an_axis_look_the_same(values: tuple[float, ...], labels: list[str]) -> None:
    history = History()
    for i in range(60):
        history.add(i * SECOND, values[i % len(values)])
    lines = chart([Series("x", history)], 40, 10, ChartAxis(59 * SECOND, 60 * SECOND), UNICODE)
    assert [text for line in lines[:-1] if (text := plain(line)[: GUTTER - 1].strip())] == labels


def test_a_sparkline_of_few_columns_is_blank() -> None:
    assert sparkline(ramp(), 4, ChartAxis(59 * SECOND, 60 * SECOND), UNICODE) == " " * 4


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=lambda g: g.name)
def test_a_chart_has_its_size_its_axis_and_its_limits(glyphs: Glyphs) -> None:
    lines = chart(
        [Series("ramp", ramp(), scale=100.0)],
        50,
        10,
        ChartAxis(59 * SECOND, 60 * SECOND),
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
    lines = chart([Series("x", history)], 7 + 4, 2, ChartAxis(7 * SECOND, 8 * SECOND), UNICODE)
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
    lines = chart([Series("x", history)], 40, 5, ChartAxis(3 * SECOND, 10 * SECOND), ASCII)
    label = plain(lines[0])[:6].strip()
    number = float(label.replace("K", "e3").replace("M", "e6").replace("G", "e9"))
    assert number == pytest.approx(max(top, top * 0.99), rel=0.2)


def dots_of(lines: list[Line]) -> list[set[int]]:
    """Per column of dots, those that are set, counted from the top."""
    cells = [plain(line)[GUTTER:] for line in lines]
    found: list[set[int]] = [set() for _ in range(2 * max(map(len, cells)))]
    for y, text in enumerate(cells):
        for x, character in enumerate(text):
            bits = ord(character) - 0x2800
            if 0 < bits < 256:
                for column, masks in enumerate(((1, 2, 4, 64), (8, 16, 32, 128))):
                    found[2 * x + column] |= {4 * y + i for i, mask in enumerate(masks) if bits & mask}
    return found


def test_an_envelope_reaches_from_least_to_greatest() -> None:
    draw, history = random.Random(5), History()
    values = [draw.uniform(0.0, 100.0) for _ in range(600)]
    for i, value in enumerate(values):
        history.add(i * SECOND, value)
    lines = chart([Series("x", history)], GUTTER + 30, 6, ChartAxis(599 * SECOND, 600 * SECOND), UNICODE)
    dots = dots_of(lines)
    for i, column in enumerate(dots[1:], 1):
        part = values[10 * i : 10 * i + 10]
        lowest, highest = round(min(part) / 100 * 23), round(max(part) / 100 * 23)
        assert 23 - max(column) <= lowest, "as low as its least value, or lower to touch its neighbour"
        assert 23 - min(column) >= highest
        assert len(column) == max(column) - min(column) + 1, "without a hole"


def test_only_the_last_column_changes_between_two_buckets() -> None:
    history = ramp(500)
    grids = []
    for second in (500, 503, 505, 514):
        history.add(second * SECOND, 0.5)
        axis = ChartAxis(second * SECOND, 600 * SECOND)
        grids.append([plain(x) for x in chart([Series("x", history)], GUTTER + 60, 6, axis, UNICODE)])
    for before, after in pairwise(grids[:-1]):
        assert [line[:-1] for line in before] == [line[:-1] for line in after]
    moved = [line[GUTTER : GUTTER + 50] for line in grids[-1]]
    assert moved != [line[GUTTER : GUTTER + 50] for line in grids[0]]
    assert moved == [line[GUTTER + 1 : GUTTER + 51] for line in grids[0]], "by one whole column"


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=lambda g: g.name)
def test_the_cursor_stands_at_its_time_on_every_width(glyphs: Glyphs) -> None:
    axis, at = ChartAxis(599 * SECOND, 600 * SECOND), 300 * SECOND
    for width in (47, 67, 120):
        lines = chart([Series("x", ramp(600))], width, 6, axis, glyphs, at=at)
        x = plain(lines[0]).rindex(glyphs.bar)
        assert abs((x - GUTTER) / (width - GUTTER) - 0.5) < 0.06
        assert plot_grid(width, axis, glyphs).column_of(at) == x - GUTTER


def test_marks_name_curves_that_have_no_colour() -> None:
    series = [Series("a", ramp(600), mark="a"), Series("b", ramp(600, top=2.0), mark="b", dot="o")]
    lines = chart(series, GUTTER + 60, 12, ChartAxis(599 * SECOND, 600 * SECOND), ASCII)
    text = "\n".join(plain(line) for line in lines)
    assert text.count("a") >= 2
    assert text.count("b") >= 2
    assert "o" in text
    assert "*" in text


def test_an_axis_of_the_past_names_its_times() -> None:
    axis = ChartAxis(1_760_000_000 * SECOND, 600 * SECOND, is_past=True)
    history = History()
    history.add(axis.now - 100 * SECOND, 1.0)
    last = plain(chart([Series("x", history)], 60, 8, axis, UNICODE)[-1])
    assert last.split() == ["08:43:20", "08:53:20"]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=lambda g: g.name)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_remembered_looks_like_what_is_drawn_anew(seed: int, glyphs: Glyphs) -> None:
    draw, memory = random.Random(seed), ChartMemory()
    histories = [History() for _ in range(5)]
    series = [Series(f"{i}", each, "dim", is_line=i < 3, dot=".") for i, each in enumerate(histories)]
    series[-1] = Series("chosen", histories[-1], mark="x")
    levels = [draw.random() for _ in histories]
    for second in range(1, 120):
        for i, each in enumerate(histories):
            levels[i] += draw.uniform(-0.1, 0.1)
            if draw.random() < 0.7:
                each.add(second * SECOND, levels[i])
            if draw.random() < 0.01:  # a late one
                each.add(draw.randrange(second) * SECOND, levels[i])
        axis = ChartAxis(second * SECOND, draw.choice([60] * 9 + [300]) * SECOND)
        options = {"limits": [(0.5, "warning")], "is_log": second > 100, "at": second * SECOND // 2}
        if draw.random() < 0.8:
            del options["at"]
        found = chart(series, 50, 10, axis, glyphs, memory=memory, **options)  # type: ignore[arg-type]
        assert found == chart(series, 50, 10, axis, glyphs, **options), second  # type: ignore[arg-type]


def test_an_envelope_is_not_kept_where_a_line_is_drawn() -> None:
    wide, low, high, memory = History(), History(), History(), ChartMemory()
    for second in range(60):
        wide.add(second * SECOND, 1.0)
        wide.add(second * SECOND, 3.0)
        low.add(second * SECOND, 1.0)
    high.add(0, 0.0)
    high.add(0, 4.0)
    axis, frame = ChartAxis(59 * SECOND, 300 * SECOND), Series("high", high)
    chart([frame, Series("x", wide)], 60, 10, axis, UNICODE, memory=memory)
    line = [frame, Series("x", low, is_line=True)]
    assert chart(line, 60, 10, axis, UNICODE, memory=memory) == chart(line, 60, 10, axis, UNICODE)

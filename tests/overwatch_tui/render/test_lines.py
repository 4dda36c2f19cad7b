"""Lines: widths are exact, and what came from outside cannot steer the terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.render.lines import CUT, Row, block, fit, plain, sign_cuts
from esper_overwatch.overwatch_tui.render.theme import ASCII, Theme, prefers_ascii


@given(st.lists(st.tuples(st.text(max_size=20), st.sampled_from(["", "dim", "bold"]))), st.integers(0, 60))
def test_a_line_has_exactly_its_width(spans: list[tuple[str, str]], width: int) -> None:
    row = Row()
    for text, style in spans:
        row.put(text, style)
    assert len(plain(row.line(width))) == width
    assert all(len(plain(line)) == width for line in block([row.line(5)], width, 3))


def test_columns_are_padded_cut_and_aligned() -> None:
    row = Row().put("name", "dim", 6).put("1.5", "", 5, ">").put("toolong", "", 4)
    assert plain(tuple(row.spans)) == "name    1.5too…"
    assert plain(tuple(Row().put("left").right("end", "", 10).spans)) == "left   end"
    assert plain(tuple(Row().put("left side").right("end", "", 10).spans)) == "left side"


def test_what_is_cut_ends_in_a_sign() -> None:
    spans = (("rollback ", "bold"), ("loss_nonfinite", "dim"))
    assert plain(fit(spans, 12)) == "rollback lo…"
    assert plain(fit(spans, 9)) == "rollback…"
    assert plain(fit(spans, 23)) == "rollback loss_nonfinite"
    assert plain(fit((("blanks     ", ""),), 6)) == "blanks"
    assert [plain(line) for line in sign_cuts([fit(spans, 12)], ASCII.cut)] == ["rollback lo~"]


@given(st.text(max_size=30), st.integers(0, 30))
def test_a_cut_never_hides_that_it_is_one(text: str, width: int) -> None:
    shown = plain(tuple(Row().put(text).spans))
    cut = plain(tuple(Row().put(text, "", width).spans))
    assert len(cut) == width
    assert cut.rstrip() == shown.rstrip() or width == 0 or cut.endswith(CUT)


def test_neighbours_of_one_style_become_one_span() -> None:
    assert fit((("a", "x"), ("b", "x"), ("c", "y")), 5) == (("ab", "x"), ("c", "y"), ("  ", ""))


def test_styles_combine_and_monochrome_has_no_colour() -> None:
    colour, plain_theme = Theme(), Theme(colour=False)
    both = colour.style("critical select")
    assert both.bold
    assert both.bgcolor != colour.style("critical").bgcolor
    assert colour.style("no-such-name") == colour.style("")
    for name in ("critical", "warning", "alarm", "tab", "select", "chart"):
        assert plain_theme.style(name).color is None
        assert plain_theme.style(name).bgcolor is None
    assert plain_theme.style("critical") != plain_theme.style("ok")


def test_the_linux_console_gets_ascii() -> None:
    assert prefers_ascii({"TERM": "linux"})
    assert all(value.isascii() for value in vars(ASCII).values() if isinstance(value, str))

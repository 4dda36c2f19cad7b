"""The language of filters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.model.filters import FilterError, parse_filter

ROW = {
    "env": 7.0,
    "st": "rollback",
    "acc": 55.0,
    "drift": None,
    "grad": math.nan,
    "r0c1": "BLENDING conv_light",
    "note": "a[1]",
}


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("acc<60", True),
        ("acc<55", False),
        ("acc<=55 acc>=55 acc=55", True),
        ("acc<60 acc>57", False),
        ("env=7", True),
        ("st:roll", True),
        ("st:ro*l", True),
        ("st:ok", False),
        ("-st:ok", True),
        ("-acc<60", False),
        ("r0c1:conv", True),
        ("r0c1:blend*light", True),
        ("conv", True),
        ("-conv", False),
        ("norm", False),
        ("drift>0.1", False),
        ("-drift>0.1", False),
        ("drift:--", True),
        ("grad>0", False),
        ("note:[1]", True),
        ("note:?", False),
        ("acc<6e1", True),
    ],
)
def test_a_row_passes_where_every_term_holds(text: str, passes: bool) -> None:
    found = parse_filter(text, ROW)
    assert found is not None
    assert found.passes(ROW) is passes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("speed>3", "speed is not a field here; there are env st acc drift grad r0c1 note"),
        ("acc<", "acc<: a number is missing"),
        ("st:", "st:: a text is missing"),
        ("acc<high", "acc<high: high is not a number; acc:high asks for text"),
    ],
)
def test_what_cannot_be_understood_is_told(text: str, problem: str) -> None:
    with pytest.raises(FilterError, match=f"^{problem.replace('(', '.')}$"):
        parse_filter(text, ROW)


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_filter_is_none(text: str) -> None:
    assert parse_filter(text, ROW) is None


@given(st.text(max_size=40))
def test_any_text_is_a_filter_or_an_error(text: str) -> None:
    try:
        found = parse_filter(text, ROW)
    except FilterError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert found is None or found.passes(ROW) in (True, False)

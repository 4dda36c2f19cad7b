"""Conditions: what is written is read back, and what is none says in one line what to write."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from esper_overwatch.protocol.alerts.condition import (
    COMPARISONS,
    SEVERITY_SUBJECTS,
    STATES,
    UNITS,
    WORDS,
    Condition,
    parse_condition,
)
from esper_overwatch.protocol.messages.vocabulary import SEVERITIES

_LETTERS = st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs"))
NAMES = st.text(_LETTERS, min_size=1, max_size=40).filter(
    lambda name: name.isprintable() and name not in SEVERITY_SUBJECTS and not {'"', "'"} <= set(name)
)
NUMBERS = st.integers(-(10**12), 10**12).map(float) | st.floats(-1e6, 1e6).map(lambda x: float(f"{x:.6g}"))
HOLDS = st.just((0.0, "")) | st.tuples(st.integers(1, 10**6).map(float), st.sampled_from(UNITS))


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    kind = draw(st.sampled_from(("word", "severity", "state", "number")))
    if kind == "word":
        return Condition(draw(st.sampled_from(WORDS)))
    if kind == "severity":
        subject, test = draw(st.sampled_from(SEVERITY_SUBJECTS)), draw(st.sampled_from([*COMPARISONS]))
        return Condition(subject, test, draw(st.sampled_from(SEVERITIES)))
    hold, unit = draw(HOLDS)
    if kind == "state":
        return Condition(draw(NAMES), "is", draw(st.sampled_from([*STATES])), hold, unit)
    return Condition(draw(NAMES), draw(st.sampled_from([*COMPARISONS])), draw(NUMBERS), hold, unit)


@given(conditions(), st.sampled_from(("", " ", "\t")))
@example(Condition("<", "is", "nan"), "")
def test_written_condition_is_read_back(condition: Condition, space: str) -> None:
    assert parse_condition(f"{space}{condition}{space}") == condition


WORDS_OF_CONDITIONS = ("loss", "'a", "b'", "'", ">", ">=", "=", "is", "nan", "for", "5", "epochs", "silent")


@given(st.text(max_size=300) | st.lists(st.sampled_from(WORDS_OF_CONDITIONS)).map(" ".join))
def test_any_text_is_a_condition_or_one_line(text: str) -> None:
    told, condition = "", None
    try:
        condition = parse_condition(text)
    except ValueError as error:
        told = str(error)
    assert condition is not None or any(verb in told for verb in ("write", "begin with", "put"))
    assert told.isprintable()
    assert condition is None or parse_condition(str(condition)) == condition


@given(NUMBERS, NUMBERS)
def test_comparisons_are_those_of_numbers(number: float, limit: float) -> None:
    for test, holds in {"<": number < limit, ">=": number >= limit, "!=": number != limit}.items():
        assert Condition("x", test, limit).holds(number) == holds
        assert Condition("x", test, limit).holds(math.nan) == (test == "!=")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("loss i nan", "after 'loss' stands 'i': write is, <, <=, >, >=, ==, !=, as in: loss is nan"),
        ("loss = 3", "after 'loss' stands '=': write is, <, <=, >, >=, ==, !=, as in: loss is nan"),
        ("loss >", "nothing stands after '>': write a value, as in: loss is nan"),
        ("loss > many", "loss > 'many': write a number, as in: loss is nan"),
        ("loss is high", "loss is 'high': write is nan, is infinite, is nonfinite, or a comparison"),
        ("silnt", "'silnt' is no condition by itself (did you mean silent?); write a test behind a metric"),
        ("alert.level >= bad", "alert.level >= 'bad': write one of info, warning, critical"),
        ("loss > 2 for ever", "'for ever' stands behind it: write nothing, or as in: for 5 epochs"),
        ("loss > 2 for 0 steps", "for '0': write a number above 0, as in: for 5 epochs"),
        ("loss > 2 for 5 days", "for 5 'days': write one of epochs, steps, seconds, minutes, hours"),
        ("incident.severity > info for 5 epochs", "incident.severity cannot be held against time"),
        ("val loss > 2", "after 'val' stands 'loss'"),
        ("> 2", "a name is missing: begin with a metric or a word, as in: loss is nan"),
        ("", "0 characters: write 1 to 256, as in: drift > 2 for 5 epochs"),
    ],
)
def test_error_says_what_to_write(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        parse_condition(text)
    assert str(error.value).startswith(told)


def test_severity_that_is_one_is_an_equality() -> None:
    assert parse_condition("alert.level is critical") == Condition("alert.level", "==", "critical")

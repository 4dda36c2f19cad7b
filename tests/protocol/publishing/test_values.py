"""Names and values of any kind: refused with one clear error, or held exactly."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from esper_overwatch.protocol.codec.json_lines import decode_line, encode_event
from esper_overwatch.protocol.errors import PublishError
from esper_overwatch.protocol.messages.events import Context, Histogram, Scalars
from esper_overwatch.protocol.publishing.summary import RunSummary
from esper_overwatch.protocol.publishing.value_queue import MAX_BINS, make_histogram
from esper_overwatch.protocol.publishing.values import (
    MAX_ARRAY_VALUES,
    MAX_STEP,
    ArraySample,
    SortedValues,
    check_step,
    check_value_name,
    fit_step,
    fit_value_name,
    sort_values,
)
from tests.protocol.values import floats, same

parts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8).filter(
    lambda part: "/" not in part and part.isprintable()
)
names = st.lists(parts, min_size=1, max_size=4).map("/".join)
numbers = st.one_of(
    floats,
    st.integers(),
    st.booleans(),
    st.fractions(),
    floats.map(np.float64),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats(width=32).map(np.float32),
    st.booleans().map(np.bool_),
    floats.map(np.array),
)
tables = st.lists(st.dictionaries(st.one_of(st.text(max_size=3), st.none()), numbers, max_size=3), max_size=3)
anything = st.one_of(
    numbers,
    tables,
    st.none(),
    st.text(max_size=20),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.lists(numbers, max_size=5),
    st.lists(st.one_of(numbers, st.none(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=4), numbers, max_size=2),
    st.builds(object),
)


@given(
    st.dictionaries(st.one_of(st.text(max_size=140), names, st.integers(), st.none()), anything, max_size=5)
)
def test_any_log_is_taken_or_refused_in_one_line(values: dict[Any, Any]) -> None:
    refusal = ""
    found = SortedValues({}, {}, {}, {}, {}, {})
    try:
        found = sort_values(values)
    except PublishError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert len(refusal) < 400
    for name in (name for kind in found for name in kind):
        assert check_value_name(name) == name
    for sample in found.arrays.values():
        made = make_histogram(0, "x", sample)
        assert made.sampled == made.size == sum(made.counts) + made.nonfinite


class Hostile:
    """Raises whatever it is asked, but for what Python itself asks."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise ValueError("asked")

    def __float__(self) -> float:
        raise ValueError("asked")


class Tensor:
    """One that needs a gradient: torch warns of a number made of it."""

    def detach(self) -> float:
        return 3.0

    def __float__(self) -> float:
        raise AssertionError("warned of")


def test_step_that_needs_a_gradient_is_no_warning() -> None:
    assert fit_step(Tensor(), 7, {}.__setitem__) == 3


wild = st.one_of(anything, st.builds(Hostile), st.text(max_size=300), st.dictionaries(st.none(), anything))


@given(
    st.dictionaries(st.one_of(st.text(max_size=140), st.floats(), st.none()), wild, max_size=5),
    st.one_of(anything, st.builds(Hostile)),
)
def test_with_a_note_nothing_is_refused(values: dict[Any, Any], step: Any) -> None:
    told: dict[str, object] = {}
    found = sort_values(values, told.__setitem__)
    kept = [name for kind in found for name in kind]
    assert [check_value_name(name) for name in kept] == kept
    assert 0 <= fit_step(step, 7, told.__setitem__) <= MAX_STEP
    assert len(kept) + len(told) >= len({fit_value_name(key) for key in values}) - sum(
        isinstance(value, dict) for value in values.values()
    )


@given(st.text(max_size=400))
def test_fitted_names_are_names_and_stay(text: str) -> None:
    fitted = fit_value_name(text)
    assert check_value_name(fitted) == fitted == fit_value_name(fitted)


@given(st.dictionaries(names, numbers, max_size=5))
def test_numbers_cross_the_wire_unchanged(values: dict[str, Any]) -> None:
    event = Scalars(step=3, values=dict(sort_values(values).numbers))
    RunSummary().fold(event)
    back = decode_line(encode_event(1, 1, Context(), event)).data
    for name, value in values.items():
        assert same(back.values[name], _as_float(value)), name


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@given(
    st.one_of(st.integers(), st.integers(0, 2**62).map(np.int64), st.floats(), st.text(max_size=3), st.none())
)
def test_steps_are_whole_and_not_negative(step: Any) -> None:
    try:
        found = check_step(step)
    except PublishError:
        assert not (isinstance(step, int | np.integer) and 0 <= step < 2**63)
    else:
        assert found == step
        assert type(found) is int


@example([0.0, 0.0, 4.9e154])
@example([-1.7e308, 1.7e308, 1.7e308])
@given(st.lists(floats, max_size=200))
def test_histogram_counts_every_finite_value(values: list[float]) -> None:
    made = make_histogram(0, "x", ArraySample(values, len(values)))
    finite = [x for x in values if math.isfinite(x)]
    assert sum(made.counts) == len(finite)
    assert made.nonfinite == len(values) - len(finite)
    assert len(made.counts) in (0, 1, MAX_BINS)
    if finite:
        assert (made.min, made.max) == (min(finite), max(finite))
        assert made.mean is not None
        assert made.std is not None
        assert made.std >= 0
    back: Histogram = decode_line(encode_event(1, 1, Context(), made)).data
    assert same(back, made)


def test_histogram_agrees_with_numpy() -> None:
    values = np.random.default_rng(7).normal(size=5000)
    made = make_histogram(0, "x", ArraySample(values, 5000))
    counts, _ = np.histogram(values, bins=MAX_BINS)
    assert np.abs(np.array(made.counts) - counts).sum() <= 2  # a value on an edge
    assert made.mean is not None
    assert made.std is not None
    assert math.isclose(made.mean, values.mean(), rel_tol=1e-12, abs_tol=1e-15)
    assert math.isclose(made.std, values.std(), rel_tol=1e-12)


@given(st.integers(2, 10 * MAX_ARRAY_VALUES))
def test_sample_of_an_array_is_bounded(size: int) -> None:
    sample = sort_values({"x": np.zeros(size, np.int8)}).arrays["x"]
    assert sample.size == size
    assert min(size, MAX_ARRAY_VALUES // 2) <= len(sample.values) <= MAX_ARRAY_VALUES


@given(st.lists(floats, min_size=1, max_size=50))
def test_statistics_agree_with_the_whole_list(values: list[float]) -> None:
    summary = RunSummary()
    for step, value in enumerate(values):
        summary.fold(Scalars(step=step, values={"x": value}))
    found = summary.metrics["x"]
    finite = [Fraction(x) for x in values if math.isfinite(x)]
    assert (found.count, found.nonfinite) == (len(values), len(values) - len(finite))
    assert same(found.last, values[-1])
    if finite:
        assert (found.min, found.max) == (min(finite), max(finite))
        assert found.mean is not None
        scale = max(float(max(map(abs, finite))), 1e-300)
        assert abs(found.mean - float(sum(finite) / len(finite))) <= 1e-12 * scale


@given(st.integers(1, 40), st.integers(1, 3_000))
def test_nested_lists_are_sampled_evenly(rows: int, width: int) -> None:
    nested = [[float(row * width + column) for column in range(width)] for row in range(rows)]
    sample = sort_values({"x": nested}).arrays.get("x", ArraySample([0.0], 1))
    stride = math.ceil(rows * width / MAX_ARRAY_VALUES)
    assert sample == ArraySample([float(value) for value in range(0, rows * width, stride)], rows * width)


def test_lists_of_any_nesting_are_counted() -> None:
    sample = sort_values({"x": [[1.0, [2.0]], 3.0, []]}).arrays["x"]
    assert sample.values == [1.0, 2.0, 3.0]

"""The vertical axis of charts."""

from __future__ import annotations

from math import isclose, log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.render.scale import make_scale


def flat(*values: float) -> list[float]:
    return list(values)


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=20), st.booleans())
def test_every_value_lies_between_bottom_and_top(values: list[float], is_log: bool) -> None:
    scale = make_scale(flat(*values), floor_at=None, limits=[], is_log=is_log)
    assert scale.bottom < scale.top
    for value in values:
        assert -1e-6 <= scale.share(value) <= 1 + 1e-6


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_little_of_a_linear_axis_is_empty(bottom: float, span: float) -> None:
    scale = make_scale(flat(bottom, bottom + span), floor_at=None, limits=[], is_log=False)
    if span > 1e-6 * max(abs(bottom), abs(bottom + span)):
        assert scale.top - scale.bottom <= span * 1.3
    assert scale.share(scale.value(0.25)) == pytest.approx(0.25, abs=1e-3)


@pytest.mark.parametrize(
    ("values", "ends"),
    [((0.31, 2.47), (0.2, 2.6)), ((38.8, 90.3), (35.0, 95.0)), ((-3.49, 9.5), (-4.0, 10.0))],
)
def test_an_axis_ends_at_round_numbers(values: tuple[float, float], ends: tuple[float, float]) -> None:
    scale = make_scale(flat(*values), floor_at=None, limits=[], is_log=False)
    assert (scale.bottom, scale.top) == pytest.approx(ends)


def test_a_small_new_extreme_does_not_move_the_axis() -> None:
    before = make_scale(flat(0.31, 2.47), floor_at=None, limits=[], is_log=False)
    assert make_scale(flat(0.31, 2.52), floor_at=None, limits=[], is_log=False) == before


def test_an_axis_takes_in_near_limits_and_the_floor() -> None:
    scale = make_scale(flat(1.0, 2.0), floor_at=0.0, limits=[3.5, 90.0], is_log=False)
    assert scale.bottom == 0.0
    assert 3.5 <= scale.top < 5.0


def test_a_logarithmic_axis_is_even_in_powers() -> None:
    scale = make_scale(flat(0.001, 10.0), floor_at=0.0, limits=[], is_log=True)
    assert (scale.bottom, scale.top) == pytest.approx((0.001, 10.0))
    for value in (0.001, 0.01, 0.1, 1.0, 10.0):
        assert isclose(scale.share(value), (log10(value) + 3) / 4, abs_tol=1e-9)
        assert scale.value(scale.share(value)) == pytest.approx(value)
    assert scale.share(-5.0) == scale.share(0.0) == 0.0


def test_without_a_positive_value_the_axis_is_linear() -> None:
    assert not make_scale(flat(-1.0, 0.0), floor_at=None, limits=[], is_log=True).is_log
    assert make_scale(flat(-1.0, 0.5), floor_at=None, limits=[], is_log=True).is_log

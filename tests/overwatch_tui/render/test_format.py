"""Numbers, sizes, durations and the state of the link as text."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import pytest

from esper_overwatch.overwatch_tui.render.env_rows import STAGE_LETTERS
from esper_overwatch.overwatch_tui.render.format import (
    SHORT_STAGE_NAMES,
    format_bytes,
    format_compact,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_points,
    format_share,
)
from esper_overwatch.overwatch_tui.render.link_text import link_text
from esper_overwatch.overwatch_tui.render.theme import Theme
from esper_overwatch.overwatch_tui.source.link_status import LinkStatus
from esper_overwatch.protocol.messages.vocabulary import Stage

FORMATS: list[Callable[[float | None], str]] = [
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_points,
    lambda value: format_compact(value, 6),
    format_share,
]


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        (0.344, "", ".34"),
        (1.0, "", "1.00"),
        (0.0, "", ".00"),
        (0.999, "", "1.00"),
        (3e-4, "", "3e-04"),
        (0.61, "+", "+.61"),
        (-0.1, "+", "-.10"),
        (-12.0, "+", "-12.00"),
        (10.5, "", "10.50"),
    ],
)
def test_share_has_no_leading_zero(value: float, sign: str, text: str) -> None:
    assert format_share(value, sign) == text


@pytest.mark.parametrize("form", FORMATS)
def test_what_was_not_measured_is_two_dashes(form: Callable[[float | None], str]) -> None:
    assert form(None) == "--"


def test_durations_take_at_most_six_characters() -> None:
    seconds = (0.0, 9.94, 9.96, 59.9, 124.0, 11_520.0, 5 * 86_400 + 7 * 3600)
    assert [format_duration(s) for s in seconds] == ["0.0s", "9.9s", "9s", "59s", "2m04s", "3h12m", "5d07h"]
    assert format_duration(inf) == "inf"


def test_counts_and_bytes_take_the_unit_that_fits() -> None:
    assert [format_count(c) for c in (950, 5400, 1.2e6, 3e9)] == ["950", "5.4K", "1.2M", "3.0G"]
    assert [format_bytes(c) for c in (640, 1536, 3 << 20, 5 << 30)] == [
        "640 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]


def test_compact_numbers_turn_to_exponents_where_they_must() -> None:
    values = (0.5, 0.0, 0.0004, 123456.0, 2e12, nan)
    assert [format_compact(v, 6) for v in values] == ["0.50", "0.00", "4e-4", "123.5K", "2e+12", "nan"]


def test_every_stage_has_short_name_letter_and_colour() -> None:
    assert {stage.name for stage in Stage} == set(STAGE_LETTERS)
    assert all(Theme().style(stage.name.lower()).color for stage in Stage)
    assert all(len(SHORT_STAGE_NAMES[stage.name]) <= 7 for stage in Stage)


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (LinkStatus(), "looking for a live run"),
        (LinkStatus(problem="no such host"), "no such host"),
        (LinkStatus(state="connecting", name="a"), "connecting to a"),
        (LinkStatus(state="lost", age_seconds=16.0), "no answer for 16s; still trying"),
        (LinkStatus(state="ended", name="a", farewell="stop"), "run a has ended: stop"),
        (LinkStatus(state="ended", name="a", is_replay=True), "the recording is over"),
        (LinkStatus(state="live"), ""),
    ],
)
def test_link_says_what_it_waits_for(link: LinkStatus, text: str) -> None:
    assert link_text(link) == text

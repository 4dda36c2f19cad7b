"""Answers as lines."""

from __future__ import annotations

import time

import pytest

from esper_overwatch.protocol.codec.readable import format_result


def test_nested_results_are_phrases_or_indented_lines() -> None:
    result = {
        "seq": {"life": 8, "metric": 275},
        "lease": None,
        "tags": ["a", "b"],
        "hints": {"kl": "moves too far", "on": True},
        "slots": [{"name": "r0c0", "rows": [1, 2]}],
    }
    assert format_result(result) == [
        "seq              life 8, metric 275",
        "lease            --",
        "tags             a, b",
        "hints",
        "  kl               moves too far",
        "  on               yes",
        "slots",
        "  name             r0c0",
        "  rows             1, 2",
    ]


def test_times_of_the_wall_are_dates_and_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    answer = {"clients": [{"client": "me", "seen": 1795361894509501, "requests": 12}]}
    assert [" ".join(line.split()) for line in format_result(answer)] == [
        "clients",
        "client me",
        "seen 2026-11-22 15:38:14",
        "requests 12",
    ]


def test_groups_with_the_same_keys_are_a_table() -> None:
    top = [{"name": "aten::sum", "calls": 186}, {"name": "evaluate: _LinearBackward", "calls": 24}]
    assert format_result({"top": top}) == [
        "top",
        "  name                       calls",
        "  aten::sum                  186",
        "  evaluate: _LinearBackward  24",
    ]
    wide = [{"name": "n n" * 40, "on": "cpu"}] * 2
    assert format_result({"top": wide}).count("  on               cpu") == 2

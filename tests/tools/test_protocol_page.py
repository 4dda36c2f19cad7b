"""The reference page of the wire, made from the types."""

from __future__ import annotations

from protocol.messages.commands import METHODS
from protocol.messages.events import EVENTS
from tools.protocol_page import PAGE, fill_in


def test_the_reference_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert fill_in(page) == page, "run: python -m tools.protocol_page"
    for name in (*EVENTS, *METHODS):
        assert f"`{name}`" in page


def test_the_reference_page_says_what_fields_mean() -> None:
    row = "| `until` | `int` | Wall time of its end, microseconds. |"
    assert row in PAGE.read_text(encoding="utf-8")

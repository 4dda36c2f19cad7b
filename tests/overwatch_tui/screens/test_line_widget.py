"""Lines that are replaced are freed at once."""

from __future__ import annotations

import gc

import pytest
from rich.segment import Segment
from textual.strip import Strip

from esper_overwatch.overwatch_tui.screens.line_widget import LineStrip


@pytest.mark.parametrize(("kind", "is_freed"), [(LineStrip, True), (Strip, False)])
def test_divided_line_is_freed_without_collection(kind: type[Strip], is_freed: bool) -> None:
    gc.collect()
    strip = kind([Segment("abc")], 3)
    assert [part.text for part in strip.divide([3, 9])] == ["abc"]
    assert [part.text for part in strip.divide([1, 3])] == ["a", "bc"]
    del strip
    assert (gc.collect() == 0) == is_freed

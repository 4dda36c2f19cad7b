"""The model: a log, a wire that loses, repeats and reorders batches, and a replay that answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.client.sequence import NewestLines, Sequencer
from esper_overwatch.protocol.errors import WireError


def line(seq: int) -> bytes:
    return b"%d" % seq


@given(st.data(), st.integers(0, 60), st.integers(0, 40))
def test_each_event_comes_once_and_in_order_over_any_wire(
    data: st.DataObject, total: int, joined_at: int
) -> None:
    joined_at = min(joined_at, total)
    sequencer = Sequencer(joined_at)
    delivered: list[bytes] = []
    batches = data.draw(st.lists(st.tuples(st.integers(1, total or 1), st.integers(1, 8)), max_size=30))
    for first, count in batches if total else []:
        last = min(first + count - 1, total)
        delivered += sequencer.push(first, [line(seq) for seq in range(first, last + 1)])
        assert delivered == [line(seq) for seq in range(joined_at + 1, sequencer.last + 1)]
    sequencer.note_latest(total)
    asked = 0
    while (missing := sequencer.missing) is not None:
        first, last = missing
        assert sequencer.last < first <= last <= total
        last = min(last, first + data.draw(st.integers(0, 5)))
        delivered += sequencer.push(first, [line(seq) for seq in range(first, last + 1)])
        asked += 1
        assert asked <= total
    assert delivered == [line(seq) for seq in range(joined_at + 1, total + 1)]
    assert sequencer.behind == 0


def test_a_lost_tail_is_seen_by_the_number_alone() -> None:
    sequencer = Sequencer(4)
    assert sequencer.missing is None
    sequencer.note_latest(7)
    assert sequencer.missing == (5, 7)
    assert sequencer.behind == 3


def test_newest_line_comes_once_and_malformed_view_is_refused() -> None:
    def event(seq: int) -> bytes:
        return b'{"seq":%d,"stream":"metric","ts":1}' % seq

    newest = NewestLines()
    newest.last = 3
    assert newest.push([event(2), event(4), event(6)]) == [event(4), event(6)]
    with pytest.raises(WireError, match="not an event in a view: b'rubbish'"):
        newest.push([event(7), b"rubbish"])
    assert newest.push([event(6), event(7)]) == [event(7)]

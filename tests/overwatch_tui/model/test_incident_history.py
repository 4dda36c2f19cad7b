"""Counts by hour: each incident once, whatever comes twice, late or in another order."""

from __future__ import annotations

from itertools import permutations

from esper_overwatch.overwatch_tui.model.incident_history import (
    HOUR,
    MAX_INCIDENTS,
    IncidentHistory,
)
from esper_overwatch.overwatch_tui.model.state import State, fold_late
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import Context, Incident, spec_of
from esper_overwatch.protocol.messages.vocabulary import Severity

from .test_incidents import incident

NOW = 500_000 * HOUR + HOUR // 2


def told(
    hours_ago: float,
    severity: Severity = "warning",
    *,
    kind: str = "norm_drift",
    id_: str = "",
    is_over: bool = False,
) -> Event:
    """An event of an incident, by default of one of its own."""
    ts = NOW - int(hours_ago * HOUR)
    data = incident(id_ or f"{ts}", severity, kind=kind, over=ts if is_over else 0)
    spec = spec_of(Incident)
    return Event(seq=1, ts=ts, type=spec.type, stream=spec.stream, tv=1, ctx=Context(), data=data)


def counted(*found: Event) -> IncidentHistory:
    history = IncidentHistory()
    for event in found:
        history.fold(event)
    return history


def test_each_is_counted_in_its_hour() -> None:
    history = counted(
        told(3), told(0), told(3.1, "critical", kind="nonfinite"), told(30, kind="stalled"), told(1, "info")
    )
    assert history.by_hour("warning", NOW, 4) == [1, 0, 0, 1]
    assert history.by_hour("critical", NOW, 4) == [1, 0, 0, 0]
    assert history.by_kind("warning", NOW, 48) == [("norm_drift", 2), ("stalled", 1)]
    assert history.by_kind("critical", NOW, 4) == [("nonfinite", 1)]


def test_order_and_repetition_change_nothing() -> None:
    events = [
        told(2, id_="a"),
        told(1, "critical", id_="a"),
        told(0, id_="a"),
        told(0, id_="a", is_over=True),
    ]
    for order in permutations(events):
        history = counted(*order, *order)
        assert history.by_hour("warning", NOW, 3) == [1, 0, 0]
        assert history.by_hour("critical", NOW, 3) == [0, 1, 0]


def test_late_events_count_and_a_snapshot_counts_once() -> None:
    state = State()
    live = told(0)
    state.fold(live)
    fold_late(state, [told(5), told(4), live])
    state = state.reset_copy("again", now=NOW)
    state.fold(live)
    assert state.incident_history.by_hour("warning", NOW, 6) == [1, 1, 0, 0, 0, 1]


def test_cut_is_what_was_known_then() -> None:
    known = [told(5), told(0.2, id_="a"), told(0.1, "critical", id_="a")]
    cut = counted(*known).cut(known[1].ts)
    assert cut == counted(*known[:2])
    cut.fold(known[1])
    cut.fold(known[2])
    assert cut.by_hour("critical", NOW, 1) == [1]
    assert cut.by_hour("warning", NOW, 1) == [1]


def test_memory_is_bounded_over_months() -> None:
    history = counted(*(told(2000 - i / 5, kind=f"kind{i % 300}") for i in range(10_000)))
    assert len(history._incidents) <= MAX_INCIDENTS
    assert sum(history.by_hour("warning", NOW, 24)) == 23 * 5 + 2

"""Counts of anomalies by hour: each incident once, whatever comes twice, late or in another order."""

from __future__ import annotations

from itertools import permutations

from esper_overwatch.overwatch_tui.model.anomaly_history import HOUR, MAX_HOURS, MAX_INCIDENTS, AnomalyHistory
from esper_overwatch.overwatch_tui.model.state import State, fold_late
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import Anomaly, Context, GovernorRollback, spec_of
from esper_overwatch.protocol.messages.vocabulary import Severity

NOW = 500_000 * HOUR + HOUR // 2


def raised(
    hours_ago: float,
    severity: Severity = "warning",
    *,
    kind: str = "norm_drift",
    since: float | None = None,
    active: bool = True,
) -> Event:
    ts = NOW - int(hours_ago * HOUR)
    begun = ts if since is None else NOW - int(since * HOUR)
    data = Anomaly(kind=kind, source="env01", severity=severity, active=active, since=begun)
    spec = spec_of(Anomaly)
    return Event(seq=1, ts=ts, type=spec.type, stream=spec.stream, tv=1, ctx=Context(env=1), data=data)


def rolled_back(hours_ago: float) -> Event:
    data = GovernorRollback(reason="nan", loss=1.0, restored_epoch=1, penalty=0.0)
    spec, ts = spec_of(GovernorRollback), NOW - int(hours_ago * HOUR)
    return Event(seq=2, ts=ts, type=spec.type, stream=spec.stream, tv=1, ctx=Context(env=1), data=data)


def counted(*found: Event) -> AnomalyHistory:
    history = AnomalyHistory()
    for event in found:
        history.fold(event)
    return history


def test_each_is_counted_in_its_hour() -> None:
    history = counted(raised(3), raised(0), rolled_back(3), raised(30, kind="stalled"))
    assert history.by_hour("warning", NOW, 4) == [1, 0, 0, 1]
    assert history.by_hour("critical", NOW, 4) == [1, 0, 0, 0]
    assert history.by_kind("warning", NOW, 48) == [("norm_drift", 2), ("stalled", 1)]
    assert history.by_kind("critical", NOW, 4) == [("rollback", 1)]


def test_order_and_repetition_change_nothing() -> None:
    told = [raised(2, since=2), raised(1, "critical", since=2), raised(0, since=2)]
    told.append(raised(0, since=2, active=False))
    for order in permutations(told):
        history = counted(*order, *order)
        assert history.by_hour("warning", NOW, 3) == [1, 0, 0]
        assert history.by_hour("critical", NOW, 3) == [0, 1, 0]


def test_late_events_count_and_a_snapshot_counts_once() -> None:
    state = State()
    live = raised(0)
    state.fold(live)
    fold_late(state, [raised(5), raised(4), live])
    state = state.reset_copy("again", now=NOW)
    state.fold(live)
    assert state.anomaly_history.by_hour("warning", NOW, 6) == [1, 1, 0, 0, 0, 1]


def test_cut_is_what_was_known_then() -> None:
    told = [raised(5), raised(0.2, since=0.2), raised(0.1, "critical", since=0.2)]
    cut = counted(*told).cut(told[1].ts)
    assert cut == counted(*told[:2])
    cut.fold(told[1])
    cut.fold(told[2])
    assert cut.by_hour("critical", NOW, 1) == [1]
    assert cut.by_hour("warning", NOW, 1) == [1]


def test_memory_is_bounded_over_months() -> None:
    history = counted(*(raised(2000 - i / 5, kind=f"kind{i % 300}") for i in range(10_000)))
    assert len(history._incidents) <= MAX_INCIDENTS
    assert len({hour for hour, _, _ in history._counts}) <= MAX_HOURS
    assert len(history._kinds) <= 65
    assert sum(history.by_hour("warning", NOW, 24)) == 23 * 5 + 2

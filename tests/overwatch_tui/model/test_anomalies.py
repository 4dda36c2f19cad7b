"""The store of anomalies: what waits for the operator, and for how long."""

from __future__ import annotations

import math
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.model.anomalies import MAX_RECORDS, Anomalies
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.vocabulary import Severity


def raised(**fields: Any) -> Anomaly:
    return Anomaly(
        **{
            "kind": "norm_drift",
            "source": "env07",
            "severity": "warning",
            "active": True,
            "value": 0.6,
            "threshold": 0.5,
            "count": 2,
            "since": 1000,
            **fields,
        }
    )


KEY = ("env07", "norm_drift")


def test_acknowledged_anomaly_waits_again_when_it_gets_worse() -> None:
    store = Anomalies()
    store.fold(raised(), ts=1000, env=7)
    assert [r.key for r in store.open_records(1000)] == [KEY]
    store.ack(KEY, 1000)
    assert store.open_records(1000) == []
    store.fold(raised(value=0.7, count=5), ts=2000, env=7)
    assert store.open_records(2000) == [], "the same trouble at the same severity"
    store.fold(raised(severity="critical", value=1.2, threshold=1.0), ts=3000, env=7)
    (record,) = store.open_records(3000)
    assert (record.severity, record.first, record.last, record.peak) == ("critical", 1000, 3000, 1.2)


def test_anomaly_raised_again_waits_again() -> None:
    store = Anomalies()
    store.fold(raised(), ts=1000, env=7)
    store.ack(KEY, 1000)
    store.fold(raised(active=False), ts=2000, env=7)
    store.fold(raised(since=9000), ts=9000, env=7)
    assert [r.first for r in store.open_records(9000)] == [9000]


def test_ended_anomaly_waits_only_if_nonfinite() -> None:
    store = Anomalies()
    store.fold(raised(), ts=1000, env=7)
    store.fold(raised(active=False), ts=2000, env=7)
    store.fold(raised(kind="loss_nonfinite", severity="critical", value=math.nan), ts=1000, env=7)
    store.fold(raised(kind="loss_nonfinite", severity="critical", active=False), ts=2000, env=7)
    assert [r.kind for r in store.open_records(2000)] == ["loss_nonfinite"]
    assert store.active_count("warning") == store.active_count("critical") == 0
    (waiting,) = store.waiting()
    store.ack(waiting.key, 2000)
    assert store.open_records(2000) == []


def test_snapshot_restores_records_and_keeps_acknowledgements() -> None:
    store = Anomalies()
    store.fold(raised(), ts=1000, env=7)
    store.fold(raised(source="critic"), ts=1000, env=None)
    store.ack(KEY, 1000)
    store.drop()
    assert len(store) == 0
    store.fold(raised(), ts=1000, env=7)
    store.fold(raised(source="critic"), ts=1000, env=None)
    assert [r.source for r in store.open_records(1000)] == ["critic"]


def test_a_mute_silences_until_its_end() -> None:
    store = Anomalies()
    store.fold(raised(), ts=1000, env=7)
    store.silence(KEY, 9000)
    assert store.open_records(8999) == []
    assert len(store.open_records(9000)) == 1
    store.silence(KEY, 0)
    assert len(store.open_records(5000)) == 1, "ended early"


def _seen(since: int, severity: Severity = "warning") -> ev.AnomalyAcknowledged:
    source, kind = KEY
    return ev.AnomalyAcknowledged(
        source=source, kind=kind, since=since, severity=severity, by="ann", reason="known"
    )


@pytest.mark.parametrize("is_first", [True, False])
def test_what_another_viewer_has_seen_waits_here_neither(is_first: bool) -> None:
    """In a snapshot either event may come first."""
    store = Anomalies()
    if is_first:
        store.fold_acknowledged(_seen(1000), 1500)
    store.fold(raised(since=1000), ts=1000, env=7)
    if not is_first:
        store.fold_acknowledged(_seen(1000), 1500)
    assert store.open_records(2000) == []
    record = store.get(KEY)
    assert record is not None
    assert record.acknowledged is not None
    assert (record.acknowledged.by, record.acknowledged.reason) == ("ann", "known")


@pytest.mark.parametrize(
    ("since", "ts", "waits"), [(1000, 5000, False), (999, 5000, True), (0, 999, True), (0, 1000, False)]
)
def test_an_acknowledgement_is_about_one_occurrence(since: int, ts: int, waits: bool) -> None:
    store = Anomalies()
    store.fold(raised(since=1000), ts=1000, env=7)
    store.fold_acknowledged(_seen(since), ts)
    assert bool(store.open_records(6000)) is waits


def test_another_viewers_mute_is_in_force_and_ends() -> None:
    store = Anomalies()
    source, kind = KEY
    store.fold_muted(ev.AnomalyMuted(source=source, kind=kind, until=9000, by="ann"))
    store.fold(raised(), ts=1000, env=7)
    assert store.open_records(5000) == []
    store.fold_muted(ev.AnomalyMuted(source=source, kind=kind, until=0, by="ben"))
    assert len(store.open_records(5000)) == 1


def test_worst_comes_first_and_parts_count_for_their_env() -> None:
    store = Anomalies()
    store.fold(raised(source="env07.r0c1"), ts=3000, env=7)
    store.fold(raised(source="env07", severity="critical"), ts=1000, env=7)
    store.fold(raised(source="env070"), ts=4000, env=70)
    assert [r.source for r in store.active_at("env07")] == ["env07", "env07.r0c1"]
    assert [r.severity for r in store.ordered()] == ["critical", "warning", "warning"]


def test_peaks_of_low_limits_are_the_lowest() -> None:
    store = Anomalies()
    for value in (0.6, 0.2, 0.5):
        store.fold(raised(value=value, threshold=0.8), ts=1000, env=7)
    store.fold(raised(value=0.99, threshold=0.8, active=False), ts=1000, env=7)
    record = store.get(KEY)
    assert record is not None
    assert record.peak == 0.2


def test_late_joiner_has_the_peak_from_the_event() -> None:
    store = Anomalies()
    store.fold(raised(value=1.56, peak=3.32, count=9), ts=5000, env=7)
    record = store.get(KEY)
    assert record is not None
    assert (record.value, record.peak, record.count, record.first) == (1.56, 3.32, 9, 1000)
    store.fold(raised(value=None, peak=4.0, active=False), ts=6000, env=7)
    assert record is not store.get(KEY)
    assert store.get(KEY).peak == 4.0  # type: ignore[union-attr]


def test_store_is_bounded_and_waiting_records_stay() -> None:
    store = Anomalies()
    store.fold(raised(source="first"), ts=1, env=None)
    for i in range(3 * MAX_RECORDS):
        store.fold(raised(source=f"s{i}", since=i + 2), ts=i + 2, env=None)
        store.fold(raised(source=f"s{i}", since=i + 2, active=False), ts=i + 2, env=None)
    assert len(store) <= MAX_RECORDS + 1
    assert store.get(("first", "norm_drift")) is not None

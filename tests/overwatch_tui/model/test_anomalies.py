"""The store of anomalies: what waits for the operator, and for how long."""

from __future__ import annotations

import math
from typing import Any

from overwatch_tui.model.anomalies import MAX_RECORDS, MUTE_MICROSECONDS, Anomalies
from protocol.messages.events import Anomaly


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
    store.ack(KEY)
    assert store.open_records(1000) == []
    store.fold(raised(value=0.7, count=5), ts=2000, env=7)
    assert store.open_records(2000) == [], "the same trouble at the same severity"
    store.fold(raised(severity="critical", value=1.2, threshold=1.0), ts=3000, env=7)
    (record,) = store.open_records(3000)
    assert (record.severity, record.first, record.last, record.peak) == ("critical", 1000, 3000, 1.2)


def test_anomaly_raised_again_waits_again() -> None:
    store = Anomalies()
    store.fold(raised(), ts=1000, env=7)
    store.ack(KEY)
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
    assert store.ack_all() == 1
    assert store.open_records(2000) == []


def test_snapshot_restores_records_and_keeps_acknowledgements() -> None:
    store = Anomalies()
    store.fold(raised(), ts=1000, env=7)
    store.fold(raised(source="critic"), ts=1000, env=None)
    store.ack(KEY)
    store.drop()
    assert len(store) == 0
    store.fold(raised(), ts=1000, env=7)
    store.fold(raised(source="critic"), ts=1000, env=None)
    assert [r.source for r in store.open_records(1000)] == ["critic"]


def test_mute_silences_for_ten_minutes() -> None:
    store = Anomalies()
    store.fold(raised(), ts=1000, env=7)
    assert store.mute(KEY, 1000)
    assert store.open_records(1000 + MUTE_MICROSECONDS - 1) == []
    assert len(store.open_records(1000 + MUTE_MICROSECONDS)) == 1
    store.mute(KEY, 5000)
    assert len(store.open_records(5000)) == 1, "the second time ends it"


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

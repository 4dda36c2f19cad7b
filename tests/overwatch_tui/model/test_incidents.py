"""The store of incidents: what waits for the operator, in which order, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from esper_overwatch.overwatch_tui.model.incidents import MAX_RECORDS, Incidents
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Incident
from esper_overwatch.protocol.messages.vocabulary import Severity

KEY = "b1-1"


def incident(id_: str = KEY, severity: Severity = "warning", **fields: Any) -> Incident:
    """An incident of env 7, open unless `over` is given."""
    values: dict[str, Any] = {
        "change": "began",
        "since": 1000,
        "kind": "gradient_exploding",
        "title": "exploding gradients",
        "source": "env07",
        "scope": "env07",
        "envs": [7],
        "signals": 1,
        **fields,
    }
    return Incident(id=id_, severity=severity, active=not values.get("over"), **values)


def store(*told: Incident) -> Incidents:
    found = Incidents()
    for each in told:
        found.fold(each)
    return found


def unseen(found: Incidents, now: int = 5000) -> list[str]:
    return [record.key for record in found.unseen(now)]


def test_order_is_waiting_open_worst_cause_newest() -> None:
    found = store(
        incident("over", "critical", over=3000),
        incident("noted", "info"),
        incident("seen", "critical", since=900),
        incident("old"),
        incident("new", since=2000),
        incident("policy", since=3000, source="policy", kind="kl_spike"),
        incident("disk", kind="disk", source="system"),
        incident("worst", "critical"),
    )
    found.ack("seen", 1000)
    order = ["worst", "disk", "new", "old", "policy", "seen", "noted", "over"]
    assert [record.key for record in found.ordered()] == order
    assert [record.key for record in found.open("critical")] == ["worst", "seen"]


def test_acknowledged_incident_waits_again_when_it_gets_worse() -> None:
    found = store(incident())
    assert unseen(found) == [KEY]
    found.ack(KEY, 1000)
    found.fold(incident(change="changed", signals=5))
    assert unseen(found) == [], "the same trouble at the same severity"
    found.fold(incident(severity="critical", change="worse"))
    assert unseen(found) == [KEY]
    found.ack(KEY, 2000)
    assert unseen(found) == []


@pytest.mark.parametrize("told", [incident(severity="info"), incident(over=4000)], ids=["noted", "over"])
def test_what_is_noted_or_over_waits_for_nobody(told: Incident) -> None:
    found = store(told)
    assert unseen(found) == []
    assert len(found) == 1, "it stays in the list"


def test_another_incident_of_the_same_kind_waits_by_itself() -> None:
    found = store(incident())
    found.ack(KEY, 1000)
    found.fold(incident("b1-2", since=9000))
    assert unseen(found) == ["b1-2"]


def test_snapshot_restores_records_and_keeps_acknowledgements() -> None:
    told = [incident(), incident("b1-2", source="env09")]
    found = store(*told)
    found.ack(KEY, 1000)
    found.drop()
    assert len(found) == 0
    for each in told:
        found.fold(each)
    assert unseen(found) == ["b1-2"]


def test_a_mute_silences_until_its_end() -> None:
    found = store(incident())
    found.silence(KEY, 9000)
    assert unseen(found, 8999) == []
    assert unseen(found, 9000) == [KEY]
    found.silence(KEY, 0)
    assert unseen(found) == [KEY], "ended early"


@pytest.mark.parametrize("is_first", [True, False])
def test_what_another_viewer_has_seen_waits_here_neither(is_first: bool) -> None:
    """In a snapshot either event may come first."""
    seen = ev.AnomalyAcknowledged(
        incident=KEY, source="env07", kind="x", since=1000, severity="warning", by="ann", reason="known"
    )
    found = Incidents()
    if is_first:
        found.fold_acknowledged(seen, 1500)
    found.fold(incident())
    if not is_first:
        found.fold_acknowledged(seen, 1500)
    assert unseen(found) == []
    record = found.get(KEY)
    assert record is not None
    assert record.acknowledged is not None
    assert (record.acknowledged.by, record.acknowledged.reason) == ("ann", "known")
    found.fold(incident(severity="critical", change="worse"))
    assert unseen(found) == [KEY], "ann has seen a warning"


def test_another_viewers_mute_is_in_force_and_ends() -> None:
    found = Incidents()
    found.fold_muted(ev.AnomalyMuted(incident=KEY, source="env07", kind="x", until=9000, by="ann"))
    found.fold(incident())
    assert unseen(found) == []
    found.fold_muted(ev.AnomalyMuted(incident=KEY, source="env07", kind="x", until=0, by="ben"))
    assert unseen(found) == [KEY]


def test_another_boot_ends_what_was_open() -> None:
    found = store(incident(), incident("b1-2", over=3000))
    found.begin_boot()
    assert [record.key for record in found.ordered()] == ["b1-2"]


def test_envs_are_ranked_as_their_incidents_are() -> None:
    found = store(
        incident("noted", "info", envs=[1, 4]),
        incident("wide", "critical", envs=[4, 2]),
        incident("over", "critical", envs=[9], over=3000),
    )
    assert found.env_ranks() == {4: 0, 2: 1, 1: 2}


def test_store_is_bounded_and_open_records_stay() -> None:
    found = store(incident("first"))
    for i in range(3 * MAX_RECORDS):
        found.fold(incident(f"i{i}", over=i + 2))
    assert len(found) == MAX_RECORDS
    assert found.get("first") is not None
    assert found.get("i0") is None, "the oldest that were over"

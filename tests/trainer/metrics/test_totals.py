"""Totals are what the events amount to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES
from esper_overwatch.protocol.server.emitter import Emitted
from esper_overwatch.trainer.metrics.totals import RunTotals, scope_of
from tests.protocol.values import an_event, an_incident
from tests.trainer.journals import at, ended, stage


def test_newest_evaluation_of_each_policy_is_kept() -> None:
    totals = RunTotals()
    for kind, mean in (("no_growth", 0.1), ("ppo", 0.2), ("ppo", 0.3)):
        event = an_event(ev.EvaluationFinished, policy=kind, is_rival=kind != "ppo", return_mean=mean)
        observe(totals, event)
    assert {kind: e.return_mean for kind, e in totals.evaluations.items()} == {"no_growth": 0.1, "ppo": 0.3}


def observe(totals: RunTotals, event: Any, ns: int = 0, rank: int = 0) -> None:
    totals.observe(ev.spec_of(type(event)), [Emitted(ns, event, None, ev.Context(rank=rank))])


@pytest.mark.parametrize(
    ("source", "scope"),
    [
        ("env07", "env"),
        ("env07.r0c1", "seed"),
        ("policy", "policy"),
        ("policy.blueprint", "head"),
        ("critic", "critic"),
        ("system", "system"),
        ("telemetry", "telemetry"),
    ],
)
def test_source_has_its_scope(source: str, scope: str) -> None:
    assert scope_of(source) == scope


changes = st.lists(
    st.tuples(
        st.sampled_from(["b-1", "b-2", "b-3"]),
        st.sampled_from(["began", "worse", "changed", "over"]),
        st.sampled_from(["info", "warning", "critical"]),
    )
)


@given(changes)
def test_incidents_are_those_of_the_newest_events(changes: list[tuple[str, str, str]]) -> None:
    totals, newest, began = RunTotals(), dict[str, str](), 0
    for id_, change, severity in changes:
        is_over = change == "over"
        observe(totals, an_incident(id_, change=change, severity=severity, over=is_over))
        began += change in ("began", "worse")
        newest[id_] = "" if is_over else severity
    for severity in ("info", "warning", "critical"):
        now = list(newest.values()).count(severity)
        assert totals.open_incidents["norm_drift", severity] == now
    assert totals.incidents.total() == began
    assert len(totals.open_incidents) == 3 * len(ANOMALY_GUIDES)


def test_seeds_count_by_their_ends() -> None:
    totals = RunTotals(("norm",))
    for by in ("policy", "governor"):
        observe(totals, stage(at(1, 3, 0), "r0c0", "HOLDING", "FOSSILIZED", by=by)[0])
    assert totals.stage_entries["FOSSILIZED"] == 1
    assert totals.outcomes.total() == 0
    for how in ("FOSSILIZED", "DORMANT", "unheard of"):
        observe(totals, ended(at(1, 3, 0), "r0c0", 0, 2, how)[0])
    assert {key: count for key, count in totals.outcomes.items() if count} == {
        ("FOSSILIZED", "norm"): 1,
        ("DORMANT", "norm"): 1,
    }


def test_checkpoint_time_is_that_of_the_newest_saved() -> None:
    totals = RunTotals(checkpoint_time=1.0)
    observe(totals, ev.CheckpointFailed(path="p", error="full", reason="round"), ns=5 * 10**9)
    assert totals.checkpoint_time == 1.0
    observe(totals, ev.CheckpointSaved(path="p", bytes=1, seconds=1.0, reason="round"), ns=7 * 10**9)
    assert totals.checkpoint_time == 7.0
    assert totals.checkpoints == {"saved": 1, "failed": 1}


def test_only_losses_of_the_journal_count_as_its() -> None:
    totals = RunTotals()
    observe(totals, ev.TelemetryLost(stream="metric", count=5, from_ts=0, to_ts=1))
    observe(totals, ev.TelemetryLost(stream="journal", count=7, from_ts=0, to_ts=1))
    assert totals.journal_lost == 7


def test_ranks_and_phases_are_bounded() -> None:
    totals = RunTotals()
    for rank in range(1000):
        observe(totals, an_event(ev.SystemSample), rank=rank)
    assert len(totals.samples) == 64

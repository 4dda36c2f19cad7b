"""The terminal counts seeds as SQL does, whatever a governor undid and a resumed boot repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overwatch_tui.model.scoreboard import BlueprintTally
from overwatch_tui.model.state import State
from protocol.codec.json_lines import Event
from protocol.messages.events import spec_of
from tests.trainer.journals import BEGIN, Told, at, epoch, round_finished, round_started, stage, started
from trainer.query.tables import Tables
from trainer.query.timeline import Timeline

BLUEPRINTS = ("norm", "attention")


def counts(told: Iterable[Told]) -> tuple[dict[str, BlueprintTally], dict[str, BlueprintTally]]:
    """What the terminal has of a run's events, and what SQL has."""
    events = [
        Event(n, BEGIN + n, spec_of(type(data)).type, spec_of(type(data)).stream, 1, ctx, data)
        for n, (data, ctx) in enumerate(told, 1)
    ]
    state = State()
    for event in events:
        state.fold(event)
    tables = Tables(Timeline(events).valid(events))
    blueprint, end = (list(tables.columns["seeds"]).index(name) for name in ("blueprint", "end_stage"))
    number: Counter[tuple[str, str]] = Counter()
    for row in tables.rows["seeds"]:
        number.update([(row[blueprint], "all"), (row[blueprint], row[end])])
    names = {name for name, _ in number}
    return state.scoreboard.tallies(), {
        name: BlueprintTally(number[name, "all"], number[name, "FOSSILIZED"], number[name, "PRUNED"])
        for name in names
    }


@pytest.mark.finding("DR-05")
def test_a_rollback_is_not_a_new_life() -> None:
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        epoch(1, 1),
        stage(at(1, 1, 0), "r0c0", "GERMINATED", "PRUNED"),
        stage(at(1, 2, 0), "r0c0", "PRUNED", "GERMINATED", by="governor"),
        stage(at(1, 2, 0), "r0c0", "GERMINATED", "PRUNED"),
    ]
    terminal, sql = counts(told)
    assert terminal == sql == {"norm": BlueprintTally(germinated=1, fossilized=0, pruned=1)}


def test_rounds_that_a_resumed_boot_repeats_count_once() -> None:
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        epoch(1, 1),
        stage(at(1, 1, 0), "r0c0", "HOLDING", "FOSSILIZED"),
        epoch(1, 2),
        round_finished(1, 2),
        round_started(2),
        stage(at(2, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        epoch(2, 1),
        stage(at(2, 1, 0), "r0c0", "GERMINATED", "PRUNED"),
        stage(at(2, 1, 1), "r0c0", "DORMANT", "GERMINATED", blueprint="attention"),
        epoch(2, 2),
        started("b2", resumed_round=1),
        epoch(2, 1),
        stage(at(2, 1, 1), "r0c0", "DORMANT", "GERMINATED"),
        epoch(2, 2),
    ]
    terminal, sql = counts(told)
    assert terminal == sql == {"norm": BlueprintTally(germinated=3, fossilized=1, pruned=0)}


_STEP = st.tuples(
    st.integers(0, 1),
    st.sampled_from(("r0c0", "r0c1")),
    st.sampled_from(("GERMINATED", "TRAINING", "FOSSILIZED", "PRUNED", "DORMANT")),
    st.sampled_from(("policy", "policy", "auto", "governor")),
    st.sampled_from(BLUEPRINTS),
)


@given(rounds=st.lists(st.lists(st.lists(_STEP, max_size=4), min_size=3, max_size=3), max_size=3))
def test_the_terminal_counts_what_sql_counts(
    rounds: list[list[list[tuple[int, str, str, str, str]]]],
) -> None:
    told = [started("b1")]
    for n, epochs in enumerate(rounds, 1):
        told.append(round_started(n))
        for e, steps in enumerate(epochs):
            for env, slot, to, by, blueprint in steps:
                told.append(stage(at(n, e, env), slot, "DORMANT", to, by=by, blueprint=blueprint))
            told.append(epoch(n, e + 1))
        told.append(round_finished(n))
    terminal, sql = counts(told)
    assert terminal == sql

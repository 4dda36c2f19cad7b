"""The terminal counts seeds as SQL does, whatever a governor undid and a resumed boot repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from overwatch_tui.model.scoreboard import BlueprintTally
from overwatch_tui.model.state import State
from protocol.codec.json_lines import Event
from protocol.messages.events import spec_of
from tests.trainer.journals import (
    BEGIN,
    Told,
    at,
    epoch,
    round_finished,
    round_started,
    stage,
    started,
    write_run,
)
from tests.trainer.query.test_seed_view import random_round
from trainer.query.database import Database

COUNTED = """
SELECT
    blueprint, count(*),
    count(*) FILTER (end_stage = 'FOSSILIZED'), count(*) FILTER (end_stage = 'PRUNED'),
    coalesce(sum(contribution), 0), count(contribution)
FROM seeds GROUP BY blueprint
"""


def counts(told: Sequence[Told]) -> tuple[dict[str, BlueprintTally], dict[str, BlueprintTally]]:
    """What the terminal has of a run's events, and what SQL has."""
    events = [
        Event(n, BEGIN + n, spec_of(type(data)).type, spec_of(type(data)).stream, 1, ctx, data)
        for n, (data, ctx) in enumerate(told, 1)
    ]
    state = State()
    for event in events:
        state.fold(event)
    with TemporaryDirectory() as home:
        run = write_run(Path(home), "r", told)
        run.release()
        found = Database(run.events).ask(COUNTED).rows
    return state.scoreboard.tallies(), {name: BlueprintTally(*numbers) for name, *numbers in found}


def assert_same(terminal: dict[str, BlueprintTally], sql: dict[str, BlueprintTally]) -> None:
    """Counts are equal; contributions are, but for the order in which they are added."""
    assert terminal == sql
    assert {name: tally.measured for name, tally in terminal.items()} == {
        name: tally.measured for name, tally in sql.items()
    }
    assert {name: tally.mean_contribution for name, tally in terminal.items()} == {
        name: pytest.approx(tally.mean_contribution, rel=1e-9) for name, tally in sql.items()
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
        epoch(1, 1, contribution=[[0.25, None], [None, None]]),
        stage(at(1, 1, 0), "r0c0", "HOLDING", "FOSSILIZED"),
        epoch(1, 2, contribution=[[0.5, None], [None, None]]),
        round_finished(1, 2),
        round_started(2),
        stage(at(2, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        epoch(2, 1, contribution=[[0.125, None], [None, None]]),
        stage(at(2, 1, 0), "r0c0", "GERMINATED", "PRUNED"),
        stage(at(2, 1, 1), "r0c0", "DORMANT", "GERMINATED", blueprint="attention"),
        epoch(2, 2, contribution=[[None, None], [0.75, None]]),
        started("b2", resumed_round=1),
        epoch(2, 1),
        stage(at(2, 1, 1), "r0c0", "DORMANT", "GERMINATED"),
        epoch(2, 2, contribution=[[0.0625, None], [None, None]]),
    ]
    terminal, sql = counts(told)
    assert_same(terminal, sql)
    assert sql == {"norm": BlueprintTally(germinated=3, fossilized=1, pruned=0)}
    assert (sql["norm"].measured, sql["norm"].contributed) == (2, 0.5625)


def test_a_resumed_boot_keeps_what_was_measured_before_it() -> None:
    """It goes on in mid-episode, and its first event is a stage of the epoch after the checkpoint."""
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        epoch(1, 1, contribution=[[0.25, None], [None, None]]),
        started("b2", resumed_round=0),
        stage(at(1, 1, 0), "r0c0", "GERMINATED", "PRUNED"),
        epoch(1, 2),
    ]
    terminal, sql = counts(told)
    assert_same(terminal, sql)
    assert (sql["norm"].measured, sql["norm"].contributed) == (1, 0.25)


def test_the_terminal_counts_what_sql_counts() -> None:
    random_ = random.Random(3)
    told = [started("b1"), *(one for round_ in range(1, 40) for one in random_round(random_, round_))]
    terminal, sql = counts(told)
    assert_same(terminal, sql)
    assert all(tally.germinated > 20 for tally in sql.values())
    assert all(0 < tally.measured < tally.germinated for tally in sql.values())

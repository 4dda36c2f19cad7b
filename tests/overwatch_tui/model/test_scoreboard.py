"""The terminal counts seeds as SQL does, whatever a governor undid and a resumed boot repeated."""

from __future__ import annotations

import random
from collections import Counter
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
        seeds = Database(run.events).ask("SELECT blueprint, end_stage FROM seeds").rows
    number: Counter[tuple[str, str]] = Counter()
    for blueprint, end in seeds:
        number.update([(blueprint, "all"), (blueprint, end)])
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


def test_the_terminal_counts_what_sql_counts() -> None:
    random_ = random.Random(3)
    told = [started("b1"), *(one for round_ in range(1, 40) for one in random_round(random_, round_))]
    terminal, sql = counts(told)
    assert terminal == sql
    assert all(tally.germinated > 20 for tally in sql.values())

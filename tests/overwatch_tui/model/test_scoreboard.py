"""The terminal counts seeds as SQL does, whatever a governor undid and a resumed boot repeated."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from esper_overwatch.overwatch_tui.model.scoreboard import BlueprintTally
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.panels.seeds import score_lines
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed
from esper_overwatch.protocol.client.event_log import JournalEvents
from esper_overwatch.protocol.client.items import Reset
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import RunStarted, spec_of
from esper_overwatch.trainer.query.database import Database
from tests.overwatch_tui.harness import ListFeed, folded, session, snapshot_of
from tests.protocol.harness import until
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
    with journal_of(told) as path:
        return state.scoreboard.tallies(), counted_by_sql(path)


@contextmanager
def journal_of(told: Sequence[Told]) -> Iterator[Path]:
    """The journal of a run that ended."""
    with TemporaryDirectory() as home:
        run = write_run(Path(home), "r", told)
        run.release()
        yield run.events


def counted_by_sql(path: Path) -> dict[str, BlueprintTally]:
    found = Database(path).ask(COUNTED).rows
    return {name: BlueprintTally(*numbers) for name, *numbers in found}


def assert_same(terminal: dict[str, BlueprintTally], sql: dict[str, BlueprintTally]) -> None:
    """Counts are equal; contributions are, but for the order in which they are added."""
    assert terminal == sql
    assert {name: tally.measured for name, tally in terminal.items()} == {
        name: tally.measured for name, tally in sql.items()
    }
    assert {name: tally.mean_contribution for name, tally in terminal.items()} == {
        name: pytest.approx(tally.mean_contribution, rel=1e-9) for name, tally in sql.items()
    }


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


def whole_round(round_: int) -> list[Told]:
    return [
        round_started(round_),
        stage(at(round_, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        epoch(round_, 1, contribution=[[0.25, None], [None, None]]),
        stage(at(round_, 1, 0), "r0c0", "GERMINATED", "TRAINING"),
        epoch(round_, 2, contribution=[[0.5, None], [None, None]]),
        stage(at(round_, 2, 0), "r0c0", "TRAINING", "BLENDING"),
        stage(at(round_, 2, 0), "r0c0", "BLENDING", "FOSSILIZED"),
        epoch(round_, 3),
        round_finished(round_),
    ]


BOOTS = [
    started("b1"),
    *whole_round(1),
    *whole_round(2),
    *whole_round(3)[:4],
    started("b2", resumed_round=2),
    *whole_round(3),
    *whole_round(4)[:3],
]


def test_recording_of_several_boots_counts_all_of_them() -> None:
    with journal_of(BOOTS) as path:
        feed = ReplayFeed(path, math.inf)
        made = Session(feed, ViewState())
        until(lambda: (made.tick(), feed.is_over)[1])
        made.tick()
        assert_same(made.state.scoreboard.tallies(), counted_by_sql(path))
    assert made.state.scoreboard.tallies()["norm"].germinated == 4
    assert made.state.scoreboard.is_whole
    assert "BLUEPRINT" in score_heading(made)


def score_heading(made: Session) -> str:
    return plain(score_lines(made.panel_inputs(), 120)[0])


def journal_events(told: Sequence[Told]) -> list[Event]:
    with journal_of(told) as path:
        return list(JournalEvents(path).read())


def test_reconnections_change_no_counts() -> None:
    found = journal_events(BOOTS)
    second = next(i for i, e in enumerate(found) if isinstance(e.data, RunStarted) and e.data.boot == "b2")
    first, of_boot = found[:second], found[second:]
    made = session(first)
    feed = made.feed
    assert isinstance(feed, ListFeed)
    wanted = folded(first).scoreboard.tallies()
    assert made.state.scoreboard.tallies() == wanted
    feed.items = [Reset("again"), *snapshot_of(first)]
    made.tick()
    assert_same(made.state.scoreboard.tallies(), wanted)
    feed.boot = "b2"
    feed.items = [Reset("b2"), *of_boot[:6]]
    made.tick()
    feed.items = [*of_boot[6:9], Reset("again"), *snapshot_of(of_boot[:9]), *of_boot[9:]]
    made.tick()
    with journal_of(BOOTS) as path:
        assert_same(made.state.scoreboard.tallies(), counted_by_sql(path))
    assert "BLUEPRINT" in score_heading(made)


def test_heading_says_that_events_are_missing() -> None:
    found = journal_events(BOOTS)
    late = session(snapshot_of(found[:16]))
    feed = late.feed
    assert isinstance(feed, ListFeed)
    feed.items = list(found[16:])
    late.tick()
    assert late.state.scoreboard.tallies()["norm"].germinated < 4
    assert "SEEN HERE" in score_heading(late)
    cut_off = session(found[:16])
    feed = cut_off.feed
    assert isinstance(feed, ListFeed)
    feed.items = [Reset("again"), *snapshot_of(found[24:28])]
    cut_off.tick()
    assert "SEEN HERE" in score_heading(cut_off)

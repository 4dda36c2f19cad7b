"""Terminal, SQL and the seeds' stories count each seed once, whatever was undone or played again."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from esper_overwatch.overwatch_tui.model import seed_stories
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.panels.seeds import score_lines
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed
from esper_overwatch.protocol.client.event_log import JournalEvents
from esper_overwatch.protocol.client.items import Reset
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.journal.seed_counts import SeedCount, SeedCounts
from esper_overwatch.protocol.messages.events import RunRewound, RunStarted
from esper_overwatch.trainer.query.database import Database
from tests.overwatch_tui.harness import ListFeed, folded, session, snapshot_of
from tests.protocol.harness import until
from tests.trainer.journals import (
    Told,
    at,
    ended,
    epoch,
    round_finished,
    round_started,
    stage,
    started,
    write_run,
)
from tests.trainer.seed_histories import EPOCHS, History, random_history

COUNTED = """
SELECT
    blueprint, count(*),
    count(*) FILTER (end_stage = 'FOSSILIZED'), count(*) FILTER (end_stage = 'PRUNED'),
    coalesce(sum(contribution), 0), count(contribution)
FROM seeds GROUP BY blueprint
"""
ENDS = "SELECT round, env, seed, end_stage, end_epoch, contribution FROM seeds ORDER BY round, env, seed"
Counts = dict[str, SeedCount]


@contextmanager
def journal_of(told: Sequence[Told]) -> Iterator[Path]:
    """The journal of a run that ended."""
    with TemporaryDirectory() as home:
        run = write_run(Path(home), "r", told)
        run.release()
        yield run.events


def journal_events(told: Sequence[Told]) -> list[Event]:
    with journal_of(told) as path:
        return list(JournalEvents(path).read())


def counted_by_sql(path: Path) -> Counts:
    found = Database(path).ask(COUNTED).rows
    return {name: SeedCount(*numbers) for name, *numbers in found}


def assert_same(counts: Counts, others: Counts) -> None:
    """Counts are equal; contributions are, but for the order in which they are added."""
    assert counts == others
    assert {name: (one.measured, pytest.approx(one.contributed)) for name, one in counts.items()} == {
        name: (one.measured, one.contributed) for name, one in others.items()
    }


def count(history: History) -> Counts:
    """The counts of the seeds that a history has, ended or not."""
    total: Counts = {}
    present = [] if history.epoch == EPOCHS else [one for own in history.seeds.values() for one in own]
    for seed in (*(end for _, _, end in history.ends), *present):
        assert seed.blueprint is not None
        total[seed.blueprint] = total.get(seed.blueprint, SeedCount()) + SeedCount.of(seed)
    return total


def ends_of(state: State) -> list[tuple[object, ...]]:
    stories = [story for story in state.stories.ended() if story.is_told]
    return sorted((s.round, s.env, s.seed, s.end_stage, s.end_epoch, s.contribution) for s in stories)


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(8, 80))]
)
def test_all_count_the_seeds_that_a_run_had(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_stories, "MAX_ENDED", 10_000)
    history = random_history(seed)
    state = folded(journal_events(history.told))
    wanted = sorted((r, env, x.seed, x.how, x.ended, x.contribution) for r, env, x in history.ends)
    assert state.seed_counts.is_whole
    assert_same(state.seed_counts.by_blueprint(), count(history))
    assert ends_of(state) == wanted
    with journal_of(history.told) as path:
        assert_same(counted_by_sql(path), count(history))
        told = {row[2] for row in wanted}
        assert [row for row in Database(path).ask(ENDS).rows if row[2] in told] == wanted


def test_histories_have_all_that_undoes_seeds() -> None:
    histories = [random_history(seed) for seed in range(8)]
    ends = [end.how for history in histories for _, _, end in history.ends]
    assert {*ends} == {"GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED", "PRUNED", "DORMANT"}
    assert sum(history.boots for history in histories) > 20
    assert any(0 < history.epoch < EPOCHS for history in histories)


def whole_run() -> History:
    """Two boots: the second goes back into the midst of a round of which the first has told the end."""
    history = random_history(1, steps=3)
    history.play(2 * EPOCHS - history.epoch + 2)
    saved = history.save()
    history.play(EPOCHS)
    history.go_back(saved)
    history.play(EPOCHS)
    return history


def test_recording_of_several_boots_counts_all_of_them() -> None:
    history = whole_run()
    with journal_of(history.told) as path:
        feed = ReplayFeed(path, math.inf)
        made = Session(feed, ViewState())
        until(lambda: (made.tick(), feed.is_over)[1])
        made.tick()
    assert_same(made.state.seed_counts.by_blueprint(), count(history))
    assert made.state.seed_counts.is_whole
    assert "BLUEPRINT" in score_heading(made)


def score_heading(made: Session) -> str:
    return plain(score_lines(made.panel_inputs(), 120)[0])


def listed(made: Session, items: Iterable[object]) -> None:
    assert isinstance(made.feed, ListFeed)
    made.feed.items = list(items)
    made.tick()


def test_reconnections_change_no_counts() -> None:
    history = whole_run()
    found = journal_events(history.told)
    newest = max(i for i, event in enumerate(found) if isinstance(event.data, RunStarted))
    first, of_boot = found[:newest], found[newest:]
    made = session(first)
    wanted = folded(first).seed_counts.by_blueprint()
    listed(made, [Reset("again"), *snapshot_of(first)])
    assert_same(made.state.seed_counts.by_blueprint(), wanted)
    assert isinstance(made.feed, ListFeed)
    made.feed.boot = of_boot[0].data.boot
    listed(made, [Reset("another boot"), *of_boot[:6]])
    listed(made, [*of_boot[6:9], Reset("again"), *snapshot_of(of_boot[:9]), *of_boot[9:]])
    assert_same(made.state.seed_counts.by_blueprint(), count(history))
    assert "BLUEPRINT" in score_heading(made)


def test_copies_share_the_counts_of_finished_rounds() -> None:
    (event,) = journal_events([ended(at(1, 2, 0), "r0c0", 0, 2, "PRUNED")])
    counts = SeedCounts()
    for round_ in range(500):
        counts.end(replace(event, ctx=at(round_, 2, 0)))
    copies, wanted = [counts.copy() for _ in range(20)], counts.by_blueprint()
    assert len(pickle.dumps(copies)) < 8 * len(pickle.dumps(counts))
    counts.end(replace(event, ctx=at(499, 3, 0)))
    assert copies[0].by_blueprint() == wanted
    assert counts.by_blueprint() != wanted


def test_boot_goes_back_into_rounds_that_are_packed() -> None:
    (event,) = journal_events([ended(at(1, 2, 0), "r0c0", 0, 2, "PRUNED")])
    counts = SeedCounts()
    for round_ in range(1, 501):
        counts.end(replace(event, ctx=at(round_, 2, 0)))
    for first in (499, 420, 3):
        counts.rewind(RunRewound(round=first, epoch=0, from_round=500, from_epoch=2, last={}))
        assert sum(count.germinated for count in counts.by_blueprint().values()) == first - 1


def test_counts_of_a_day_are_small() -> None:
    (event,) = journal_events([ended(at(1, 2, 0), "r0c0", 0, 2, "PRUNED")])
    counts = SeedCounts()
    for round_ in range(1440):
        counts.end(replace(event, ctx=at(round_, 2, 0)))
    assert len(pickle.dumps(counts)) < 20_000
    assert sum(count.germinated for count in counts.by_blueprint().values()) == 1440


def test_heading_says_that_events_are_missing() -> None:
    history = whole_run()
    found = journal_events(history.told)
    late = session(snapshot_of(found[:30]))
    listed(late, found[30:])
    assert "SEEN HERE" in score_heading(late)
    cut_off = session(found[:30])
    listed(cut_off, [Reset("again"), *snapshot_of(found[40:50])])
    assert "SEEN HERE" in score_heading(cut_off)


def test_heading_says_that_a_version_told_no_ends() -> None:
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        epoch(1, 1),
        round_finished(1, germinated=1),
        round_started(2),
        stage(at(2, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
    ]
    assert "SEEN HERE" in score_heading(session(journal_events(told)))

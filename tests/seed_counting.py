"""The seeds of a journal's finished rounds, counted by all that count them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from esper_overwatch.overwatch_tui.model import seed_stories
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.messages.events import Context, RunStarted, SeedStage, spec_of
from esper_overwatch.trainer.metrics.totals import RunTotals
from esper_overwatch.trainer.query.database import Database
from esper_overwatch.trainer.query.timeline import valid_events

ENDED = "count_if(end_stage = 'FOSSILIZED'), count_if(end_stage = 'PRUNED')"
FINISHED = "FROM seeds WHERE round IN (SELECT round FROM rounds)"
SUMS = {
    "rounds": "SELECT sum(germinated), sum(fossilized), sum(pruned) FROM rounds",
    "episodes": "SELECT sum(planted), sum(fossilized), sum(pruned) FROM episodes",
    "seeds": f"SELECT count(*), {ENDED} {FINISHED}",
}
NAMES = ("germinated", "fossilized", "pruned")


def count_seeds(journal: Path) -> Counter[str]:
    """Seeds of finished rounds by how they ended; all must count the same."""
    database = Database(journal)
    ends = Counter(dict(database.ask(f"SELECT end_stage, count(*) {FINISHED} GROUP BY ALL").rows))
    undone = database.ask("SELECT sum(undone) FROM episodes").rows[0][0] or 0
    planted = database.ask("SELECT count(*) FROM seeds").rows[0][0]
    # A sum over no rows, of a run that was killed in its first round, is NULL.
    sums = {name: tuple(int(one or 0) for one in database.ask(sql).rows[0]) for name, sql in SUMS.items()}
    database.close()
    with patch.multiple(seed_stories, MAX_ENDED=10**6, MAX_SEEDS=10**6):
        state = _replayed(journal)
        stories = [story for story in state.stories.ended() if story.is_told]
    later: Any = SimpleNamespace(ctx=Context(round=10**6), data=SimpleNamespace(contribution=[]))
    state.seed_counts.epoch(later, [])  # so that the seeds of a round that is not over do not count
    totals = state.seed_counts.by_blueprint().values()
    sums["terminal"] = tuple(sum(getattr(one, name) for one in totals) for name in NAMES)
    valid = [*valid_events(journal, DamageReport())]
    assert state.seed_counts.is_whole
    assert len({*sums.values()}) == 1, sums
    assert ends["DORMANT"] == undone
    assert sum(map(_is_birth, valid)) == planted
    assert Counter(story.end_stage for story in stories) == ends
    assert Counter(event.data.how for event in valid if event.type == "seed.ended") == ends
    assert _of_prometheus(valid) == ends
    return ends


def _replayed(journal: Path) -> State:
    """The terminal's state after the recording."""
    feed = ReplayFeed(journal, math.inf)
    session = Session(feed, ViewState())
    while not feed.is_over:
        session.tick()
    session.tick()
    return session.state


def _is_birth(event: Event) -> bool:
    data = event.data
    return isinstance(data, SeedStage) and data.to_stage == "GERMINATED" and data.by != "governor"


def _of_prometheus(valid: Sequence[Event]) -> Counter[str]:
    blueprints = {
        name for event in valid if isinstance(event.data, RunStarted) for name in event.data.blueprints
    }
    totals = RunTotals(sorted(blueprints))
    for event in valid:
        item: Any = SimpleNamespace(event=event.data, ctx=event.ctx, ns=event.ts * 1000)
        totals.observe(spec_of(type(event.data)), [item])
    found: Counter[str] = Counter()
    for (outcome, _), count in totals.outcomes.items():
        found[outcome] += count
    return found

"""The SQL of `seeds` against the rules in Python, over rounds of random stages and rollbacks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.journal.seed_lives import Lives
from esper_overwatch.protocol.messages.events import EpochFinished, RoundFinished, SeedStage
from esper_overwatch.trainer.query.database import Database
from esper_overwatch.trainer.query.timeline import valid_events
from tests.trainer.journals import (
    SLOTS,
    Told,
    at,
    epoch,
    round_finished,
    round_started,
    stage,
    started,
    write_run,
)

STAGES = ["GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED", "PRUNED", "EMBARGOED", "DORMANT"]
BLUEPRINTS = ["norm", "attention"]


def random_round(random_: random.Random, round_: int) -> list[Told]:
    """Stages of two envs in any order, by the policy and by the governor; most rounds end."""
    told = [round_started(round_)]
    for epoch_ in range(random_.randint(2, 6)):
        for _ in range(random_.randint(0, 6)):
            by = "governor" if random_.random() < 0.3 else "policy"
            to = random_.choice(["GERMINATED", *STAGES])
            changes: dict[str, Any] = {
                "by": by,
                "blueprint": None if to == "DORMANT" else random_.choice(BLUEPRINTS),
                "contribution": random_.choice([None, round(random_.random(), 3)]),
                "seed": f"s{random_.random()}",
            }
            where = at(round_, epoch_, random_.randint(0, 1))
            told.append(stage(where, random_.choice(SLOTS), "DORMANT", to, **changes))
        measured = [[random_.choice([None, round(random_.random(), 3)]) for _ in SLOTS] for _ in range(2)]
        told.append(epoch(round_, epoch_ + 1, contribution=measured))
    return [*told, round_finished(round_)] if random_.random() < 0.8 else told


def lives_of(journal: Path) -> list[tuple[Any, ...]]:
    lives = Lives()
    for event in valid_events(journal, DamageReport()):
        if isinstance(event.data, SeedStage):
            lives.stage(event)
        elif isinstance(event.data, EpochFinished):
            lives.contributions(event.ctx.round, event.data.contribution, SLOTS)
        elif isinstance(event.data, RoundFinished):
            lives.round_finished(event.ctx.round, event.ctx.epoch)
    return [
        (
            x.env,
            x.slot,
            x.blueprint,
            x.round,
            x.germinated_epoch,
            x.end_epoch,
            x.end_stage,
            x.contribution,
            x.seed,
        )
        for x in lives.all
    ]


def test_seeds_follow_the_rules_that_the_terminal_has(tmp_path: Path) -> None:
    random_ = random.Random(7)
    told = [started("b1")]
    for round_ in range(1, 200):
        told += random_round(random_, round_)
        if random_.random() < 0.05:
            told += [started(f"b{round_}", resumed_round=round_ - 1), *random_round(random_, round_)]
    run = write_run(tmp_path, "r", told)
    run.release()
    expected = lives_of(run.events)
    found = Database(run.events).ask("SELECT * EXCLUDE (parameters) FROM seeds").rows
    assert len(expected) > 300
    assert sum(life[6] == "DORMANT" for life in expected) > 20
    assert [life for life in found if life not in expected] == []
    assert found == expected

"""What each view holds of a known journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.trainer.policy.feature_statistics import FEATURE_GROUPS
from esper_overwatch.trainer.query.database import Database, QueryError
from esper_overwatch.trainer.query.views import DESCRIPTIONS
from esper_overwatch.trainer.telemetry.round_events import update_event
from tests.protocol.values import an_event
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
from tests.trainer.telemetry.rig import healthy_update


def database(home: Path, told: Iterable[Told]) -> Database:
    run = write_run(home, "r", told)
    run.release()
    return Database(run.events)


def ask(db: Database, sql: str) -> list[tuple[Any, ...]]:
    return db.ask(sql).rows


ONE_ROUND = [started("b1"), round_started(1), epoch(1, 1), epoch(1, 2), epoch(1, 3, 0.75), round_finished(1)]


def test_epochs_have_a_row_per_env(tmp_path: Path) -> None:
    db = database(tmp_path, ONE_ROUND)
    rows = ask(db, "SELECT round, epoch, env, val_accuracy, parameters FROM epochs ORDER BY ALL")
    assert rows[:2] == [(1, 1, 0, 0.5, 10), (1, 1, 1, 0.25, 20)]
    assert rows[-1] == (1, 3, 1, 0.375, 20)
    assert len(rows) == 6
    assert ask(db, "SELECT val_loss FROM epochs WHERE env = 1 LIMIT 1") == [(None,)]
    ((norm,),) = ask(db, "SELECT host_grad_norm FROM epochs WHERE env = 1 LIMIT 1")
    assert isnan(norm)
    ((ts,),) = ask(db, "SELECT min(ts) FROM epochs")
    assert ts == datetime(2026, 5, 28, 20, 26, 42)


def test_columns_of_one_name_are_numbered(tmp_path: Path) -> None:
    db = database(tmp_path, ONE_ROUND)
    result = db.ask("SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS b, 5 AS a")
    assert result.columns == ["a", "a_2", "a_1", "b", "a_3"], "no number is another column's name"
    assert db.ask("SELECT 1 AS a, 2 AS a", max_rows=1).columns == ["a", "a_1"]


def test_rounds_decisions_and_rewards(tmp_path: Path) -> None:
    db = database(tmp_path, ONE_ROUND)
    assert ask(db, "SELECT boot, round, seconds, accuracy_best, test_accuracy_best FROM rounds") == [
        ("b1", 1, 1.5, 0.5, None)
    ]
    assert ask(db, "SELECT op, slot, count(*) FROM decisions GROUP BY ALL ORDER BY op") == [
        ("GERMINATE", "r0c1", 3),
        ("WAIT", None, 3),
    ]
    assert ask(db, "SELECT env, gain, rent, gain + rent = reward FROM rewards WHERE epoch = 1") == [
        (0, 0.5, -0.25, True),
        (1, 0.75, -0.25, True),
    ]


def test_interactions_have_a_row_per_pair(tmp_path: Path) -> None:
    told = ev.ShapleyComputed(
        value=[[0.25, 0.5], [None, None]],
        half_width=[[0.0, 0.0], [None, None]],
        coalitions=[4, 0],
        interaction=[[[None, -0.125], [-0.125, None]], [[None, None], [None, None]]],
    )
    db = database(tmp_path, [started("b1"), round_started(1), epoch(1, 1), (told, at(1, 1))])
    assert ask(db, "SELECT * FROM interactions") == [(1, 0, "r0c0", "r0c1", -0.125)]
    assert ask(db, "SELECT slot, value FROM shapley ORDER BY slot") == [("r0c0", 0.25), ("r0c1", 0.5)]
    assert ask(db, "SELECT DISTINCT interaction FROM slots") == [(None,)], "an epoch of before"


def episode(task: str | None, seeds: dict[str, int] | None = None, **components: float) -> ev.EpisodeFinished:
    values = {"total_return": sum(components.values()), "reward_components": components}
    return an_event(ev.EpisodeFinished, seeds=seeds or {}, task=task, **values)


def test_returns_have_a_row_per_component_and_task(tmp_path: Path) -> None:
    told = [
        (episode("digits", gain=1.0, rent=-0.5), at(1, 1, 0)),
        (episode("digits", gain=0.5, rent=0.0), at(1, 1, 1)),
        (episode("layout", gain=0.0, rent=0.0), at(1, 1, 2)),
        (episode(None, gain=0.25), at(2, 1, 0)),
    ]
    db = database(tmp_path, [started("b1"), round_started(1), *told])
    assert ask(db, "SELECT round, task, component, mean, share FROM returns ORDER BY ALL") == [
        (1, "digits", "gain", 0.75, 1.5),
        (1, "digits", "rent", -0.25, -0.5),
        (1, "layout", "gain", 0.0, None),
        (1, "layout", "rent", 0.0, None),
        (2, None, "gain", 0.25, 1.0),
    ]


def test_observations_have_a_row_per_group(tmp_path: Path) -> None:
    update = update_event(healthy_update())
    db = database(tmp_path, [started("b1"), round_started(1), epoch(1, 1), (update, at(1, 1))])
    rows = ask(
        db, "SELECT round, feature_group, mean, std, outliers, clipped, missing, drift FROM observations"
    )
    assert [row[1] for row in rows] == list(FEATURE_GROUPS)
    assert {(row[0], *row[2:]) for row in rows} == {(1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)}
    older = dataclasses.replace(update, observation_groups={})
    assert ask(database(tmp_path / "older", [started("b1"), (older, at(1, 1))]), "FROM observations") == []


def test_a_component_that_comes_later_is_null_before(tmp_path: Path) -> None:
    later = epoch(1, 2, reward_components={"gain": [1.0, 1.0], "rollback": [-0.5, 0.0]})
    db = database(tmp_path, [started("b1"), round_started(1), epoch(1, 1), later])
    assert ask(db, "SELECT epoch, rent, rollback FROM rewards WHERE env = 0 ORDER BY epoch") == [
        (1, -0.25, None),
        (2, None, -0.5),
    ]


LIVED = [
    (0, "r0c0", "norm", 1, 0, 2, "FOSSILIZED", 0.5),
    (1, "r0c1", "attention", 1, 0, 1, "PRUNED", -0.125),
    (1, "r0c0", "norm", 1, 2, 3, "GERMINATED", None),
    (0, "r0c0", "norm", 2, 0, None, None, None),
]
COLUMNS = "env, slot, blueprint, round, germinated_epoch, end_epoch, end_stage, contribution"


def told_lives(*ends: Told) -> list[Told]:
    """Two rounds, of which the first is over; these events told how its seeds ended."""
    return [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        stage(at(1, 0, 1), "r0c1", "DORMANT", "GERMINATED", blueprint="attention", parameters=99),
        epoch(1, 1),
        stage(at(1, 1, 0), "r0c0", "GERMINATED", "TRAINING", by="auto"),
        stage(at(1, 1, 1), "r0c1", "GERMINATED", "PRUNED", blueprint="attention", contribution=-0.125),
        epoch(1, 2, contribution=[[0.25, None], [None, 0.9]]),
        stage(at(1, 2, 0), "r0c0", "HOLDING", "FOSSILIZED"),
        stage(at(1, 2, 1), "r0c0", "DORMANT", "GERMINATED"),
        epoch(1, 3, contribution=[[0.5, None], [None, None]]),
        *ends,
        round_finished(1, germinated=3),
        round_started(2),
        stage(at(2, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        epoch(2, 1),
    ]


def test_seeds_from_birth_to_end(tmp_path: Path) -> None:
    told = told_lives(
        ended(at(1, 3, 0), "r0c0", 0, 2, "FOSSILIZED", contribution=0.5),
        ended(at(1, 3, 1), "r0c1", 0, 1, "PRUNED", contribution=-0.125, blueprint="attention"),
        ended(at(1, 3, 1), "r0c0", 2, 3, "GERMINATED"),
    )
    db = database(tmp_path, told)
    assert ask(db, f"SELECT {COLUMNS} FROM seeds") == LIVED
    assert list(db.columns["seeds"]) == [*COLUMNS.split(", "), "parameters", "seed"]


def test_seeds_of_older_journals_are_what_their_stages_tell(tmp_path: Path) -> None:
    assert ask(database(tmp_path, told_lives()), f"SELECT {COLUMNS} FROM seeds") == LIVED


def test_seeds_that_an_older_journal_lacks_are_refused(tmp_path: Path) -> None:
    undone = (episode(None, {"DORMANT": 1}), at(1, 3, 0))
    db = database(tmp_path, told_lives(undone))
    with pytest.raises(QueryError, match=r"seeds: rounds 1 to 1 are of a version .*; ask episodes or stages"):
        ask(db, "SELECT count(*) FROM seeds")
    assert ask(db, "SELECT count(*) FROM stages") == [(7,)]


def choices(**heads: int | None) -> dict[str, list[int | None]]:
    """Of env 1; env 0 waits."""
    return {name: [None, choice] for name, choice in heads.items()}


def test_proposal_gate_effect_and_outcome_join_by_ids(tmp_path: Path) -> None:
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 1), "r0c1", "DORMANT", "GERMINATED", seed="r1e0n1s1", action="r1e0n1"),
        epoch(
            1,
            1,
            action=["r1e0n0", "r1e0n1"],
            executed=[True, True],
            heads=choices(op=1, slot=1, blueprint=1, style=2, tempo=0),
            gates_asked=[[4, 0], [2, 1]],
            gates_passed=[[0, 0], [2, 1]],
            probability=[1.0, 0.2],
            op_probability=[[1.0, 0.0, 0.0], [0.125, 0.5, 0.375]],
            value=[-0.5, 0.25],
        ),
        stage(at(1, 1, 1), "r0c1", "GERMINATED", "PRUNED", by="operator", seed="r1e0n1s1"),
        epoch(1, 2, gates_asked=[[4, 0], [0, 0]], gates_passed=[[4, 0], [0, 0]]),
        epoch(1, 3),
        round_finished(1),
    ]
    db = database(tmp_path, told)
    assert ask(db, "SELECT gate, passed, count(*) FROM gates GROUP BY ALL ORDER BY ALL") == [
        ("G0", True, 1),
        ("G1", True, 1),
        ("G2", False, 1),
        ("G2", True, 1),
    ]
    joined = """SELECT op, d.blueprint, style, tempo, alpha_target, gate, passed, to_stage, end_stage
        FROM decisions d JOIN gates USING (action) JOIN stages s USING (action) JOIN seeds USING (seed)"""
    assert ask(db, joined) == [
        ("GERMINATE", "attention", "GATE", 3, None, "G0", True, "GERMINATED", "PRUNED")
    ]
    assert ask(db, "SELECT to_stage, actor FROM stages") == [("GERMINATED", "policy"), ("PRUNED", "operator")]
    judged = (
        "SELECT op, probability, op_probability, value, alternative, alternative_probability FROM decisions"
    )
    assert ask(db, f"{judged} WHERE action IS NOT NULL ORDER BY env") == [
        ("WAIT", 1.0, 1.0, -0.5, None, None),
        ("GERMINATE", 0.2, 0.5, 0.25, "PRUNE", 0.375),
    ]
    older = ask(db, f"{judged} WHERE action IS NULL")
    assert [row[1:] for row in older] == [(None,) * 5] * 4, "of an older journal"


def test_what_an_operator_caused_joins_the_command(tmp_path: Path) -> None:
    planted = {"by": "operator", "seed": "r1e0n1s1", "command": "c1"}
    told = [
        started("b1"),
        round_started(1),
        (ev.CommandAccepted(id="c1", method="seed.germinate", params={}, client="me"), at(1, 0)),
        stage(at(1, 0, 1), "r0c1", "DORMANT", "GERMINATED", **planted),
        (ev.CommandDone(id="c1", method="seed.germinate", result={}, seconds=0.25), at(1, 0)),
        epoch(1, 1),
        stage(at(1, 1, 1), "r0c1", "GERMINATED", "PRUNED", seed="r1e0n1s1"),
        round_finished(1),
    ]
    joined = """SELECT client, method, to_stage, stages.slot, end_stage FROM commands
        JOIN stages ON stages.command = commands.id JOIN seeds USING (seed)"""
    found = ask(database(tmp_path, told), joined)
    assert found == [("me", "seed.germinate", "GERMINATED", "r0c1", "PRUNED")]


def test_a_journal_of_the_first_version_can_be_asked(tmp_path: Path) -> None:
    """Its events lack the fields that have come since; a journal has no unknown columns."""
    lines = (Path(__file__).parents[2] / "protocol/corpus/v1/events.jsonl").read_bytes()
    (tmp_path / "events.jsonl").write_bytes(lines)
    db = Database(tmp_path / "events.jsonl")
    assert ask(db, "SELECT DISTINCT action FROM stages") == [(None,)]
    assert ask(db, "SELECT count(*) > 0 FROM decisions") == [(True,)]
    assert ask(db, "SELECT count(*) FROM gates") == [(0,)]
    for view in DESCRIPTIONS.keys() - {"seeds"}:
        ask(db, f"SELECT * FROM {view}")
    with pytest.raises(QueryError, match=r"seeds: rounds 2 to 2 are of a version"):
        ask(db, "SELECT * FROM seeds")


def test_what_a_resumed_boot_plays_anew_counts_once(tmp_path: Path) -> None:
    told = [
        started("b1"),
        round_started(1),
        epoch(1, 1),
        epoch(1, 2),
        epoch(1, 3),
        round_finished(1),
        round_started(2),
        stage(at(2, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        epoch(2, 1, 0.1),
        epoch(2, 2, 0.1),
        epoch(2, 3, 0.1),
        round_finished(2, accuracy=0.1),
        round_started(3),
        epoch(3, 1, 0.1),
        started("b2", resumed_round=1),
        round_started(2),
        epoch(2, 1, 0.9),
        epoch(2, 2, 0.9),
        started("b3", resumed_round=1),
        epoch(2, 2, 0.95),
    ]
    db = database(tmp_path, told)
    assert ask(db, "SELECT round, epoch, val_accuracy FROM epochs WHERE env = 0 ORDER BY ALL") == [
        (1, 1, 0.5),
        (1, 2, 0.5),
        (1, 3, 0.5),
        (2, 1, 0.9),
        (2, 2, 0.95),
    ]
    assert ask(db, "SELECT round, boot FROM rounds") == [(1, "b1")]
    assert ask(db, "SELECT count(*) FROM seeds") == [(0,)]


def test_resume_at_round_end_keeps_last_epoch(tmp_path: Path) -> None:
    told = [*ONE_ROUND, started("b2", resumed_round=0), round_finished(1, accuracy=0.6)]
    db = database(tmp_path, told)
    assert ask(db, "SELECT max(epoch) FROM epochs") == [(3,)]
    assert ask(db, "SELECT boot, accuracy_mean FROM rounds") == [("b2", 0.6)]


def test_anomalies_and_commands(tmp_path: Path) -> None:
    accepted = ev.CommandAccepted(id="c1", method="pause", params={"a": 1}, client="me", uid=7)
    told: list[Told] = [
        started("b1"),
        (
            ev.Anomaly(kind="stalled", source="env01", severity="warning", active=True, value=0.5, hint="h"),
            at(1, 2),
        ),
        (accepted, at(1, 2)),
        (ev.CommandAccepted(id="c2", method="stop", params={}, client="me"), at(1, 2)),
        (ev.CommandRefused(id="c3", method="resume", code=-32003, message="no", client="me"), at(1, 2)),
        (ev.CommandDone(id="c1", method="pause", result={}, seconds=0.25), at(1, 3)),
        (ev.CommandAccepted(id="c4", method="checkpoint", params={}, client="me"), at(1, 3)),
        (ev.CommandFailed(id="c4", method="checkpoint", kind="internal", message="full"), at(1, 3)),
    ]
    db = database(tmp_path, told)
    assert ask(db, "SELECT boot, epoch, kind, source, severity, active, value FROM anomalies") == [
        ("b1", 2, "stalled", "env01", "warning", True, 0.5)
    ]
    assert ask(db, "SELECT id, method, outcome, seconds, message, params FROM commands ORDER BY id") == [
        ("c1", "pause", "done", 0.25, None, '{"a":1}'),
        ("c2", "stop", "open", None, None, "{}"),
        ("c3", "resume", "refused", None, "no", None),
        ("c4", "checkpoint", "failed", None, "full", "{}"),
    ]


def test_torn_and_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    run = write_run(tmp_path, "r", ONE_ROUND)
    run.release()
    lines = run.events.read_bytes().splitlines(keepends=True)
    lines[3] = b"\x00\x01 not an event\n"
    run.events.write_bytes(b"".join(lines)[:-20])
    db = Database(run.events)
    assert db.damage.num_places == 1
    assert ask(db, "SELECT count(*) FROM epochs") == [(4,)]
    assert ask(db, "SELECT count(*) FROM rounds") == [(0,)]


def test_an_empty_journal_has_all_views(tmp_path: Path) -> None:
    db = database(tmp_path, [])
    for view in DESCRIPTIONS:
        assert ask(db, f"SELECT count(*) FROM {view}") == [(0,)]


@pytest.mark.parametrize("sql", ["selct", "SELECT nope FROM epochs", "SELECT * FROM columns_of_python"])
def test_wrong_sql_is_one_line(tmp_path: Path, sql: str) -> None:
    columns_of_python = {"a": [1]}
    assert columns_of_python
    db = database(tmp_path, ONE_ROUND)
    with pytest.raises(QueryError) as caught:
        db.ask(sql)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("sql", ["", " -- nothing", "SELECT * FROM seeds"])
def test_no_answer_is_no_rows(tmp_path: Path, sql: str) -> None:
    assert database(tmp_path, ONE_ROUND).ask(sql).rows == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM glob('{file}')",
        "SELECT * FROM '{file}'",
        "COPY rounds TO '{new}'",
        "ATTACH '{new}'",
        "EXPORT DATABASE '{new}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
    ],
)
def test_sql_reaches_nothing_outside_its_tables(tmp_path: Path, sql: str) -> None:
    db = database(tmp_path, ONE_ROUND)
    file, new = tmp_path / "secret.csv", tmp_path / "new"
    file.write_text("secret\n1\n")
    with pytest.raises(QueryError):
        db.ask(sql.format(file=file, new=new))
    assert not new.exists()
    assert ask(db, "SELECT count(*) FROM rounds") == [(1,)]


def test_times_with_a_zone_are_utc(tmp_path: Path) -> None:
    pytest.importorskip("pytz", reason="an environment made before the extra had it")
    db = database(tmp_path, ONE_ROUND)
    ((now, zone),) = ask(db, "SELECT now(), current_setting('TimeZone')")
    assert zone == "UTC"
    assert now.utcoffset().total_seconds() == 0

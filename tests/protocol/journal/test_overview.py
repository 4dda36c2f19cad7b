"""A run's figures for the list of runs, read from its journal's tail."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.codec.json_lines import encode_event
from esper_overwatch.protocol.errors import RunNotFound
from esper_overwatch.protocol.journal.overview import MAX_VALUES, choose_metric, read_overview
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Context
from esper_overwatch.protocol.next_commands import next_commands
from esper_overwatch.protocol.runs import RunFolder, find_run
from tests.protocol.values import an_event, an_incident
from tests.trainer.command import esper


class Journal:
    """Writes `events.jsonl`, event by event."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ts = 1_000_000

    def add(self, data: Any, *, round: int = 0, epoch: int = 0) -> None:
        self.ts += 1_000_000
        with self.path.open("ab") as file:
            ctx = Context(round=round, epoch=epoch)
            file.write(encode_event(self.ts // 1_000_000, self.ts, ctx, data) + b"\n")

    def add_round(self, number: int, total: float) -> None:
        self.add(ev.RoundStarted(rounds=100), round=number)
        self.add(an_event(ev.RoundFinished, return_mean=total), round=number, epoch=8)


def test_overview_of_a_training(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    for number in range(1, 41):
        journal.add_round(number, float(number))
    journal.add(an_incident("b-1", severity="critical"), round=41)
    journal.add(an_incident("b-2", severity="warning"), round=41)
    journal.add(an_incident("b-1", severity="critical", over=True), round=41)
    journal.add(ev.RunStopped(reason="by x", exit_code=11, rounds=40, error="boom"), round=41, epoch=3)
    found = read_overview(journal.path)
    assert found is not None
    assert (found.round, found.rounds, found.epoch, found.ts) == (41, 100, 3, journal.ts)
    assert found.signal == "return"
    assert found.values == tuple(float(n) for n in range(41 - MAX_VALUES, 41))
    assert (found.critical, found.warning) == (0, 1)
    assert (found.exit_code, found.error) == (11, "boom")


def test_overview_of_a_published_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    for step in range(1000):
        journal.add(ev.Scalars(step=step, values={"train/loss": 1.0 / (step + 1), "lr": 0.1}))
    journal.add(ev.Scalars(step=1000, values={"train/loss": math.nan}))
    found = read_overview(journal.path)
    assert found is not None
    assert (found.step, found.signal, len(found.values)) == (1000, "train/loss", MAX_VALUES)
    assert list(found.values) == sorted(found.values, reverse=True)


@pytest.mark.parametrize(
    ("values", "rate"),
    [
        ([0.5 * n for n in range(12)], 900.0),
        ([5.0 - n for n in range(12)], -1800.0),
        ([1.0] * 12, 0.0),
        ([(-1.0) ** n for n in range(12)], 0.0),
        ([1.0, 2.0, 3.0], None),
        ([1e308, -1e308] * 6, None),
    ],
)
def test_rate_is_the_trend_an_hour(tmp_path: Path, values: list[float], rate: float | None) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    for number, value in enumerate(values, 1):
        journal.add_round(number, value)
        journal.ts += 9_000_000 * (number == 6)  # a pause is no slower progress
    found = read_overview(journal.path)
    assert found is not None
    assert found.rate == (None if rate is None else pytest.approx(rate))


def test_overview_reads_no_more_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    journal.add_round(1, 1.0)
    for _ in range(200):
        journal.add(ev.LogLine(level="INFO", logger="x", message="m" * 100), round=2)
    journal.add_round(2, 2.0)
    found = read_overview(journal.path, limit=5_000)
    assert found is not None
    assert found.values == (2.0,)
    assert read_overview(journal.path).values == (1.0, 2.0)  # type: ignore[union-attr]
    with journal.path.open("ab") as file:
        file.write(b"\n" * 5_000)
    assert read_overview(journal.path, limit=5_000) is None, "nor of what holds no event"


def test_overview_of_a_resumed_run_forgets_the_last_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    journal.add(an_incident("b-1", severity="critical"))
    journal.add(ev.RunStopped(reason="by x", exit_code=11, rounds=40, error="boom"))
    journal.add(an_event(ev.RunStarted))
    found = read_overview(journal.path)
    assert found is not None
    assert (found.critical, found.exit_code, found.error) == (0, None, "")


def test_overview_of_no_journal_and_of_rubbish(tmp_path: Path) -> None:
    assert read_overview(tmp_path / "events.jsonl") is None
    (tmp_path / "events.jsonl").write_bytes(b'{"type":"epoch"}\nnothing\n')
    assert read_overview(tmp_path / "events.jsonl") is None


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["lr", "train/loss", "rollout/ep_rew_mean"], "rollout/ep_rew_mean"),
        (["val_loss", "train/val_acc"], "train/val_acc"),
        (["b", "a/a"], "b"),
        (["env/0/return", "loss"], "loss"),
        (["²/return", "loss"], "²/return"),
    ],
)
def test_metric_that_stands_for_a_run(names: list[str], chosen: str) -> None:
    assert choose_metric(names) == chosen


@pytest.mark.parametrize(
    ("state", "kind", "done", "commands"),
    [
        ("DIED", "training", 0, ["esper-daemon start --detach --resume a", "esper-daemon doctor a"]),
        ("FAILED", "training", 0, ["esper-daemon doctor a", "esper-daemon start --detach --resume a"]),
        ("STOPPED", "training", 0, ["esper-daemon start --detach --resume a"]),
        ("STOPPED", "training", 3, ["esper-daemon start --detach --resume a --rounds 6"]),
        ("DIED", "published", 3, ["publish('a', resume=True)", "esper-daemon doctor a"]),
        ("TRAINING", "training", 0, ["esper-daemon status a"]),
    ],
)
def test_commands_that_follow(state: str, kind: str, done: int, commands: list[str]) -> None:
    assert next_commands("a", state=state, kind=kind, done=done) == commands


@pytest.mark.parametrize(
    ("reason", "exit_code", "more"),
    [
        ("2 rounds are done", 0, " --rounds 4"),
        ("2 rounds are done, without a checkpoint", 10, ""),
        ("stop by x", 0, ""),
    ],
)
def test_run_whose_rounds_are_done_needs_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, exit_code: int, more: str
) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path))
    with RunFolder.claim("alpha") as folder:
        Journal(folder.events).add(ev.RunStopped(reason=reason, exit_code=exit_code, rounds=2), round=2)
    command = f"esper-daemon start --detach --resume alpha{more}"
    assert command in find_run("alpha").next_commands
    with pytest.raises(RunNotFound, match=rf"is not alive \(\w+.*\); go on: {command}; how"):
        find_run("alpha", live_only=True)


def test_list_tells_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path))
    with RunFolder.claim("alpha") as folder:
        Journal(folder.events).add_round(3, 7.0)
    (row,) = json.loads(esper("list", "--all", "--json").output)
    assert (row["overview"]["round"], row["overview"]["values"], row["state"]) == (3, [7.0], "DIED")
    assert row["created"] == find_run("alpha").created

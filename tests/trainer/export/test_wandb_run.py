"""An offline wandb run as wandb's own reader has it: `wandb leet inspect`, in wandb-core."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from esper_overwatch import publish
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.trainer.config.schema import Config
from tests.protocol.values import an_event
from tests.trainer import journals
from tests.trainer.command import esper

pytest.importorskip("wandb", reason="the extra `wandb` is not installed")

SYSTEM = an_event(ev.SystemSample, cpu_percent=75.0, memory_total=4000, memory_used=2000)
TOLD = [
    journals.started("b1"),
    journals.round_started(1),
    (SYSTEM, journals.at(1, 0)),
    *(journals.epoch(1, n) for n in (1, 2, 3)),
    journals.round_finished(1, accuracy=0.25),
    journals.round_started(2),
    *(journals.epoch(2, n, accuracy=0.125) for n in (1, 2)),
    journals.started("b2", resumed_round=1),
    journals.round_started(2),
    *(journals.epoch(2, n, accuracy=0.75) for n in (1, 2, 3)),
    journals.round_finished(2, accuracy=0.5),
    (ev.RunStopped(reason="stop", exit_code=0, rounds=2), journals.at(2, 3)),
]


@pytest.fixture
def run(home: Path) -> RunFolder:
    """The ended run alpha: two rounds of three epochs, the second played twice."""
    run = journals.write_run(home, "alpha", TOLD)
    (run.path / "config.json").write_bytes(msgspec.json.encode(Config(episode_epochs=3)))
    run.release()
    return run


def export(folder: Path) -> Result:
    return esper("export", "alpha", "--to", str(folder), "--format", "wandb", "--json")


def read_records(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in inspect(folder).splitlines()]


def inspect(folder: str, *options: str) -> str:
    """What wandb's own reader prints of a run."""
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *options, folder]
    environ = {**os.environ, "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
    return subprocess.run(words, env=environ, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_wandb_reads_history_by_epoch(run: RunFolder, tmp_path: Path) -> None:
    done = export(tmp_path)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rows"] == 6
    rows = [one["history"]["item"] for one in read_records(told["to"]) if one["type"] == "history"]
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5, 6], "no epoch twice"
    assert rows[3]["epoch/val_accuracy"] == pytest.approx((0.75 + 0.375) / 2), "of the newest boot"
    assert [row.get("round/accuracy_mean") for row in rows] == [None, None, 0.25, None, None, 0.5]
    assert [row["round"] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert rows[0]["system/cpu_percent"] == 75.0
    assert rows[0]["_timestamp"] == (journals.BEGIN + 3e6) / 1e6
    summary = json.loads(inspect(told["to"], "--summary"))
    assert (summary["run_id"], summary["name"], summary["state"]) == (run.id, "alpha", "finished")
    assert set(summary["tags"]) == {"digits", "ppo", "cpu"}
    assert summary["config"]["started"]["boot"] == "b2"
    assert summary["summary"]["stopped"] == "stop"
    assert summary["summary"]["round/accuracy_mean"] == 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("short_home")
def test_published_steps_go_back_and_keep_every_value(tmp_path: Path) -> None:
    """A loop that validates after it has trained, and whose names are those of a training's columns."""
    with publish("alpha") as loop:
        for step in range(5):
            loop.log(step=step, loss=10.0 - step)
        for step in range(5):
            loop.log(step=step, val=20.0 - step)
        loop.log(step=4, accuracy=0.5)
        loop.log({"round": 7, "step": 9, "ppo/loss": 1}, step=4)
        loop.log(step=4, accuracy=0.75)
        assert loop.flush(60.0)
    done = export(tmp_path)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    records = read_records(told["to"])
    rows = [one["history"]["item"] for one in records if one["type"] == "history"]

    def values_of(name: str) -> list[tuple[int, float]]:
        return [(row["step"], row[name]) for row in rows if name in row]

    assert values_of("loss") == [(step, 10.0 - step) for step in range(5)]
    assert values_of("val") == [(step, 20.0 - step) for step in range(5)]
    assert values_of("accuracy") == [(4, 0.5), (4, 0.75)]
    assert (values_of("round"), values_of("loop/step")) == ([(4, 7)], [(4, 9)])
    assert told["rows"] == len(rows) == 11, "neighbours of one step share a row"
    metrics = [one["metric"] for one in records if one["type"] == "metric"]
    assert [(one.get("glob_name"), one.get("step_metric")) for one in metrics] == [("*", "step")]


@pytest.mark.slow
def test_wandb_sync_finds_newest_export_and_no_network_is_used(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user has set for other runs changes nothing, and an earlier export goes."""
    for name, value in {"MODE": "online", "RUN_ID": "other", "RESUME": "must", "DIR": "/nowhere"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    proxy = socket.create_server(("127.0.0.1", 0))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
    for _ in range(2):
        done = export(tmp_path)
        assert done.exit_code == 0, done.stderr
    with proxy:
        assert select.select([proxy], [], [], 0)[0] == [], "nothing was looked for"
    assert os.environ["WANDB_RUN_ID"] == "other"
    assert [path.name for path in (tmp_path / "alpha").iterdir()] == ["wandb"]
    (made,) = (tmp_path / "alpha" / "wandb").iterdir()
    words = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(tmp_path / "alpha" / "wandb")]
    told = subprocess.run(words, env=os.environ, check=True, capture_output=True, text=True)
    assert f"{made.name}/run-{run.id}.wandb" in (told.stdout + told.stderr)
    assert "Would sync 1 run" in told.stdout + told.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_", "num_bytes"), [("wandb", 300), ("wandb", 4096), ("tensorboard", 0), ("tensorboard", 1000)]
)
def test_full_disk_during_export_is_one_line(
    run: RunFolder, tmp_path: Path, format_: str, num_bytes: int
) -> None:
    """A limit on file sizes stands for the full disk: who writes is another process or thread."""
    if format_ == "tensorboard":
        pytest.importorskip("tensorboard", reason="the extra `export` is not installed")
    words = ("-m", "esper_overwatch.trainer", "export", "alpha", "--to", str(tmp_path), "--format", format_)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))

    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # Python would keep a half of a large one
    done = subprocess.run(
        [sys.executable, *words], env=environment, preexec_fn=limit, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("\n")) == (10, 1), done.stderr
    assert "file too large" in done.stderr.lower()
    assert not list((tmp_path / "alpha").iterdir())

"""wandb's functions that publish: the lines of other people's programs, unchanged but for the import."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import esper_overwatch.compat.wandb as wandb
from esper_overwatch.protocol.messages import events as ev

from .viewer import journal

PROGRAM = """
import argparse, math
import numpy as np
import WANDB as wandb

args = argparse.Namespace(lr=0.1, epochs=3)
run = wandb.init(project="toy", name="toy-1", config=vars(args), tags=["a"], notes="why", mode=MODE)
wandb.config.update({"layers": [8, 8]}, allow_val_change=True)
wandb.define_metric("eval/*", step_metric="epoch")
assert wandb.config.lr == wandb.config["lr"] == 0.1 and run is wandb.run
for epoch in range(args.epochs):
    wandb.log({"train": {"loss": 1.0 / (epoch + 1)}, "epoch": epoch}, commit=False)
    wandb.log({"eval/accuracy": np.float32(0.5 + epoch / 10), "weights": wandb.Histogram(np.arange(9.0))})
wandb.log({"late": 1}, step=10)
table = wandb.Table(columns=["a", "b"], data=[[1, "x"]])
table.add_data(2, "y")
wandb.log({"table": table, "picture": wandb.Image(np.zeros((4, 6, 3), np.uint8), caption="black")})
wandb.log({"pictures": [wandb.Image(np.ones((2, 3)))] * 2})
run.summary["best"] = 0.7
artifact = wandb.Artifact("model", type="model")
run.log_artifact(artifact) if MODE == "disabled" else None
wandb.alert(title="done", text="all epochs", level=wandb.AlertLevel.WARN)
wandb.finish()
"""


def execute(program: str, module: str, mode: str | None, folder: Path) -> subprocess.CompletedProcess[str]:
    text = program.replace("WANDB", module).replace("MODE", repr(mode))
    return subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"WANDB_DIR": str(folder), "WANDB_SILENT": "true"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_program_for_wandb_is_published_as_it_is(home: Path, tmp_path: Path) -> None:
    done = execute(PROGRAM, "esper_overwatch.compat.wandb", None, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "publishes nothing" not in done.stderr
    rows: dict[int, dict[str, Any]] = {}
    for event in journal("toy-1", ev.Scalars):
        rows.setdefault(event.step, {}).update(event.values)
    epochs = {
        e: {"train/loss": 1 / (e + 1), "epoch": e, "eval/accuracy": pytest.approx(0.5 + e / 10)}
        for e in range(3)
    }
    assert rows == epochs | {10: {"late": 1}}
    assert [event.step for event in journal("toy-1", ev.Histogram)] == [0, 1, 2]
    (table,) = journal("toy-1", ev.LoggedTable)
    assert (table.name, table.columns, table.rows) == ("table", ["a", "b"], [[1, "x"], [2, "y"]])
    sizes = {one.name: (one.preview.width, one.preview.height) for one in journal("toy-1", ev.Artifact)}
    assert sizes == {"picture": (6, 4), "pictures/0": (3, 2), "pictures/1": (3, 2)}
    (started,) = journal("toy-1", ev.RunStarted)
    assert (started.config, started.tags, started.notes) == ({"lr": 0.1, "epochs": 3}, ["toy", "a"], "why")
    (changed,) = journal("toy-1", ev.RunConfigured)
    assert changed.config == {"lr": 0.1, "epochs": 3, "layers": [8, 8]}
    (alert,) = journal("toy-1", ev.Alert)
    assert (alert.level, alert.title, alert.text, alert.rule) == ("warning", "done", "all epochs", "")


@pytest.mark.slow
def test_the_same_program_runs_under_wandb(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    done = execute(PROGRAM, "wandb", "disabled", tmp_path)
    assert done.returncode == 0, done.stderr


def test_run_of_wandb_has_name_folder_and_end(home: Path) -> None:
    assert wandb.run is None
    with pytest.raises(AttributeError, match=r"call wandb.init\(\) first"):
        wandb.log({"loss": 1.0})
    with wandb.init(project="p", config=Namespace(a=1)) as run:
        assert wandb.init(project="other") is run
        assert (run.name, run.config.a, run.project) == ("p", 1, "p")
        assert Path(run.dir).is_dir()
        with pytest.raises(AttributeError, match="no b"):
            run.config.b  # noqa: B018
        run.config.b = 2
        assert dict(run.config) == {"a": 1, "b": 2}
    assert wandb.run is None
    wandb.finish()


def test_disabled_run_publishes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run = wandb.init(project="p")
    run.log({"a": 1})
    run.alert("title")
    run.summary["a"] = 1
    run.finish(1)
    assert not list(home.glob("runs/*"))


def test_failure_of_the_program_is_that_of_the_run(home: Path) -> None:
    wandb.init(name="bad").finish(exit_code=3)
    (stopped,) = journal("bad", ev.RunStopped)
    assert (stopped.reason, stopped.error) == ("failed", "RuntimeError: exit code 3")


def test_what_is_not_published_is_said_once(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), wandb.init(name="w") as run:
        for _ in range(2):
            assert run.watch("the model") == "the model"
            run.log({"picture": wandb.Video(np.zeros((2, 2)))})
        wandb.Artifact("data", "dataset").add_file("x")
    told = [record.message for record in caplog.records]
    assert told == [
        "run w: watch publishes nothing",
        "run w: picture, a film or the like publishes nothing",
    ]


def test_init_takes_what_that_of_wandb_takes() -> None:
    theirs = inspect.signature(pytest.importorskip("wandb").init).parameters
    mine = inspect.signature(wandb.init).parameters
    assert list(mine)[:2] == list(theirs)[:2]
    assert any(one.kind is inspect.Parameter.VAR_KEYWORD for one in mine.values())

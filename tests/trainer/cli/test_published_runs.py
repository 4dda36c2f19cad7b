"""Published runs on the command line: listed, shown, read, exported, commanded."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from esper_overwatch import PublishedRun, open_run, publish
from esper_overwatch.overwatch_tui.cli import main as terminal
from tests.trainer.command import esper


@pytest.fixture
def run(short_home: Path) -> Iterator[PublishedRun]:
    with publish("loop", tags=["cleanrl"], config={"lr": 1}) as made:
        yield made


def log_some(run: PublishedRun) -> None:
    for step in range(3):
        run.log({"loss": 1.0 / (step + 1), "env/3/reward": step}, step=step)
    run.log(step=3, loss=math.nan)
    assert run.flush(60.0)


def test_list_and_status_say_that_it_is_published(run: PublishedRun) -> None:
    assert run.flush(60.0)
    assert "published  live   TRAINING" in esper("list").output
    (row,) = json.loads(esper("list", "--json").output)
    assert (row["name"], row["kind"], row["state"]) == ("loop", "published", "TRAINING")
    run.command("save", help="Save the weights.", every=10)
    status = json.loads(esper("status", "loop", "--json").output)
    assert (status["kind"], status["tags"]) == ("published", ["cleanrl"])
    assert status["commands"]["save"] == {
        "help": "Save the weights.",
        "parameters": {"every": {"type": "int", "default": 10}},
    }


def test_status_tells_a_person_what_concerns_the_run(run: PublishedRun) -> None:
    run.command("save", help="Save the weights.", tag=str, every=10)
    run.asked("stop")
    assert run.flush(60.0)
    result = esper("status", "loop")
    assert "{" not in result.output
    rows = {line.split()[0]: line for line in result.output.splitlines()}
    assert rows["save"].split(None, 1)[1] == "tag=TEXT [every=10]: Save the weights."
    assert rows["stop"].endswith("End the loop in order, when it next asks for this command.")
    assert rows["tags"].split() == ["tags", "cleanrl"]
    assert rows["seq"].split(None, 1)[1].startswith("life ")
    assert not rows.keys() & {"round", "epoch", "task", "envs", "rounds", "device", "level"}


def test_tail_and_replay_show_values(run: PublishedRun) -> None:
    log_some(run)
    shown = esper("tail", "loop", "--type", "scalar").output
    assert "scalar step=2 loss=0.3333 env/3/reward=2" in shown
    assert "scalar step=3 loss=nan" in shown
    assert esper("replay", "loop", "--type", "scalar").output == shown


def test_tail_leaves_the_preview_of_an_image_out(run: PublishedRun) -> None:
    run.log(seen=pytest.importorskip("PIL.Image").new("L", (3, 2)), step=1)
    assert run.flush(300)
    (line,) = esper("tail", "loop", "--type", "artifact").output.splitlines()
    assert " artifact step=1 name=seen path=" in line
    assert line.split()[-1].startswith("bytes=")


def test_query_has_a_row_per_value(run: PublishedRun) -> None:
    pytest.importorskip("duckdb")
    log_some(run)
    answer = esper("query", "loop", "SELECT step, name, value, boot FROM scalars ORDER BY ALL", "--json")
    rows = json.loads(answer.output)
    assert len(rows) == 7
    assert rows[0] == {"step": 0, "name": "env/3/reward", "value": 0.0, "boot": run.boot}
    assert rows[-1] == {"step": 3, "name": "loss", "value": "NaN", "boot": run.boot}


def test_parquet_holds_the_values(run: PublishedRun, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    log_some(run)
    result = esper("export", "loop", "--format", "parquet", "--to", str(tmp_path))
    assert result.exit_code == 0, result.output
    table = parquet.read_table(tmp_path / "loop" / "scalar.parquet").to_pylist()
    assert [row["step"] for row in table] == [0, 1, 2, 3]
    assert dict(table[1]["values"]) == {"loss": 0.5, "env/3/reward": 1.0}
    assert math.isnan(dict(table[3]["values"])["loss"])


@pytest.mark.slow  # loads torch
def test_tensorboard_has_the_loops_own_tags(run: PublishedRun, tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log_some(run)
    result = esper("export", "loop", "--format", "tensorboard", "--to", str(tmp_path))
    assert result.exit_code == 0, result.output
    read = event_accumulator.EventAccumulator(str(tmp_path / "loop"))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {"loss", "env/3/reward"}
    assert [(e.step, e.value) for e in read.Scalars("env/3/reward")] == [(0, 0.0), (1, 1.0), (2, 2.0)]


@pytest.mark.slow  # loads torch and wandb
def test_no_export_loses_what_is_no_number(run: PublishedRun, tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("wandb")
    image = pytest.importorskip("PIL.Image")
    picture, gone = tmp_path / "seen.png", tmp_path / "gone.png"
    for path in (picture, gone):
        image.new("RGB", (7, 5), "red").save(path)
    run.log({"weights": [0.0, 1.0, 1.0, 4.0], "flat": [3.0] * 9, "said": "a *word*"}, step=2)
    run.log({"seen": picture, "gone": gone}, step=3)
    run.log({"made": image.new("L", (3, 2)), "rows": [{"class": "a|b", "right": 1}, {"class": None}]}, step=4)
    run.summary["best"] = 0.5
    run.finish()
    gone.unlink()
    result = esper("export", "loop", "--format", "tensorboard", "--to", str(tmp_path / "tb"), "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert [told[kind] for kind in ("histograms", "texts", "images")] == [2, 3, 2]
    read = event_accumulator.EventAccumulator(str(tmp_path / "tb" / "loop"))
    read.Reload()
    (weights,), (flat,) = read.Histograms("weights"), read.Histograms("flat")
    assert (weights.step, weights.histogram_value.num, weights.histogram_value.sum) == (2, 4.0, 6.0)
    assert weights.histogram_value.sum_squares == pytest.approx(18.0)
    assert (flat.histogram_value.bucket, flat.histogram_value.bucket_limit) == ([9.0], [3.0])
    (seen,) = read.Images("seen")
    assert (seen.step, seen.width, seen.height) == (3, 7, 5)
    assert seen.encoded_image_string == picture.read_bytes()
    (own,) = read.Images("made")
    assert (own.step, own.width, own.height) == (4, 3, 2)
    texts = {tag: read.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in read.Tags()["tensors"]}
    assert texts["said/text_summary"] == "a *word*"
    assert texts["rows/text_summary"] == "| class | right |\n| --- | --- |\n| a\\|b | 1 |\n|  |  |"
    assert texts["gone/text_summary"] == str(gone), "what is no image any more is named"
    assert '"best": 0.5' in texts["run/summary/text_summary"]

    made = json.loads(esper("export", "loop", "--format", "wandb", "--to", str(tmp_path), "--json").output)
    assert Path(made["to"]).parent == tmp_path / "loop" / "wandb"
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", made["to"]]
    environ = {**os.environ, "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
    lines = subprocess.run(words, env=environ, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [one["history"]["item"] for one in map(json.loads, lines) if one["type"] == "history"]
    values = {name: value for row in rows for name, value in row.items()}
    assert values["weights._type"] == "histogram"
    assert (values["seen._type"], values["gone"], values["said"]) == ("image-file", str(gone), "a *word*")
    assert (values["made._type"], values["rows._type"]) == ("image-file", "table-file")
    with open(Path(made["to"]) / "files" / values["rows.path"]) as file:
        table = json.load(file)
    assert (table["columns"], table["data"]) == (["class", "right"], [["a|b", 1], [None, None]])


def test_changed_configuration_is_what_is_asked_for(run: PublishedRun) -> None:
    pytest.importorskip("duckdb")
    run.config.update(lr=2, batch=8)
    assert run.flush(60.0)
    found = json.loads(esper("runs", "--where", "config.batch = 8", "--json").output)
    assert [(one["name"], one["config"]["lr"]) for one in found] == [("loop", 2)]
    answer = esper("query", "loop", "SELECT config FROM runs", "--json")
    assert json.loads(json.loads(answer.output)[0]["config"]) == {"lr": 2, "batch": 8}
    assert open_run("loop").config == {"lr": 2, "batch": 8}


def test_call_sends_registered_commands(run: PublishedRun) -> None:
    run.command("save", every=10, tag=str, fast=False)
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(0.01):
            call = run.asked("save")
            if call is not None:
                call.done(params=call.params)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        result = esper("call", "loop", "save", "every=5", "tag=007", "fast=true", "--json")
    finally:
        ended.set()
        thread.join()
    assert json.loads(result.output)["params"] == {"every": 5, "tag": "007", "fast": True}


def test_call_answers_queries_too(run: PublishedRun) -> None:
    assert json.loads(esper("call", "loop", "status", "--json").output)["name"] == "loop"


@pytest.mark.parametrize(
    ("words", "exit_code", "part"),
    [
        (
            ["call", "loop", "nosuch"],
            5,
            "'nosuch'; it has anomaly.acknowledge, anomaly.mute, lease.acquire, lease.release, log.rotate, "
            "mark, op.cancel, save\n",
        ),
        (
            ["call", "loop", "telemetry.escalate"],
            5,
            "this run does not have the command 'telemetry.escalate'",
        ),
        (["escalate", "loop"], 5, "this run does not have the command 'telemetry.escalate'"),
        (["call", "loop", "save", "every=x"], 5, 'save: every must be a whole number, not "x"'),
        (["call", "loop", "save", "other=1"], 5, "save: other is not a parameter; it takes every"),
        (["call", "loop", "save", "every"], 2, "KEY=VALUE"),
        (["param", "loop"], 5, "this run does not have the query 'param.get'"),
    ],
)
def test_what_the_run_lacks_is_refused(
    run: PublishedRun, words: list[str], exit_code: int, part: str
) -> None:
    run.command("save", every=10)
    result = esper(*words)
    assert (result.exit_code, part in result.output) == (exit_code, True), result.output


@pytest.mark.slow  # loads torch
def test_training_does_not_resume_a_published_run(run: PublishedRun) -> None:
    run.finish()
    result = esper("start", "--resume", "loop")
    assert result.exit_code == 3
    assert "is published by a loop" in result.output


def test_list_and_errors_name_what_shows_ended_runs(run: PublishedRun) -> None:
    run.finish(RuntimeError("boom"))
    assert esper("list").output == (
        "no live run; start one with: esper-daemon start --detach; "
        "ended runs, shown by esper-daemon list --all: 1\n"
    )
    assert "loop" in esper("list", "--all").output
    assert "esper-daemon doctor loop" in esper("status", "loop").output
    told = esper("doctor", "loop").output
    assert "it failed: RuntimeError: boom\n" in told


def test_tail_refuses_a_negative_number_of_lines(run: PublishedRun) -> None:
    assert esper("tail", "loop", "-n", "-3").exit_code == 2


def test_replay_shows_a_traceback_as_lines(run: PublishedRun) -> None:
    log_some(run)
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        run.finish(error)
    shown = esper("replay", "loop").output
    assert "\n    Traceback (most recent call last):\n" in shown
    assert "\n    RuntimeError: boom\n" in shown
    assert "r0 e0" not in shown
    assert "torch=" not in shown


@pytest.mark.usefixtures("short_home")
def test_run_that_failed_is_told_alike_everywhere() -> None:
    run = publish("sick")
    run.log(loss=1.0)
    run.finish(ValueError("diverged"))
    (row,) = json.loads(esper("list", "--all", "--json").output)
    assert row["state"] == "FAILED"
    assert "failed" in esper("doctor", "sick").output
    screen = CliRunner().invoke(terminal, ["--replay", "sick", "--once"]).output
    assert "FAILED" in screen
    assert "STOPPED" not in screen


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tail", "--type", "epohc"), "no events of the type 'epohc'; did you mean epoch"),
        (("replay", "--type", "seed"), "no events of the type 'seed'; did you mean seed.gate, seed.stage"),
        (("tail", "--type", "zzz"), "no events of the type 'zzz'; there are alert, anomaly"),
    ],
)
def test_unknown_event_types_are_told_with_near_ones(words: tuple[str, ...], told: str) -> None:
    result = esper(*words)
    assert result.exit_code == 2
    (line,) = (line for line in result.output.splitlines() if line.startswith("Error"))
    assert told in line

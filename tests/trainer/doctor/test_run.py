"""What the doctor says of runs that ended in every way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import Connection, RunFolder, find_run
from esper_overwatch.trainer.checkpoint import Checkpoints
from esper_overwatch.trainer.doctor.bundle import PostmortemReport
from esper_overwatch.trainer.doctor.run import Diagnosis, diagnose
from esper_overwatch.trainer.doctor.run_text import diagnosis_lines
from tests.protocol.harness import DAEMON, freeze
from tests.protocol.values import an_event, an_incident
from tests.trainer.journals import BEGIN, Told, at, epoch, round_finished, round_started, started, write_run

torch.set_num_threads(1)
PLAYED = [started("b1"), round_started(1), epoch(1, 1), epoch(1, 2), epoch(1, 3), round_finished(1)]


def stopped(code: int, reason: str = "done", error: str | None = None) -> Told:
    return ev.RunStopped(reason=reason, exit_code=code, rounds=1, error=error), at(1, 3)


def look(home: Path) -> tuple[Diagnosis, str]:
    found = diagnose(find_run("r", home=home))
    return found, "\n".join(diagnosis_lines(found))


def save(run: RunFolder, round_: int, epoch_: int | None = None) -> Path:
    state = {"trainer": {"round": round_, "epoch": epoch_ or 0}}
    return Checkpoints(run.checkpoints, keep=3).save(state, round=round_, epoch=epoch_).path


def connect(run: RunFolder) -> None:
    """Say that this process, which holds the run, has opened its sockets."""
    connection = Connection(
        v=1,
        run=run.id,
        name=run.name,
        boot="b1",
        pid=os.getpid(),
        starttime=0,
        started=BEGIN,
        endpoints={},
        host="h",
        version="0",
    )
    run.connection.write_bytes(msgspec.json.encode(connection))


@pytest.mark.parametrize(
    ("code", "ending", "words"),
    [
        (0, "in order", "it was stopped by done"),
        (130, "interrupted", "it was interrupted: done (exit code 130)"),
        (11, "failed", "it failed: done (exit code 11)"),
    ],
)
def test_a_last_word(tmp_path: Path, code: int, ending: str, words: str) -> None:
    write_run(tmp_path, "r", [*PLAYED, stopped(code)]).release()
    found, text = look(tmp_path)
    assert (found.ending, found.last_event, found.round, found.epoch) == (ending, "run.stopped", 1, 3)
    assert words in text
    assert "no checkpoint was written; from the beginning again" in text


def test_no_last_word_is_a_kill_and_memory_is_told(tmp_path: Path) -> None:
    full = an_event(ev.SystemSample, memory_total=100, memory_used=98)
    run = write_run(tmp_path, "r", [*PLAYED, (full, at(1, 3))])
    save(run, 1)
    save(run, 2, 2)
    connect(run)
    run.release()
    found, text = look(tmp_path)
    assert found.ending == "killed"
    assert "memory was 98 % full" in text
    assert "fewer envs" in text
    assert "go on from epoch 2 of round 2: esper-daemon start --detach --resume r" in text


@pytest.mark.parametrize(
    ("rounds", "saved", "words"),
    [
        (
            2,
            (2, None),
            "all 2 rounds are done; to train more: esper-daemon start --detach --resume r --rounds 4",
        ),
        (2, (2, 1), "go on from epoch 1 of round 2: esper-daemon start --detach --resume r"),
        (3, (2, None), "go on after round 2: esper-daemon start --detach --resume r"),
        (0, (2, None), "go on after round 2: esper-daemon start --detach --resume r"),
    ],
)
def test_run_whose_rounds_are_done_needs_more(
    tmp_path: Path, rounds: int, saved: tuple[int, int | None], words: str
) -> None:
    run = write_run(tmp_path, "r", [started("b1", rounds=rounds), stopped(0)])
    save(run, *saved)
    run.release()
    found, text = look(tmp_path)
    assert found.advice == [words]
    assert words in text


def test_an_earlier_boots_last_word_is_not_the_last_boots(tmp_path: Path) -> None:
    run = write_run(tmp_path, "r", [*PLAYED, stopped(0), started("b2", resumed_round=1)])
    connect(run)
    run.release()
    found, _ = look(tmp_path)
    assert (found.ending, found.boot) == ("killed", "b2")


def test_end_on_a_full_disk_is_no_kill(tmp_path: Path) -> None:
    write_run(tmp_path, "r", PLAYED).release()
    found, text = look(tmp_path)
    assert (found.ending, found.exit_code) == ("untold", None)
    assert "it ended and was not killed, but the disk, full or sick, took its last events no more" in text
    assert f"next: free space on the disk of {tmp_path}" in text


def test_damaged_identity_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path, "r", [*PLAYED, stopped(0)])
    run.release()
    (run.path / "run.json").write_text("garbage")
    found, text = look(tmp_path)
    assert "damaged: run.json: JSON is malformed" in text
    assert "run.json back" in found.advice[0]


def test_alive_and_silent(tmp_path: Path) -> None:
    run = write_run(tmp_path, "r", [*PLAYED, (ev.RunStateChanged(state="TRAINING"), at(1, 3))])
    connect(run)
    found, text = look(tmp_path)
    assert found.ending == "alive"
    assert f"kill -USR1 {found.pid}" in text
    run.release()


def test_stopped_process_is_told(home: Path) -> None:
    words = [sys.executable, "-c", DAEMON, "r"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        freeze(process)
        found, text = look(home)
        process.kill()
    assert f"it is alive, but stopped by SIGSTOP or Ctrl-Z: pid {process.pid}" in text
    assert found.advice == [f"let it go on: kill -CONT {process.pid}"]


@pytest.mark.parametrize("told", [[], [*PLAYED, stopped(0)]], ids=["a new run", "a resumed run"])
def test_alive_without_an_event_yet_is_starting(tmp_path: Path, told: list[Told]) -> None:
    run = write_run(tmp_path, "r", told)
    found, _ = look(tmp_path)
    assert (found.ending, found.advice) == ("alive", ["it is starting; watch it then: esper-tui r"])
    run.release()


def test_never_started(tmp_path: Path) -> None:
    run = write_run(tmp_path, "r", [])
    run.events.unlink()
    run.release()
    found, text = look(tmp_path)
    assert found.ending == "never started"
    assert "daemon.log" in text


def test_checkpoint_that_is_replaced_meanwhile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path, "r", PLAYED)
    newest = save(run, 2)
    listings = iter([[newest.with_name("round-000001.pt")], [newest]])
    monkeypatch.setattr(Checkpoints, "all", lambda _: next(listings))
    run.release()
    found, _ = look(tmp_path)
    assert found.checkpoint is not None
    assert found.checkpoint.round == 2


def test_a_damaged_checkpoint_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path, "r", PLAYED)
    path = save(run, 1)
    path.write_bytes(path.read_bytes()[:-40])
    run.release()
    found, text = look(tmp_path)
    assert found.checkpoint is not None
    assert found.checkpoint.error is not None
    assert "move it away" in text


@pytest.mark.parametrize(
    "trainer", [None, {}, {"round": "1", "epoch": 0}, {"round": torch.ones(2), "epoch": 0}]
)
def test_checkpoint_that_is_no_training_is_told(tmp_path: Path, trainer: Any) -> None:
    run = write_run(tmp_path, "r", PLAYED)
    Checkpoints(run.checkpoints, keep=3).save({"trainer": trainer}, round=1, epoch=None)
    run.release()
    found, text = look(tmp_path)
    assert found.checkpoint is not None
    assert "is not of a training: " in str(found.checkpoint.error)
    assert "move it away, then: esper-daemon start --detach --resume r" in text


def incident(id_: str, **changes: Any) -> Told:
    return an_incident(id_, **changes), at(1, 2)


def test_only_what_is_open_is_an_incident_at_the_end(tmp_path: Path) -> None:
    told = [started("b0"), incident("old"), *PLAYED, incident("gone"), incident("gone", over=True)]
    write_run(tmp_path, "r", [*told, incident("stays", suspect="host.learning_rate 0.05 -> 10")]).release()
    found, text = look(tmp_path)
    assert [one.id for one in found.incidents] == ["stays"]
    assert "warning: gradient norm drifts, env07, after host.learning_rate 0.05 -> 10" in text


def test_advice_begins_with_the_undo_of_the_suspect(tmp_path: Path) -> None:
    undo = "param.set key=host.learning_rate value=0.05"
    told = [incident("b0-1", kind="gradient_vanishing", suspect="host.learning_rate 0.05 -> 10", undo=undo)]
    write_run(tmp_path, "r", [started("b0"), *told]).release()
    _, text = look(tmp_path)
    assert f"try: undo what came before: `{undo}`; " in text
    assert "raise `host.learning_rate`" not in text


def test_the_last_rollback_of_the_last_boot(tmp_path: Path) -> None:
    def rollback(env: int) -> Told:
        return ev.GovernorRollback(reason="nan", loss=float("nan"), restored_epoch=1, penalty=0.2), at(
            1, 2, env
        )

    write_run(tmp_path, "r", [started("b0"), rollback(0), *PLAYED, rollback(0), rollback(1)]).release()
    found, text = look(tmp_path)
    assert found.rollbacks == 2
    assert "the last of env01 in round 1, epoch 2 (loss not finite, loss nan)" in text


def test_where_the_wire_died_the_bundle_has_the_last_word(tmp_path: Path) -> None:
    run = write_run(tmp_path, "r", PLAYED)
    report = PostmortemReport(
        run="r",
        boot="b1",
        reason="the wire failed",
        exit_code=11,
        error="gone",
        at=1,
        round=1,
        epoch=3,
        sick_env=4,
        missing={"events.ndjson": "OSError"},
    )
    for boot in ("b0", "b1"):
        folder = run.postmortem / boot
        folder.mkdir(parents=True)
        (folder / "report.json").write_bytes(msgspec.json.encode(report))
    run.release()
    found, text = look(tmp_path)
    assert (found.ending, found.bundle) == ("failed", str(run.postmortem / "b1"))
    assert "it failed: the wire failed: gone (exit code 11)" in text
    assert "env04's weights: torch.load(" in text
    assert "without events.ndjson: OSError" in text


def test_damaged_lines_are_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path, "r", PLAYED)
    run.release()
    run.events.write_bytes(b"junk\n" + run.events.read_bytes() + b'{"torn')
    found, text = look(tmp_path)
    assert found.damaged_lines == 1
    assert "1 damaged lines" in text

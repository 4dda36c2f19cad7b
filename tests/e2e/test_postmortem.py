"""Real daemons that end badly: what they leave, and what the doctor says of it."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import msgspec
import pytest
import torch

from esper_overwatch.protocol.runs import find_run
from esper_overwatch.trainer.doctor.run import diagnose
from esper_overwatch.trainer.doctor.run_text import diagnosis_lines
from esper_overwatch.trainer.query.database import Database
from tests.cases import nightly

from .conftest import SMALL, House, eventually

FAULTY = """
import sys
from esper_overwatch.trainer.loop import Trainer
end_round = Trainer.end_round

def faulty(trainer, hooks):
    if trainer.round == 2:
        {fault}
    end_round(trainer, hooks)

decide = Trainer.decide

def poisoned(trainer, hooks):
    if (trainer.round, trainer.epoch) == (2, 3):
        next(iter(trainer.population.groups[0].weights.values())).data[1].fill_(float("nan"))
    return decide(trainer, hooks)

Trainer.end_round, Trainer.decide = faulty, poisoned
from esper_overwatch.trainer.daemon.daemon import run_daemon
sys.exit(run_daemon(name="bad", resume=None, file=None, sets={sets!r}))
"""


def fail(house: House, fault: str) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own: env 1 falls ill in the second round, at its end there is a fault."""
    return house.execute(FAULTY.format(fault=fault, sets=SMALL))


def bundle(house: House, name: str) -> dict[str, Any]:
    """The report of the one bundle that the journal tells of."""
    (told,) = house.journal(name, "postmortem.written")
    folder = house.run_folder(name) / "postmortem"
    assert told["data"]["path"] == str(next(folder.iterdir()))
    report: dict[str, Any] = json.loads((next(folder.iterdir()) / "report.json").read_bytes())
    return report


def doctor(house: House, name: str) -> tuple[dict[str, Any], str]:
    """What it says, for programs and for people."""
    found = diagnose(find_run(name, home=house.home))
    return msgspec.to_builtins(found), "\n".join(diagnosis_lines(found))


@pytest.mark.slow
def test_an_exception_leaves_a_bundle_that_the_doctor_reads(house: House) -> None:
    ended = fail(house, "raise RuntimeError('a bug')")
    assert ended.returncode == 11
    assert "a bug" in ended.stderr
    report = bundle(house, "bad")
    assert (report["exit_code"], report["error"]) == (11, "RuntimeError: a bug")
    assert report["missing"] == {}
    folder = next((house.run_folder("bad") / "postmortem").iterdir())
    assert "in faulty" in (folder / "exception.txt").read_text()
    assert house.journal("bad")[-1]["type"] == "run.stopped"
    found, text = doctor(house, "bad")
    assert (found["ending"], found["bundle"]) == ("failed", str(folder))
    assert "it failed: training failed: RuntimeError: a bug (exit code 11)" in text
    assert "round-000001.pt" in text
    assert "go on after round 1: esper-daemon start --detach --resume bad" in text
    (rollback,) = house.journal("bad", "governor.rollback")
    assert found["rollbacks"] == 1
    assert "the last of env01 in round 2, epoch 4 (loss not finite" in text
    sick = torch.load(folder / "sick_env.pt", weights_only=True)
    assert (sick["env"], sick["round"], sick["epoch"]) == (1, 2, rollback["ctx"]["epoch"] - 1)
    assert any(rows.isnan().all() for name, rows in sick["rows"].items() if name.startswith("weights."))
    assert "env01's weights" in text
    check_queries(house)


def check_queries(house: House) -> None:
    """What the views say of two rounds of four envs agrees with itself and with the journal."""
    db = Database(house.run_folder("bad") / "events.jsonl")
    assert db.ask("SELECT round, count(*), count(DISTINCT epoch) FROM epochs GROUP BY 1 ORDER BY 1").rows == [
        (1, 24, 6),
        (2, 24, 6),
    ]
    components = " + ".join(
        name for name in db.columns["rewards"] if name not in ("round", "epoch", "env", "reward")
    )
    ((rows, off),) = db.ask(f"SELECT count(*), max(abs(reward - ({components}))) FROM rewards").rows
    assert rows == 48
    assert off < 1e-5
    ((germinated,),) = db.ask("SELECT germinated FROM rounds").rows
    assert db.ask("SELECT count(*) FROM seeds WHERE round = 1").rows == [(germinated,)]
    assert (
        db.ask("SELECT count(*) FROM decisions WHERE op = 'GERMINATE' AND round = 1").rows[0][0] >= germinated
    )
    assert db.ask("SELECT end_stage FROM seeds WHERE round = 1 AND end_stage IS NULL").rows == []


@pytest.mark.slow
def test_sigterm_leaves_a_bundle_and_kill_9_none(house: House) -> None:
    process = house.spawn("term")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0
    assert bundle(house, "term")["reason"] == "SIGTERM"
    found, text = doctor(house, "term")
    assert found["ending"] == "in order"
    assert "it was stopped by SIGTERM" in text

    again = house.spawn("term", "--resume", "term")
    assert doctor(house, "term")[0]["ending"] == "alive"
    saved = len(house.journal("term", "checkpoint.saved"))
    eventually(lambda: len(house.journal("term", "checkpoint.saved")) > saved)
    again.kill()
    again.wait()
    found, text = doctor(house, "term")
    assert (found["ending"], found["bundle"]) == ("killed", None)
    assert "it was killed" in text
    assert "memory was" in text or found["memory_share"] is None
    newest = found["checkpoint"]
    assert newest["error"] is None
    assert f"after round {newest['round']}: esper-daemon start --detach --resume term" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason", "code"),
    [
        ("import torch; raise torch.OutOfMemoryError('2 GiB')", "out of memory", 11),
        nightly("bytearray(1 << 60)", "out of memory", 11),
        nightly(
            "from esper_overwatch.trainer.policy.ppo import PolicyDiverged; raise PolicyDiverged('nan')",
            "the policy diverged",
            11,
        ),
        ("import os; os.kill(os.getpid(), 15); os.kill(os.getpid(), 15)", "interrupted", 130),
    ],
)
def test_every_bad_end_leaves_a_bundle(house: House, fault: str, reason: str, code: int) -> None:
    assert fail(house, fault).returncode == code
    (folder,) = (house.run_folder("bad") / "postmortem").iterdir()
    report = json.loads((folder / "report.json").read_bytes())
    assert (report["reason"], report["exit_code"]) == (reason, code)
    assert "Traceback" in (folder / "exception.txt").read_text()
    found, text = doctor(house, "bad")
    assert found["reason"] == reason
    assert reason in text


@pytest.mark.slow
def test_a_bundle_that_cannot_be_written_hides_nothing(house: House) -> None:
    folder = house.run_folder("bad")
    fault = f"open({str(folder / 'postmortem')!r}, 'w').close(); raise RuntimeError('a bug')"
    ended = fail(house, fault)
    assert ended.returncode == 11
    assert house.journal("bad", "run.stopped")[-1]["data"]["error"] == "RuntimeError: a bug"
    assert "could not be written" in (folder / "daemon.log").read_text()

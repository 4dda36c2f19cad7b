"""Published runs with rules: what leaves the machine, once, over crashes; and what the run is told."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import connect, publish
from esper_overwatch.protocol.alerts import courier
from esper_overwatch.protocol.alerts.delivery import NotDelivered, deliver
from esper_overwatch.protocol.alerts.record import AlertRecord, RecordLine
from esper_overwatch.protocol.alerts.rules import AlertRulesError
from esper_overwatch.protocol.errors import PublishError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import find_run
from tests.protocol.harness import StartPython, until

from .conftest import WriteRules
from .receiver import Receiver

CALLED = """
[alerts.called]
when = "alert.level >= info"
webhook = "{address}"
"""
LOOP = """
import sys, time
from esper_overwatch import publish
run = publish("loop", resume=True, alerts=sys.argv[1])
for number in map(int, sys.argv[2].split()):
    run.log(step=number, loss=1.0)
    run.alert(f"number {number}")
run.flush()
print("ready", flush=True)
sys.stdin.readline()
"""
Loop = Callable[[Path, str], "subprocess.Popen[str]"]


@pytest.fixture
def loop(python: StartPython) -> Loop:
    """Loops in processes of their own, which have raised their alerts when they are given."""

    def start(rules: Path, numbers: str) -> subprocess.Popen[str]:
        process = python("-c", LOOP, str(rules), numbers, stdin=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    return start


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not find_run("loop").is_live)  # a child that it was forking may hold the lock a moment


def told(kind: type = ev.Alert, name: str = "loop") -> list[Any]:
    path = find_run(name).path / "events.jsonl"
    return [event.data for event in read(path) if isinstance(event.data, kind)]


def changes(action: str) -> list[str]:
    return [alert.change for alert in told() if alert.action == action]


def states(state: str) -> list[str]:
    """Why the run entered a state."""
    return [entered.reason for entered in told(ev.RunStateChanged) if entered.state == state]


def resume_when_paused() -> None:
    """Hold the lease, which keeps out other clients, and end the run's pause."""
    with connect("loop", client="nurse") as client:
        client.acquire_lease()
        until(lambda: client.status()["state"] == "PAUSED")
        client.resume(wait=True)


def test_alerts_arrive_once_after_the_server_was_away(
    receiver: Receiver, write_rules: WriteRules, loop: Loop
) -> None:
    rules = write_rules(CALLED.format(address=receiver.address))
    process = loop(rules, "1 2 3")
    until(lambda: changes("webhook") == ["failing"])
    receiver.open()
    until(lambda: changes("webhook") == ["failing", "sent", "sent", "sent"])
    kill(process)
    kill(loop(rules, "1 2 3"))  # a loop that begins again where it was raises the same
    with publish("loop", resume=True, alerts=rules) as run:
        run.alert("number 4")
    assert [post["title"] for _, post in receiver.posts] == [f"number {number}" for number in (1, 2, 3, 4)]
    assert set(receiver.keys.values()) == {1}
    assert [alert.id for alert in told() if alert.change == "sent"] == [*receiver.keys]


def test_a_clock_that_is_set_gives_no_alert_up(
    receiver: Receiver, write_rules: WriteRules, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[object] = []
    in_two_days = time.time() + 2 * 86_400

    def away_twice(*args: Any) -> None:
        attempts.append(args)
        if len(attempts) < 3:
            monkeypatch.setattr(time, "time", lambda: in_two_days)
            raise NotDelivered("the server is away")
        deliver(*args)

    monkeypatch.setattr(courier, "deliver", away_twice)
    monkeypatch.setattr(courier, "FIRST_PAUSE_SECONDS", 0.01)
    receiver.open()
    with publish("loop", alerts=write_rules(CALLED.format(address=receiver.address))) as run:
        run.alert("number 1")
        until(lambda: len(changes("webhook")) == 2)
    assert changes("webhook") == ["failing", "sent"]


def test_kill_9_repeats_what_was_not_sent_under_its_key(
    receiver: Receiver, write_rules: WriteRules, loop: Loop
) -> None:
    rules = write_rules(CALLED.format(address=receiver.address))
    kill(loop(rules, "1 2"))  # the server is away
    receiver.open().holds = True
    process = loop(rules, "3")
    until(lambda: receiver.posts)  # it has read the first, and does not answer
    kill(process)
    assert len(receiver.posts) == 1
    receiver.holds = False
    with publish("loop", resume=True, alerts=rules):
        until(lambda: len(receiver.keys) == 3)
    assert [post["title"] for _, post in receiver.posts] == ["number 1", *(f"number {n}" for n in (1, 2, 3))]
    assert sorted(receiver.keys.values()) == [1, 1, 2], "the receiver knows the repeat by its key"
    with publish("loop", resume=True, alerts=rules):
        pass
    assert len(receiver.posts) == 4


def test_server_that_hangs_costs_loop_and_rules_nothing(
    receiver: Receiver, write_rules: WriteRules, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "CLOSE_SECONDS", 0.1)
    receiver.open().holds = True
    other = Receiver().open()
    rules = write_rules(
        CALLED.format(address=receiver.address)
        + f'[alerts.other]\nwhen = "alert.level >= info"\nwebhook = "{other.address}"'
    )
    run = publish("loop", alerts=rules)
    run.alert("first")
    until(lambda: receiver.posts)
    for number in range(5):
        run.log(step=number, loss=0.5)
        run.alert(f"number {number}")
    assert run.flush()
    until(lambda: len(other.posts) == 6)
    run.finish()
    assert len(receiver.posts) == 1
    assert find_run("loop").state == "COMPLETED"
    other.close()


def test_no_address_is_in_journal_record_or_answers(
    receiver: Receiver, write_rules: WriteRules, home: Path
) -> None:
    receiver.status = 404
    receiver.open()
    text = CALLED.format(address=receiver.address) + 'command = ["sh", "-c", "exit 7 # s3cret"]'
    with publish("loop", alerts=write_rules(text)) as run:
        run.alert("title", "text", level="critical")
        until(lambda: (run.flush(), changes("webhook"))[1] == ["failed"])
        until(lambda: (run.flush(), changes("command"))[1] == ["failing"])
    errors = {alert.action: alert.error for alert in told() if alert.action}
    assert errors == {"webhook": "the server answered 404", "command": "the command ended with exit code 7"}
    for path in find_run("loop").path.rglob("*"):
        assert path.is_dir() or b"s3cret" not in path.read_bytes(), path


def test_loop_is_paused_and_stopped_by_rules(write_rules: WriteRules, home: Path) -> None:
    rules = write_rules(
        '[alerts.diverged]\nwhen = "loss is nan"\nrun = "stop"\n'
        '[alerts.high]\nwhen = "loss > 2"\nrun = "pause"\n'
    )
    with publish("loop", alerts=rules) as run:
        run.pause_point()
        assert run.asked("stop") is None
        threading.Thread(target=resume_when_paused).start()
        until(lambda: any(lease.state == "acquired" for lease in (run.flush(), told(ev.Lease))[1]))
        run.log(loss=3.0)
        until(lambda: (run.pause_point(), states("PAUSED"))[1])
        run.log(loss=float("nan"))
        call = until(lambda: run.asked("stop"))
        assert (call.client, call["checkpoint"]) == ("alert diverged", True)
    assert states("PAUSED") == ["pause by alert high"]
    asked = {one.client: one.reason for one in told(ev.CommandAccepted) if one.client != "nurse"}
    assert asked == {"alert high": "loss > 2: loss = 3", "alert diverged": "loss is nan: loss = nan"}
    assert (changes("pause"), changes("stop")) == (["sent"], ["sent"])
    assert told(ev.RunStopped)[0].stopped_by.endswith("(alert diverged)")


def test_run_that_cannot_be_told_says_so(write_rules: WriteRules, home: Path) -> None:
    with publish("loop", alerts=write_rules('[alerts.x]\nwhen = "loss > 2"\nrun = "pause"')) as run:
        run.log(loss=3.0)
        until(lambda: (run.flush(), changes("pause"))[1])
    (failed,) = (alert for alert in told() if alert.action)
    assert (failed.change, "does not have the command 'pause'" in failed.error) == ("failed", True)


def test_end_of_a_run_is_told(receiver: Receiver, write_rules: WriteRules, home: Path) -> None:
    receiver.open()
    rules = write_rules(f'[alerts.end]\nwhen = "failed"\nwebhook = "{receiver.address}"')
    run = publish("loop", alerts=rules)
    run.finish(ValueError("no data"))
    (_, post) = receiver.posts[0]
    assert (post["title"], post["level"]) == ("the run failed", "critical")
    assert "no data" in post["text"]
    assert find_run("loop").state == "FAILED"
    assert changes("webhook") == ["sent"]


def test_alert_never_raises_unless_the_run_is_strict(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with publish("loop") as run:
        run.alert("x" * 300, "y" * 3_000, level="critical")
        run.alert("title", level="loud")  # type: ignore[arg-type]
        run.alert("")
    run.alert("late")
    (alert,) = told()
    assert (len(alert.title), len(alert.text), alert.level) == (256, 2_000, "critical")
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 3
    with publish("strict", strict=True) as run, pytest.raises(PublishError, match="level = 'loud': must be"):
        run.alert("title", level="loud")  # type: ignore[arg-type]


def test_wrong_rules_end_no_loop_unless_it_is_strict(
    write_rules: WriteRules, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = write_rules('[alerts.x]\nwhen = "loss i nan"')
    with publish("loop", alerts=rules) as run:
        run.log(loss=1.0)
    assert "alerts.x: when: after 'loss' stands 'i': write is" in caplog.text
    assert find_run("loop").state == "COMPLETED"
    with pytest.raises(AlertRulesError, match=r"alerts\.x: when"):
        publish("strict", alerts=rules, strict=True)


def test_record_survives_cut_lines_and_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper_overwatch.protocol.alerts.record.MAX_LINES", 20)
    monkeypatch.setattr("esper_overwatch.protocol.alerts.record.KEPT_ALERTS", 5)
    record = AlertRecord(tmp_path)
    for number in range(20):
        assert record.add(f"id{number}", ("webhook", "command"), {"title": str(number)})
        if number != 3:
            record.finish(f"id{number}", "webhook")
            record.finish(f"id{number}", "command")
    path = tmp_path / "alerts.jsonl"
    path.write_bytes(path.read_bytes() + b'{"id":"id3","ov')
    record = AlertRecord(tmp_path)
    assert record.waiting == [RecordLine(id="id3", deliveries=("webhook", "command"), message={"title": "3"})]
    assert record.add("new", ("webhook",), {})
    assert [record.add(f"id{number}", ("webhook",), {}) for number in (3, 14, 15, 19)] == [0, 1, 0, 0]
    lines = [json.loads(line)["id"] for line in path.read_bytes().splitlines() if line]
    assert lines == ["id3", *(f"id{number}" for number in range(15, 20)), "new", "id14"]

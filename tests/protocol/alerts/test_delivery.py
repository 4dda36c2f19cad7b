"""One attempt, against real servers and real programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.alerts import delivery
from esper_overwatch.protocol.alerts.alerts import trial_message
from esper_overwatch.protocol.alerts.condition import parse_condition
from esper_overwatch.protocol.alerts.delivery import NotDelivered, deliver
from esper_overwatch.protocol.alerts.rules import Rule

from .receiver import Receiver

LATER = "import sys, time; time.sleep(3600)"


def rule(**more: Any) -> Rule:
    return Rule(name="mine", when=parse_condition("x > 2 for 5 steps"), **more)


def test_shapes_are_those_of_their_services(receiver: Receiver) -> None:
    receiver.open()
    message = trial_message(rule()) | {"title": "<@everyone> & co", "text": "x = 3"}
    for shape in ("json", "slack", "discord"):
        deliver(rule(webhook=receiver.address, shape=shape), "webhook", message)
    (key, plain), (_, slack), (_, discord) = receiver.posts
    assert (key, plain) == (message["id"], message)
    assert slack == {"text": "[info] test: &lt;@everyone&gt; &amp; co\nx = 3"}
    assert discord == {
        "content": "[info] test: <@everyone> & co\nx = 3",
        "allowed_mentions": {"parse": []},
    }


@pytest.mark.parametrize(
    ("status", "is_final"), [(400, True), (404, True), (301, True), (429, False), (500, False), (503, False)]
)
def test_status_says_whether_to_try_again(receiver: Receiver, status: int, is_final: bool) -> None:
    other = Receiver().open()
    try:
        receiver.open().status, receiver.headers = status, {"Location": other.address}
        with pytest.raises(NotDelivered, match=f"^the server answered {status}$") as error:
            deliver(rule(webhook=receiver.address), "webhook", trial_message(rule()))
        assert error.value.is_final is is_final
        assert not other.posts, "an alert is not sent on to another address"
    finally:
        other.close()


def test_server_away_or_hanging_is_told_without_address(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ANSWER_SECONDS", 0.2)
    unknown = receiver.address.replace("127.0.0.1", "no-such-host.invalid")
    for address, told in ((receiver.address, "Connection refused"), (unknown, ".")):
        with pytest.raises(NotDelivered, match=told) as error:
            deliver(rule(webhook=address), "webhook", trial_message(rule()))
        assert not any(part in str(error.value) for part in ("s3cret", "hook", "no-such-host", "127"))
        assert not error.value.is_final
    receiver.open().holds = True
    with pytest.raises(NotDelivered, match="no answer within 0 s"):
        deliver(rule(webhook=receiver.address), "webhook", trial_message(rule()))


def test_command_has_the_alert_on_input_and_environment(tmp_path: Path) -> None:
    program = (
        "import os, sys; open(sys.argv[1], 'w').write(sys.stdin.read() + '\\n' + os.environ['ESPER_ALERT'])"
    )
    message = trial_message(rule())
    deliver(rule(command=(sys.executable, "-c", program, str(tmp_path / "got"))), "command", message)
    assert [json.loads(line) for line in (tmp_path / "got").read_text().splitlines()] == [message, message]


def test_command_that_fails_hangs_or_is_absent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "COMMAND_SECONDS", 0.2)
    for command, told in (
        ((sys.executable, "-c", "raise SystemExit(3)"), "exit code 3"),
        ((sys.executable, "-c", LATER), "took more than 0 s"),
        (("/no/such/program",), "cannot be started: No such file"),
    ):
        with pytest.raises(NotDelivered, match=told):
            deliver(rule(command=command), "command", trial_message(rule()))

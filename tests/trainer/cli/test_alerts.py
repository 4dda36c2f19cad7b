"""`esper-daemon alerts`: what a run has sent, and a test of a rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from esper_overwatch import publish
from esper_overwatch.protocol.runs import list_runs
from tests.protocol.alerts.receiver import Receiver
from tests.protocol.harness import until
from tests.trainer.command import esper

RULES = """
[alerts.called]
when = "alert.level >= warning"
webhook = "{address}"
command = ["true"]

[alerts.quiet]
when = "silent"
run = "pause"
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver().open()
    yield made
    made.close()


@pytest.fixture
def rules(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "alerts.toml"
    path.write_text(RULES.format(address=receiver.address))
    monkeypatch.setenv("ESPER_ALERTS_FILE", str(path))
    return path


def run(*words: str) -> Result:
    return esper("alerts", *words)


def test_alerts_are_listed_with_what_became_of_them(rules: Path, receiver: Receiver) -> None:
    with publish("loop") as loop:
        loop.alert("look", "here")
        loop.alert("no rule for this", level="info")
        until(lambda: receiver.posts)
    raised, info, sent = json.loads(run("loop", "--json").stdout)
    assert (raised["rule"], info["rule"], sent["rule"]) == ("", "", "called")
    assert (info["title"], info["level"], info["deliveries"]) == ("no rule for this", "info", {})
    delivered = {"state": "sent", "attempts": 1, "error": ""}
    assert sent["deliveries"] == {"webhook": delivered, "command": delivered}
    assert sent["id"] == receiver.posts[0][0]
    listed = run("list", "loop")
    assert run("loop").stdout == listed.stdout
    last = listed.stdout.splitlines()[-1]
    assert "called" in last
    assert "look: here" in last
    assert "webhook sent" in last
    assert "command sent" in last


def test_rule_is_tested_without_a_run(rules: Path, receiver: Receiver) -> None:
    done = run("test", "called")
    assert (done.exit_code, done.stdout) == (0, "webhook: sent\ncommand: sent\n")
    ((_, post),) = receiver.posts
    assert (post["title"], post["level"]) == ("test of the rule called", "info")
    assert "it would pause the run when silent" in run("test", "quiet").stdout
    receiver.status = 404
    failed = run("test", "called")
    assert (failed.exit_code, failed.stderr) == (
        7,
        "esper-daemon: alerts.called: webhook: the server answered 404\n",
    )
    unknown = run("test", "caled")
    assert (unknown.exit_code, unknown.stderr) == (
        9,
        f"esper-daemon: {rules}: no rule caled; there are called, quiet\n",
    )


def test_start_is_refused_where_a_rule_is_wrong(rules: Path) -> None:
    rules.write_text('[alerts.x]\nwhen = "loss i nan"\nrun = "stop"')
    refused = esper("start", "new")
    assert refused.exit_code == 9
    assert refused.stderr.startswith(f"esper-daemon: {rules}: alerts.x: when: after 'loss' stands 'i'")
    assert not list_runs()

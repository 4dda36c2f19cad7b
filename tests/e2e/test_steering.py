"""The operator's tools at the command line, on a real run."""

from __future__ import annotations

import json

import pytest

from esper_overwatch.protocol.messages.commands import METHODS
from tests.protocol.values import assert_fits

from .conftest import EPISODE_EPOCHS, House, eventually


@pytest.mark.slow
def test_a_run_is_steered_from_the_command_line(house: House) -> None:
    house.spawn("steered", "--set", "policy.kind=no_growth", "--set", "envs.threads=1")

    params = {row["key"]: row for row in house.ask("param", "steered")}
    assert params["reward.rent"]["value"] == 0.01
    set_ = house.ask("param", "steered", "host.learning_rate=0.02")
    assert (set_["old"], set_["new"]) == (0.05, 0.02)
    (row,) = house.ask("param", "steered", "host.learning_rate")
    assert row["value"] == 0.02

    assert house.ask("mark", "steered", "before the seed")["state"] == "done"
    while house.ask("pause", "steered")["epoch"] == EPISODE_EPOCHS:
        assert house.ask("resume", "steered"), "behind an episode's last epoch nothing can be planted"
    waits = house.ask("param", "steered", "reward.rent=0.02", "--no-wait")
    assert "paused" in waits["note"], "done in a round that has not begun"
    assert "note" not in house.ask("param", "steered", "host.learning_rate=0.03", "--no-wait")
    seed = ("--env", "1", "--slot", "r0c1")
    planted = house.daemon("seed", "germinate", "steered", *seed, "--blueprint", "norm", "--no-wait")
    assert planted.returncode == 0, planted.stderr
    eventually(lambda: any(e["data"]["by"] == "operator" for e in house.journal("steered", "seed.stage")))
    assert house.ask("resume", "steered")

    long = house.ask("escalate", "steered", "--epochs", "5000", "--no-wait")["id"]
    eventually(lambda: any(op["op"] == long for op in house.ask("ops", "steered")))
    assert house.ask("cancel", "steered", long)["op"] == long
    states = {op["op"]: op["state"] for op in house.ask("ops", "steered")}
    assert states[long] == "cancelled"

    assert any(row["client"].startswith("esper-daemon/") for row in house.ask("clients", "steered"))
    marks = house.journal("steered", "mark")
    assert [m["data"]["text"] for m in marks] == ["before the seed"]
    assert house.ask("rotate", "steered")["bytes"] > 0

    lease = house.daemon("lease", "acquire", "steered", "--note", "maintenance")
    token = lease.stdout.strip()
    refused = house.daemon("pause", "steered")
    assert refused.returncode == 4
    assert "alone may command" in refused.stderr
    assert "(maintenance)" in refused.stderr
    house.environment["ESPER_LEASE"] = token
    assert house.ask("pause", "steered")
    assert house.ask("lease", "release", "steered")["released"]
    del house.environment["ESPER_LEASE"]

    assert house.ask("resume", "steered")
    for verb in (("checkpoint",), ("escalate", "--epochs", "1"), ("profile", "--epochs", "1")):
        assert house.ask(verb[0], "steered", *verb[1:])
    for done in house.journal("steered", "command.done"):
        assert_fits(done["data"]["result"], METHODS[done["data"]["method"]].result)

    table = house.daemon("ops", "steered").stdout
    assert "telemetry.escalate" in table
    assert "cancelled" in table


@pytest.mark.slow
def test_what_cannot_be_steered_has_its_exit_code(house: House) -> None:
    house.spawn("steered", "--set", "policy.kind=no_growth", "--set", "envs.threads=1")
    for arguments, code, text in (
        (("param", "steered", "envs.count=3"), 5, "cannot be changed while the run trains"),
        (("param", "steered", "host.learning_rate=11"), 5, "must be a number from 0.0 to 10.0"),
        (("param", "steered", "host.learning_rate=fast"), 2, "is not a number"),
        (("seed", "prune", "steered", "--env", "99", "--slot", "r0c0"), 5, "envs 0 to 3"),
        (("seed", "prune", "steered", "--env", "0", "--slot", "r0c0"), 4, "is DORMANT"),
        (("cancel", "steered", "nothing"), 3, "no open command"),
        (("mark", "steered", ""), 5, "text"),
        (("mark", "nobody", "x"), 3, "nobody"),
        (("resume", "steered"), 4, "paused"),
        (("escalate", "steered", "--epochs", "0"), 5, "epochs"),
        (("escalate", "steered", "--env", "99"), 5, "envs 0 to 3"),
        (("checkpoint", "steered", "--tag", "a/b"), 5, "tag"),
    ):
        result = house.daemon(*arguments)
        assert (result.returncode, text in result.stderr) == (code, True), (arguments, result.stderr)
        assert len(result.stderr.strip().splitlines()) <= 4
    assert json.loads(house.daemon("lease", "release", "steered", "--json").stdout)["released"] is False

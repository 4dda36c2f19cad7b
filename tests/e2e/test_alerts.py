"""Real trainings that are paused and stopped by rules, and tell a real server of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocol.alerts.receiver import Receiver

from .conftest import House, eventually


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def write_rules(house: House, text: str) -> None:
    path = house.home.parent / "config" / "esper" / "alerts.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.slow
def test_training_is_paused_by_a_rule(house: House, receiver: Receiver) -> None:
    write_rules(
        house,
        f'[alerts.enough]\nwhen = "loss > 0 for 3 epochs"\nrun = "pause"\nwebhook = "{receiver.address}"\n',
    )
    house.spawn("one", "--rounds", "1000")
    eventually(lambda: house.ask("status", "one")["state"] == "PAUSED")
    receiver.open()  # it was away
    eventually(lambda: receiver.posts)
    ((_, post),) = receiver.posts
    assert (post["run"], post["rule"], post["round"], post["epoch"]) == ("one", "enough", 1, 3)
    assert post["text"].startswith("loss = ")
    (entered,) = (e for e in house.journal("one", "run.state") if e["data"]["state"] == "PAUSED")
    assert entered["data"]["reason"] == "by alert enough"
    (alert,) = eventually(
        lambda: [
            row
            for row in house.ask("alerts", "one")
            if row["deliveries"].get("webhook", {}).get("state") == "sent"
        ]
    )
    assert alert["deliveries"]["pause"]["state"] == "sent"
    assert house.daemon("resume", "one").returncode == 0
    assert house.daemon("stop", "one").returncode == 0
    assert len(receiver.posts) == 1


@pytest.mark.slow
def test_training_is_stopped_with_a_checkpoint_by_a_rule(house: House, receiver: Receiver) -> None:
    receiver.open()
    write_rules(
        house,
        '[alerts.done]\nwhen = "return_mean > -1000"\nrun = "stop"\n'
        f'[alerts.end]\nwhen = "stopped"\nwebhook = "{receiver.address}"\nshape = "slack"\n',
    )
    process = house.start("two", "--rounds", "1000")
    assert process.wait(300) == 0
    (stopped,) = house.journal("two", "run.stopped")
    assert "(alert done)" in stopped["data"]["reason"]
    saved = [e["data"] for e in house.journal("two", "checkpoint.saved")]
    assert saved[-1]["reason"].startswith("stop: stop by ")
    assert (house.run_folder("two") / saved[-1]["path"]).exists()
    assert [post["text"].splitlines()[0] for _, post in receiver.posts] == ["[warning] two: the run stopped"]
    # What is resumed goes on from there, and is stopped again where the rule holds again.
    again = house.start("two", "--resume", "two")
    assert again.wait(300) == 0
    assert len(house.journal("two", "run.stopped")) == 2
    assert len(receiver.keys) == 2

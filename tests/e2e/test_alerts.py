"""A real training that is stopped by a rule, and tells a real server of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocol.alerts.receiver import Receiver

from .conftest import House


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

"""A run in the hands of a callback: what cannot be published is left out, and training goes on."""

from __future__ import annotations

import enum
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper_overwatch import connect, publish
from esper_overwatch.protocol.errors import NameTaken, PublishError
from esper_overwatch.protocol.integrations.training_run import TrainingRun
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.publishing.description import to_json_tree
from esper_overwatch.protocol.storage.folders import esper_home

from .viewer import journal

pytestmark = pytest.mark.usefixtures("home")


class Mode(enum.Enum):
    FAST = 1


def test_values_that_cannot_be_published_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    training = TrainingRun("left-out")
    training.log({"loss": 9.0}, 0)  # not started: nothing is sent
    training.start({})
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            training.log({"loss": 0.5, "bad": object(), "/group//acc/": 1.0, "": 2.0}, step)
    training.finish()
    rows = {step: {} for step in range(3)}
    for event in journal("left-out", ev.Scalars):
        rows[event.step] |= event.values
    assert rows == {step: {"loss": 0.5, "group/acc": 1.0, "_": 2.0} for step in range(3)}
    assert [r.message.split(":")[0] for r in caplog.records] == ["not published as given"] * 3


def test_log_after_the_training_goes_on_in_its_run() -> None:
    training = TrainingRun("again")
    training.start({"lr": 0.1})
    training.log({"loss": 0.5}, 3)
    training.finish()
    training.log({"eval/loss": 0.4}, 3)
    training.finish()
    assert [e.values for e in journal("again", ev.Scalars)] == [{"loss": 0.5}, {"eval/loss": 0.4}]
    assert [e.config for e in journal("again", ev.RunStarted)] == [{"lr": 0.1}] * 2
    assert len(journal("again", ev.RunStopped)) == 2


def test_run_ended_by_its_owner_does_not_end_training(caplog: pytest.LogCaptureFixture) -> None:
    with publish("owned", config={"mine": 1}) as run:
        training = TrainingRun(run)
        training.start({"lr": 0.1, "mode": Mode.FAST})
        training.finish()
        training.log({"loss": 0.5}, 3)
    training.log({"loss": 0.4}, 4)
    assert training.asked("stop") is None
    assert [e.values for e in journal("owned", ev.Scalars)] == [{"loss": 0.5}]
    (changed,) = journal("owned", ev.RunConfigured)
    assert changed.config == {"mine": 1, "lr": 0.1, "mode": "Mode.FAST"}
    assert "has ended" in caplog.text
    with pytest.raises(PublishError, match="published already"):
        TrainingRun(run, resume=True)


def test_taken_name_gets_a_number() -> None:
    first, second = TrainingRun("taken"), TrainingRun("taken")
    first.start({})
    second.start({})
    assert (first.name, second.name) == ("taken", "taken-2")
    with pytest.raises(NameTaken, match="held by"):
        TrainingRun("taken", resume=True).start({})
    first.finish()
    second.finish()


def test_second_training_goes_on_in_the_run() -> None:
    training = TrainingRun("twice")
    for step in (3, 5):
        training.start({"step": step})
        training.log({"loss": 1.0}, step)
        training.finish()
    again = TrainingRun("twice", resume=True)
    again.start({})
    again.log({"loss": 1.0}, 7)
    again.finish()
    assert [e.step for e in journal("twice", ev.Scalars)] == [3, 5, 7]
    assert [e.config for e in journal("twice", ev.RunStarted)] == [{"step": 3}, {"step": 5}, {}]


def test_checkpoint_that_fails_is_told_to_the_sender(caplog: pytest.LogCaptureFixture) -> None:
    training = TrainingRun("failing")
    training.start({})
    with connect("failing") as client:
        for _ in range(2):
            client.command("checkpoint", {"tag": "x"})

    def write(_path: str) -> None:
        raise OSError(28, "No space left on device")

    training.save(1, ".bin", write, training.asked("checkpoint"))
    training.save(2, ".bin", lambda path: Path(path).write_bytes(b"weights"), training.asked("checkpoint"))
    training.finish()
    (failed,) = journal("failing", ev.CommandFailed)
    assert failed.message == "not saved: [Errno 28] No space left on device"
    path = esper_home() / "runs" / "failing" / "checkpoints" / "step-000000002-x.bin"
    assert [e.result for e in journal("failing", ev.CommandDone)] == [{"path": str(path), "bytes": 7}]
    (artifact,) = journal("failing", ev.Artifact)
    assert (artifact.name, artifact.kind, artifact.path) == (
        f"checkpoint/{path.name}",
        "checkpoint",
        str(path),
    )
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_commands_sent_between_trainings_are_kept() -> None:
    with publish("kept") as run:
        run.asked("stop")
        with connect("kept") as client:
            client.command("stop")
        training = TrainingRun(run)
        training.start({})
        assert training.asked("checkpoint") is None
        assert training.asked("stop")
        assert training.asked("stop") is None


@pytest.mark.parametrize(
    ("value", "tree"),
    [
        ({1: (np.float32(0.5), {"a": Mode.FAST})}, {"1": [0.5, {"a": "Mode.FAST"}]}),
        (math.inf, "Infinity"),
        (Path("/x"), "/x"),
        (object, "<class 'object'>"),
        (None, None),
    ],
)
def test_configuration_of_any_kind_has_a_form(value: Any, tree: Any) -> None:
    assert to_json_tree(value) == tree


def test_configuration_that_holds_itself_has_an_end() -> None:
    circle: dict[str, Any] = {}
    circle["again"] = circle
    assert "..." in str(to_json_tree(circle))

"""TensorBoard's writer that publishes: the lines of other people's programs, unchanged but for the import."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import numpy as np
import pytest

from esper_overwatch.compat.tensorboard import SummaryWriter
from esper_overwatch.protocol.messages import events as ev

from .viewer import journal


def train(writer: Any) -> None:
    """As CleanRL's ppo.py uses its writer."""
    config = {"seed": 1, "learning_rate": 2.5e-4}
    rows = "\n".join([f"|{key}|{value}|" for key, value in config.items()])
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
    for global_step in (128, 256):
        writer.add_scalar("charts/episodic_return", np.array([21.0], np.float32), global_step)
        writer.add_scalar("charts/SPS", int(global_step / 2), global_step)
        writer.add_scalar("losses/value_loss", np.float64(0.5), global_step)
    writer.close()


def test_program_of_cleanrl_is_published_as_it_is() -> None:
    train(SummaryWriter("runs/CartPole-v1__ppo__1__1700000000"))
    rows: dict[int, dict[str, Any]] = {}
    for event in journal("CartPole-v1__ppo__1__1700000000", ev.Scalars):
        rows.setdefault(event.step, {}).update(event.values)
    assert rows == {
        step: {"charts/episodic_return": 21.0, "charts/SPS": step // 2, "losses/value_loss": 0.5}
        for step in (128, 256)
    }
    (text,) = journal("CartPole-v1__ppo__1__1700000000", ev.LoggedText)
    assert text.text.endswith("|learning_rate|0.00025|")


def test_what_is_not_published_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), SummaryWriter(comment="x", config={"a": 1}) as writer:
        for _ in range(2):
            writer.add_figure("picture", object(), 1)
        writer.add_scalars("loss", {"train": 1.0, "val": 2.0}, 3)
        writer.add_scalar("later", 3.0)
        writer.add_histogram("weights", np.arange(9.0), 3)
        writer.add_hparams({"lr": 0.1}, {"accuracy": 0.9})
        writer.flush()
        name = writer.run.name
        with pytest.raises(AttributeError, match="no attribute"):
            writer.undefined  # noqa: B018
    assert [record.message for record in caplog.records] == [f"run {name}: add_figure publishes nothing"]
    values = [(event.step, event.values) for event in journal(name, ev.Scalars)]
    assert values == [
        (3, {"loss/train": 1.0, "loss/val": 2.0}),
        (3, {"later": 3.0}),
        (3, {"accuracy": 0.9}),
    ]
    assert [(event.name, event.size) for event in journal(name, ev.Histogram)] == [("weights", 9)]
    assert [event.config for event in journal(name, ev.RunStarted)] == [{"a": 1}]


def test_images_of_any_layout_are_published() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow, of which pictures are, is not installed")
    pixels = np.zeros((4, 6, 3))
    pixels[:, 3:, 2] = 1.0
    with SummaryWriter(config={"a": 1}) as writer:
        writer.add_image("chw", pixels.transpose(2, 0, 1), 1)
        writer.add_image("hwc", (pixels * 255).astype(np.uint8), 2, dataformats="HWC")
        writer.add_image("hw", pixels[:, :, 2], 3, dataformats="HW")
        writer.add_image("none", "no array", 4)
        name = writer.run.name
    found = {file.name: (file.step, image.open(file.path)) for file in journal(name, ev.Artifact)}
    assert {key: (step, one.size, one.mode) for key, (step, one) in found.items()} == {
        "chw": (1, (6, 4), "RGB"),
        "hwc": (2, (6, 4), "RGB"),
        "hw": (3, (6, 4), "L"),
    }
    assert {found[key][1].convert("RGB").getpixel((5, 0)) for key in ("chw", "hwc")} == {(0, 0, 255)}
    (told,) = [line.message for line in journal(name, ev.LogLine) if line.logger == "publish"]
    assert "none: a value of type ArrayPicture cannot be read" in told


@pytest.mark.slow  # loads torch
def test_arguments_are_those_of_tensorboard() -> None:
    theirs = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    for method in (
        "__init__",
        "add_scalar",
        "add_scalars",
        "add_histogram",
        "add_text",
        "add_image",
        "add_hparams",
    ):
        wanted = list(inspect.signature(getattr(theirs, method)).parameters)
        assert list(inspect.signature(getattr(SummaryWriter, method)).parameters)[: len(wanted)] == wanted

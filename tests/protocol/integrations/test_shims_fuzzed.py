"""Whatever programs give TensorBoard's writer and wandb's functions: none raises, the good is published."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import esper_overwatch.compat.wandb as wandb
from esper_overwatch.compat.tensorboard import SummaryWriter
from esper_overwatch.protocol.messages import events as ev

from .viewer import journal


class Hostile:
    """Raises wherever it is asked, but for what hypothesis prints."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else RuntimeError(name)

    def __float__(self) -> float:
        raise RuntimeError("float")


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=8)
odd = st.sampled_from(
    [Path("nowhere.png"), datetime(2026, 1, 1), object, math.sqrt, {1}, range(3), 1j, b"x"]
) | st.builds(Hostile)
arrays = st.sampled_from(
    [
        np.zeros(0),
        np.full((1, 1), 2.0),
        np.arange(6).reshape(2, 3),
        np.full((3, 4, 5), math.nan),
        np.array(["a", None], dtype=object),
        np.zeros((2, 3, 3), np.uint8),
    ]
)
tags = st.text(max_size=20) | plain | st.lists(plain, max_size=2)
anything = st.recursive(
    plain | odd | arrays,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | plain, inner, max_size=3)
    ),
    max_leaves=6,
)
fuzz = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def losses(name: str) -> list[float]:
    return [event.values["good"] for event in journal(name, ev.Scalars) if "good" in event.values]


def test_no_call_of_tensorboards_writer_raises() -> None:
    writer, given_so_far = SummaryWriter("runs/fuzzed"), []
    calls = st.sampled_from(["add_scalar", "add_histogram", "add_image", "add_video", "add_scalars"])

    @fuzz
    @given(calls, tags, anything, anything, st.integers(0, 9))
    def call(name: str, tag: Any, value: Any, step: Any, good: int) -> None:
        getattr(writer, name)(tag, value, step)
        writer.add_text(tag, str(good), step)
        writer.add_hparams({"a": value}, {"accuracy": value})
        writer.add_scalar("good", good, good)
        given_so_far.append(float(good))

    call()
    writer.close()
    assert losses("fuzzed") == given_so_far


def test_no_call_of_wandbs_functions_raises() -> None:
    run, given_so_far = wandb.init(name="fuzzed-w", config={"lr": 0.1}), []

    @fuzz
    @given(st.dictionaries(st.text(max_size=6) | plain, anything, max_size=3), anything, anything)
    def call(data: dict[Any, Any], value: Any, step: Any) -> None:
        wandb.log(data, step=step)
        wandb.log({"table": wandb.Table(columns=["a"], data=[[value]]), "array": wandb.Histogram(value)})
        wandb.config.update({"a": value})
        run.summary["best"] = value
        wandb.alert(value, value, level=value)
        wandb.log({"good": len(data)})
        given_so_far.append(float(len(data)))

    call()
    wandb.finish()
    assert losses("fuzzed-w") == given_so_far

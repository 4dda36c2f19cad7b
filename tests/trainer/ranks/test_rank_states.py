"""A checkpoint of one number of ranks goes on with another: every env keeps exactly its own rows."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.load import load as configured
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hooks import Hooks, StopRun
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.ranks.rank_states import join, redistribute, split
from esper_overwatch.trainer.telemetry.transfer import HostFrame

CONFIG = configured(
    sets=[
        "envs.count=8",
        "envs.threads=1",
        "envs.group_size=2",
        "envs.convolution=grouped",
        "episode_epochs=6",
        "task.batches_per_epoch=2",
        "task.batch_size=16",
        "host.channels=4,8",
        "policy.hidden=16",
        "ppo.epochs=1",
    ]
)
STOP = (2, 3)
"""Round and epoch: after an update, in mid-episode."""


class StopHooks(Hooks):
    """Keeps the frames, and stops at `STOP` where it is told to."""

    def __init__(self, stop: tuple[int, int] | None = None) -> None:
        self.frames: list[HostFrame] = []
        self._stop = stop

    def wants_round(self, finished: int) -> bool:
        return finished < STOP[0]

    def on_frame(self, frame: HostFrame, layers: Any) -> None:
        self.frames.append(frame)

    def on_epoch_end(self, round: int, epoch: int) -> None:
        if (round, epoch) == self._stop:
            raise StopRun("here", checkpoint=True)


def build(rank: int = 0, ranks: int = 1) -> Trainer:
    execution = Execution.as_configured(CONFIG)
    return Trainer(CONFIG, load("digits"), torch.device("cpu"), execution, ProcessGroup(rank, ranks))


@pytest.fixture(scope="module")
def saved() -> dict[str, Any]:
    """What a checkpoint of one process in mid-episode holds."""
    torch.set_num_threads(1)
    trainer = build()
    with pytest.raises(StopRun):
        trainer.run(StopHooks(STOP))
    return {"trainer": trainer.state_dict(), "other_ranks": [], "parameters": {"host.learning_rate": 0.01}}


def loaded(state: dict[str, Any]) -> list[dict[str, Any]]:
    """By rank, what it is to load."""
    others = [torch.load(io.BytesIO(bytes(t.numpy())), weights_only=True) for t in state["other_ranks"]]
    assert all(other["parameters"] == {"host.learning_rate": 0.01} for other in others)
    return [state["trainer"], *(other["trainer"] for other in others)]


def finished(trainer: Trainer, state: dict[str, Any]) -> list[HostFrame]:
    trainer.load_state_dict(state)
    hooks = StopHooks()
    trainer.play(hooks)
    return hooks.frames


def leaves(state: Any, path: str = "") -> dict[str, Any]:
    """The tensors and values of a tree by their path."""
    if isinstance(state, dict):
        parts = [leaves(value, f"{path}.{key}") for key, value in state.items()]
    elif isinstance(state, list | tuple):
        parts = [leaves(value, f"{path}.{i}") for i, value in enumerate(state)]
    else:
        return {path: state}
    return {name: leaf for part in parts for name, leaf in part.items()}


def assert_equal(found: Any, wanted: Any) -> None:
    """Two trees have the same leaves, bit for bit."""
    got, expected = leaves(found), leaves(wanted)
    assert expected.keys() == got.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(got[name], value, rtol=0, atol=0, equal_nan=True, msg=name)
        else:
            assert got[name] == value, name


@pytest.mark.slow
def test_an_episode_goes_on_the_same_on_other_ranks(saved: dict[str, Any]) -> None:
    ranks = 2
    whole = finished(build(), saved["trainer"])
    states = loaded(redistribute(saved, ranks))
    parts = [finished(build(rank, ranks), state) for rank, state in enumerate(states)]
    assert len(states) == ranks
    assert whole
    for i, frame in enumerate(whole):
        for name, column in frame.items():
            mine = np.concatenate([part[i][name] for part in parts])
            if name.startswith("policy."):  # of the network, which multiplies a half batch in another order
                np.testing.assert_allclose(mine, column, rtol=1e-5, atol=1e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(mine, column, err_msg=name)


def test_shares_have_the_shapes_of_a_rank(saved: dict[str, Any]) -> None:
    own = leaves(build(1, 8).state_dict())
    share = leaves(loaded(redistribute(saved, 8))[1])
    assert own.keys() - share.keys() == {".decision"}, "a fresh trainer has decided nothing"
    for name in own.keys() & share.keys():
        if isinstance(own[name], torch.Tensor):
            assert share[name].shape == own[name].shape, name


def test_state_shared_out_twice_is_the_state_before(saved: dict[str, Any]) -> None:
    again = loaded(redistribute(redistribute(saved, 4), 2))
    assert_equal(again, split(saved["trainer"], 2))
    assert leaves(join(again)).keys() == leaves(saved["trainer"]).keys()

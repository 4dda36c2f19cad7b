"""TorchRL's logger that publishes, in the hands of TorchRL's own trainer and recorder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import connect, publish
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import find_run

from .viewer import journal, needs

pytestmark = [
    *needs("torchrl", "torchrl"),
    pytest.mark.usefixtures("home"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
FRAMES, BATCH = 400, 100


def train(logger: Any) -> None:
    """A policy for CartPole, by TorchRL's trainer."""
    import torch
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv
    from torchrl.modules import MLP, QValueActor
    from torchrl.objectives import DQNLoss
    from torchrl.trainers import LogScalar, Trainer

    torch.manual_seed(1)
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    network = MLP(in_features=4, out_features=2, num_cells=[8])
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    collector = Collector(env, actor, frames_per_batch=BATCH, total_frames=FRAMES)
    loss = DQNLoss(actor, action_space="categorical", delay_value=False)
    trainer = Trainer(
        collector=collector,
        total_frames=FRAMES,
        frame_skip=1,
        optim_steps_per_batch=1,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=1e-3),
        logger=logger,
        progress_bar=False,
        log_interval=1,
    )
    trainer.register_op("pre_steps_log", LogScalar(logname="reward"))
    trainer.train()


def test_trainer_of_torchrl_is_published() -> None:
    from esper_overwatch.protocol.integrations.torchrl import TorchRLLogger

    logger = TorchRLLogger("cartpole")
    logger.log_hparams({"lr": 1e-3, "cells": [8], "path": Path("x")})
    train(logger)
    with connect("cartpole") as client:
        assert client.status()["name"] == "cartpole", "the run is live until the logger is shut down"
    logger.close()
    logger.shutdown()
    assert find_run("cartpole").state == "COMPLETED"
    rows = [(event.step, name) for event in journal("cartpole", ev.Scalars) for name in event.values]
    assert {step for step, name in rows if name == "reward"} == set(range(BATCH, FRAMES + 1, BATCH))
    assert {name for _, name in rows} >= {"reward", "reward_std", "loss", "grad_norm_0"}
    (changed,) = journal("cartpole", ev.RunConfigured)
    assert changed.config == {"lr": 1e-3, "cells": [8], "path": "x"}


def test_recorder_and_arrays_go_into_the_run_of_its_owner() -> None:
    import torch
    from torchrl.record import VideoRecorder

    from esper_overwatch.protocol.integrations.torchrl import TorchRLLogger

    with publish("own") as run:
        logger = TorchRLLogger(run)
        recorder = VideoRecorder(logger, tag="film", skip=1)
        for shade in (0, 255):
            recorder._apply_transform(torch.full((12, 8, 3), shade, dtype=torch.uint8))
        recorder.dump(step=5)
        logger.log_histogram("weights", torch.arange(9.0), step=6, bins="auto")
        logger.log_scalar("loss", torch.tensor(0.5))
        assert logger.log_metrics({"a": torch.ones(1), "b": {"c": 2}}, step=7)["a"] == 1.0
        logger.shutdown()
        run.log(after=1.0, step=8)
        state = logger.state_dict()
        logger.load_state_dict(state)
    assert (state["exp_name"], repr(logger)) == ("own", "TorchRLLogger('own')")
    (film,) = journal("own", ev.Artifact)
    assert (film.name, film.step, film.preview.width, film.preview.height) == ("film", 5, 8, 12)
    assert [(one.name, one.step, one.size) for one in journal("own", ev.Histogram)] == [("weights", 6, 9)]
    rows = [(event.step, event.values) for event in journal("own", ev.Scalars)]
    assert sorted(rows, key=str) == [
        (6, {"loss": 0.5}),
        (7, {"a": 1.0}),
        (7, {"b/c": 2}),
        (8, {"after": 1.0}),
    ]

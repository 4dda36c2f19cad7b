"""Trainings of Stable-Baselines3, seen and steered by the wire."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import find_run

from .viewer import check_stopped, journal, needs, train_beside_viewer

pytestmark = [*needs("stable_baselines3", "sb3"), pytest.mark.usefixtures("home")]


def make_model(algorithm: str = "PPO", **more: Any) -> Any:
    import stable_baselines3

    if algorithm == "PPO":
        more = {"n_steps": 64, "batch_size": 64, "n_epochs": 1, **more}
    return getattr(stable_baselines3, algorithm)("MlpPolicy", "CartPole-v1", device="cpu", seed=1, **more)


def test_viewer_follows_saves_and_ends_a_ppo() -> None:
    from stable_baselines3 import PPO

    from esper_overwatch.protocol.integrations.stable_baselines3 import StableBaselines3Callback

    model = make_model()
    callback = StableBaselines3Callback("poles")
    names = {"rollout/ep_rew_mean", "train/loss", "train/entropy_loss", "time/fps"}
    seen = train_beside_viewer(lambda: model.learn(10**9, callback), "poles", names)
    check_stopped("poles", seen)
    assert {name.partition("/")[0] for name in seen.names} == {"rollout", "train", "time"}
    assert (seen.config["algorithm"], seen.config["gamma"], seen.config["n_steps"]) == ("PPO", 0.99, 64)
    assert seen.saved["path"].endswith("-asked.zip")
    assert 0 < PPO.load(seen.saved["path"]).num_timesteps <= model.num_timesteps
    assert len(model.logger.output_formats) == 0
    again = StableBaselines3Callback("poles", resume=True)
    model.learn(128, again, reset_num_timesteps=False)
    scalars = journal("poles", ev.Scalars)
    assert scalars[-1].step > model.num_timesteps - 128
    assert [e.step for e in scalars] == sorted(e.step for e in scalars)


def test_values_that_others_exclude_or_cannot_hold() -> None:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import HParam, Logger

    from esper_overwatch.protocol.integrations.stable_baselines3 import StableBaselines3Callback

    class Odd(BaseCallback):
        def _on_step(self) -> bool:
            self.logger.record("mine/number", 1.0)
            self.logger.record("mine/secret", 2.0, exclude="publish")
            self.logger.record("mine/shown", 3.0, exclude="tensorboard")
            self.logger.record("mine/object", object())
            self.logger.record("hparams", HParam({"a": 1}, {"b": 2.0}))
            return True

    model = make_model("DQN", learning_starts=20)
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.learn(300, [Odd(), StableBaselines3Callback("odd")], log_interval=1)
    model.learn(300, StableBaselines3Callback("odd", resume=True), log_interval=1)
    seen = {name for event in journal("odd", ev.Scalars) for name in event.values}
    assert {"mine/number", "mine/shown", "rollout/exploration_rate", "train/loss"} <= seen
    assert not {"mine/secret", "mine/object", "hparams"} & seen


def test_blocked_disk_holds_up_no_training(blocked_journal: threading.Event) -> None:
    from esper_overwatch.protocol.integrations.stable_baselines3 import StableBaselines3Callback

    with publish("blocked") as run:
        make_model().learn(256, StableBaselines3Callback(run))
        assert not blocked_journal.is_set()
        blocked_journal.set()
    assert [e.step for e in journal("blocked", ev.Scalars)] == [64, 128, 192, 256]


@pytest.mark.nightly
def test_exception_leaves_a_readable_run() -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    from esper_overwatch.protocol.integrations.stable_baselines3 import StableBaselines3Callback

    class Failing(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 200:
                raise ValueError("the pole is gone")
            return True

    def train() -> None:
        with publish("failing") as run:
            make_model().learn(1000, [StableBaselines3Callback(run), Failing()])

    with pytest.raises(ValueError, match="the pole is gone"):
        train()
    (stopped,) = journal("failing", ev.RunStopped)
    assert (stopped.exit_code, stopped.error) == (11, "ValueError: the pole is gone")
    assert find_run("failing").state == "FAILED"
    assert journal("failing", ev.Scalars)

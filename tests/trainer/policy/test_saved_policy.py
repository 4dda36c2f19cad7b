"""Policies in files: what comes back, and what is refused without running anything of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from esper_overwatch.trainer.checkpoint import to_archive
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.saved_policy import (
    FORMAT,
    PolicyMismatch,
    SavedPolicy,
    with_policy_options,
)
from tests.trainer.command import esper

SMALL = ("envs.count=2", "ppo.minibatches=1", "policy.hidden=16")


def config(*sets: str) -> Config:
    return settings.load(sets=[*SMALL, *sets])


def agent(cfg: Config, slots: int = 3) -> Agent:
    return Agent(cfg, slots=slots, host_parameters=100)


def checkpoint(made: Agent, **evaluation: Any) -> dict[str, Any]:
    trainer = {"round": 7, "epoch": 3, "agent": made.state_dict(), "evaluation": evaluation or None}
    return {"trainer": trainer, "config": msgspec.json.encode(made.cfg).decode()}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A policy with weights that no seed gives."""
    made = agent(config("seed=5", "task.mixture=digits,layout"))
    path = tmp_path / "a.policy"
    SavedPolicy.of_checkpoint(checkpoint(made, newest={"return": 0.5}), "mine", "0.2.0", "best.pt").write(
        path
    )
    return path


def test_policy_comes_back_with_its_description(written: Path) -> None:
    saved, made = SavedPolicy.read(written), agent(config("seed=5"))
    about = saved.about
    assert (about.run, about.rounds, about.episodes, about.slots) == ("mine", 6, 12, 3)
    assert about.tasks == ("digits", "layout")
    assert about.evaluation == {"return": 0.5}
    loaded = agent(config("seed=9", f"policy.file={written}"))
    assert made.network is not None
    assert loaded.network is not None
    for name, weight in made.network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], weight), name


def test_policy_of_a_single_held_out_host_is_shown(written: Path) -> None:
    """Before, a lead without an interval was a traceback: a mean over one host has none."""
    evaluation = {"round": 2, "hosts": 1, "seed": 2, "return": 0.5, "test_accuracy": 0.5}
    newest = {**evaluation, "added_parameters": 3.0, "leads": {"no_growth": [0.25, math.nan, math.nan]}}
    state = checkpoint(agent(config()), newest=newest)
    SavedPolicy.of_checkpoint(state, "mine", "0.2.0", "best.pt").write(written)
    shown = esper("policy", "show", str(written))
    assert shown.exit_code == 0, shown.output
    assert "lead over no_growth +0.250\n" in shown.output


def test_decision_epochs_come_with_the_file(written: Path) -> None:
    made = agent(config("policy.decision_epochs=1,5"))
    SavedPolicy.of_checkpoint(checkpoint(made), "mine", "0.2.0", "best.pt").write(written)
    for sets in ([], ["policy.decision_epochs=1,5"]):
        sourced = with_policy_options(settings.load_sourced(sets=[f"policy.file={written}", *sets]))
        assert sourced.config.policy.decision_epochs == (1, 5)
        assert agent(sourced.config).network is not None
    with pytest.raises(PolicyMismatch, match=r"decision_epochs = .*was made with \(1, 5\); leave it out"):
        with_policy_options(
            settings.load_sourced(sets=[f"policy.file={written}", "policy.decision_epochs=2"])
        )
    with pytest.raises(PolicyMismatch, match=r"decides at epoch 5, and an episode's last is 4"):
        with_policy_options(settings.load_sourced(sets=[f"policy.file={written}", "episode_epochs=5"]))


def test_sizes_of_the_network_come_with_the_file(written: Path) -> None:
    open_ = settings.load_sourced(sets=[f"policy.file={written}"])
    assert with_policy_options(open_).config.policy.hidden == 16
    with pytest.raises(PolicyMismatch, match=r"policy\.hidden = 32: .* was made with 16; leave it out"):
        with_policy_options(settings.load_sourced(sets=[f"policy.file={written}", "policy.hidden=32"]))
    with pytest.raises(PolicyMismatch, match=r"policy\.kind = fixed is a rule"):
        with_policy_options(settings.load_sourced(sets=[f"policy.file={written}", "policy.kind=fixed"]))


def test_temperature_is_chosen_by_who_plays(written: Path) -> None:
    sets = (f"policy.file={written}", "policy.learn=false", "policy.temperature=0.5")
    assert with_policy_options(settings.load_sourced(sets=sets)).config.policy.temperature == 0.5
    warm = agent(config("policy.learn=false", "policy.temperature=0.5"))
    SavedPolicy.of_checkpoint(checkpoint(warm), "warm", "0.2.0", "best.pt").write(written)
    assert with_policy_options(settings.load_sourced(sets=sets[:1])).config.policy.temperature == 1.0


@pytest.mark.parametrize(
    ("sets", "slots", "reason"),
    [
        ((), 2, "it grows hosts with 3 slots, and these have 2"),
        (
            ("seeds.blueprints=norm",),
            3,
            "it plants norm, attention, depthwise, conv_light, and",
        ),
        (("policy.hidden=8",), 3, "its network does not fit"),
    ],
)
def test_policy_that_does_not_fit_says_why(
    written: Path, sets: tuple[str, ...], slots: int, reason: str
) -> None:
    with pytest.raises(PolicyMismatch, match=reason) as refused:
        agent(config(f"policy.file={written}", *sets), slots)
    assert "\n" not in str(refused.value)
    assert str(written) in str(refused.value)


class Bomb:
    """Runs a command where it is unpickled by a reader that runs code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_reading_a_file_runs_nothing_of_it(tmp_path: Path) -> None:
    path, mark = tmp_path / "bomb.policy", tmp_path / "mark"
    path.write_bytes(to_archive({"format": FORMAT, "about": "{}", "network": {"w": Bomb(mark)}}).getbuffer())
    with pytest.raises(PolicyMismatch, match="cannot be read") as refused:
        SavedPolicy.read(path)
    assert "\n" not in str(refused.value)
    assert not mark.exists()


def test_damaged_file_is_refused_wherever_it_is_cut_or_changed(written: Path) -> None:
    whole = written.read_bytes()
    for at in range(0, len(whole), len(whole) // 20):
        for changed in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :]):
            written.write_bytes(changed)
            with pytest.raises(PolicyMismatch) as refused:
                SavedPolicy.read(written)
            assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": "other"}, "is not a policy"),
        ({"trainer": {}, "format": 2}, "is not a policy, but a checkpoint"),
        ({"about": "{}"}, "cannot be read: Object missing required field"),
        ({"about": 3}, "cannot be read"),
        ({"network": [1]}, "cannot be read"),
        ({"network": {"w": "text"}}, "cannot be read"),
        ({"network": {"w": torch.tensor([1.0, float("nan")])}}, "numbers that are not finite, in w"),
    ],
)
def test_content_of_another_kind_is_refused(written: Path, changes: dict[str, Any], reason: str) -> None:
    saved = SavedPolicy.read(written)
    about = msgspec.json.encode(saved.about).decode()
    state = {"format": FORMAT, "about": about, "network": saved.network, **changes}
    written.write_bytes(to_archive(state).getbuffer())
    with pytest.raises(PolicyMismatch, match=reason):
        SavedPolicy.read(written)


def test_observations_of_another_layout_are_refused(written: Path) -> None:
    saved = SavedPolicy.read(written)
    about = json.dumps({**msgspec.to_builtins(saved.about), "layout": 1, "version": "0.0.9"})
    state = {"format": FORMAT, "about": about, "network": saved.network}
    written.write_bytes(to_archive(state).getbuffer())
    with pytest.raises(PolicyMismatch, match=r"observations of layout 1, .* exported by version 0\.0\.9"):
        agent(config(f"policy.file={written}"))


def test_rule_has_no_file() -> None:
    made = agent(config("policy.kind=heuristic"))
    with pytest.raises(PolicyMismatch, match=r"best\.pt: its policy is the rule heuristic"):
        SavedPolicy.of_checkpoint(checkpoint(made), "mine", "0.2.0", "best.pt")

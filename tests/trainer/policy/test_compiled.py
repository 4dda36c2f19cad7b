"""Deciding and learning agree on probabilities however they are computed, and compile once for all rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from esper_overwatch.trainer.compute.compiler import CompiledProgram, Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphProgram, CudaGraphs
from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.reward.compute import Reward
from tests.trainer.compute.test_cuda_graphs import record

from .garden import learn, make, play

torch.set_num_threads(1)
CPU = torch.device("cpu")
SMALL = ("envs.count=4", "episode_epochs=3", "policy.hidden=16", "ppo.minibatches=2")
ONE_STEP = ("ppo.epochs=1", "ppo.minibatches=1")
"""An update whose only step begins with the policy that acted: its ratios are those of epoch 0."""
COURSES = ("ppo.entropy_rounds=5",)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced whole by torch.compile as ever, but without the minutes of the C++ compiler."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, mode, **options: compile_(f, backend="eager", **options))


def one_round(agent: Agent, reward: Reward, round: int) -> UpdateStatistics:
    return learn(agent, play(agent, reward, round)[0])


def assert_first_ratios_are_one(statistics: UpdateStatistics) -> None:
    assert statistics.minibatches == 1
    assert statistics.ratio_min == pytest.approx(1.0, abs=1e-5)
    assert statistics.ratio_max == pytest.approx(1.0, abs=1e-5)


def compiled(*sets: str) -> tuple[Agent, Reward, dict[str, CompiledProgram[Any, Any]]]:
    cfg = load(sets=[*SMALL, *sets])
    compiler = Compiler("default", CPU, cfg.episode_epochs)
    return *make(cfg, compiler), compiler.programs


@pytest.mark.nightly
def test_first_ratios_of_compiled_programs_are_one() -> None:
    agent, reward, programs = compiled(*ONE_STEP, "ppo.learning_rate=0.01", *COURSES)
    for round in range(1, 6):
        assert_first_ratios_are_one(one_round(agent, reward, round))
    assert {name: p.reason for name, p in programs.items()} == {"the policy": "", "the PPO loss": ""}
    assert all(p.calls >= 4 for p in programs.values())


@pytest.mark.slow
def test_courses_of_coefficients_compile_nothing_anew(quick: None) -> None:
    agent, reward, programs = compiled(*COURSES, "ppo.target_kl=0", "ppo.epochs=2")
    counters = torch._dynamo.utils.counters
    told = [one_round(agent, reward, 1)]
    counters.clear()
    told += [one_round(agent, reward, round) for round in range(2, 8)]
    assert not counters["stats"]["unique_graphs"]
    assert {name: p.reason for name, p in programs.items()} == {"the policy": "", "the PPO loss": ""}
    assert len({one.entropy_coefficient for one in told}) == 6


@pytest.mark.slow
def test_nothing_compiled_is_computed_after_a_stop(quick: None) -> None:
    agent, reward, programs = compiled("ppo.target_kl=0.0001", "ppo.learning_rate=0.01")
    one_round(agent, reward, 1)
    for round in (2, 3, 4):
        before = programs["the PPO loss"].calls
        statistics = one_round(agent, reward, round)
        assert statistics.early_stop
        assert programs["the PPO loss"].calls - before == statistics.minibatches + 1


def test_captured_policy_acts_as_the_plain_one() -> None:
    cfg = load(sets=[*SMALL, *ONE_STEP, *COURSES])
    graphs = CudaGraphs(on=True, capture=record)
    agent, reward = make(cfg, graphs=graphs)
    plain, same_reward = make(cfg)
    for round in range(1, 8):
        rollout, _ = play(agent, reward, round)
        expected, _ = play(plain, same_reward, round)
        assert torch.equal(rollout.actions, expected.actions)
        torch.testing.assert_close(rollout.log_prob, expected.log_prob, atol=1e-4, rtol=0.0)
        assert_first_ratios_are_one(learn(agent, rollout))
        learn(plain, expected)
    program = graphs.programs["the policy"]
    assert isinstance(program, CudaGraphProgram)
    assert program.reason == ""
    assert program.replays == 7 * 3 - 2, "the first two calls are compared with the program itself"

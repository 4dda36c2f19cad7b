"""Updates whose minibatches are replayed learn and report what updates as written do."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.compute.cuda_graphs import MAX_CACHED_GRAPHS, NUM_CHECKED_CALLS, CudaGraphs
from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.loss import Loss
from esper_overwatch.trainer.policy.minibatch import EarlyStop
from esper_overwatch.trainer.policy.ppo import PPO, PolicyDiverged
from esper_overwatch.trainer.policy.rollout import Rollout
from tests.cases import mostly_nightly
from tests.trainer.compute.test_cuda_graphs import record

from .garden import learn, make, play

SETS = ("envs.count=6", "episode_epochs=6", "policy.hidden=16", "ppo.minibatches=3", "ppo.learning_rate=0.01")
PROGRAM = "a minibatch of the policy"
CASES = {
    "no target": ("ppo.target_kl=0",),
    "target": ("ppo.target_kl=0.01",),
    "early": ("ppo.target_kl=1e-6",),
    "uneven": ("ppo.target_kl=0.01", "ppo.minibatches=4"),
    "courses": ("ppo.target_kl=0", "ppo.schedule=linear", "rounds=4", "ppo.entropy_rounds=3"),
    "plans": ("ppo.target_kl=0.01", "policy.decision_epochs=0,2"),
}

DEFAULT = ("target", "plans")


def agents(*sets: str) -> tuple[Agent, Agent, CudaGraphs, list[Rollout]]:
    """Twins, the second of which replays; and rollouts that both learn from, all in one memory."""
    graphs = CudaGraphs(on=True, capture=record)
    cfg = load(sets=[*SETS, *sets])
    (plain, reward), (replaying, _) = make(cfg), make(cfg, graphs=graphs)
    return plain, replaying, graphs, [play(plain, reward, round)[0] for round in (1, 2, 3)]


def ppo_of(agent: Agent) -> PPO:
    assert agent.ppo is not None
    return agent.ppo


def same(one: Agent, other: Agent) -> None:
    mine, theirs = ppo_of(one), ppo_of(other)
    for (name, weight), found in zip(
        mine.network.named_parameters(), theirs.network.parameters(), strict=True
    ):
        if name == "heads.slot.bias":  # moves all scores of a choice alike: Adam follows its rounding errors
            continue
        torch.testing.assert_close(found, weight, atol=1e-4, rtol=1e-4, msg=name)
    for kind, moments, others in zip(
        ("mean", "square", "counter"),
        mine.state_dict()["moments"],
        theirs.state_dict()["moments"],
        strict=True,
    ):
        for moment, other in zip(moments, others, strict=True):
            torch.testing.assert_close(other, moment, atol=1e-5, rtol=1e-3, msg=kind)
    for mean, found in zip(mine.network.buffers(), theirs.network.buffers(), strict=True):
        torch.testing.assert_close(found, mean)
    assert torch.equal(mine.state_dict()["streak"], theirs.state_dict()["streak"])


@pytest.mark.parametrize("case", mostly_nightly(CASES, *DEFAULT))
def test_replayed_updates_learn_and_report_as_written_ones(case: str) -> None:
    plain, replaying, graphs, rollouts = agents(*CASES[case])
    memory = rollouts[0].envs(torch.arange(6))
    for rollout in rollouts:
        memory.load_state_dict(rollout.state_dict())
        expected, found = learn(plain, memory), learn(replaying, memory)
        for name, value in vars(expected).items():
            if name != "seconds":
                np.testing.assert_allclose(getattr(found, name), value, rtol=2e-3, atol=2e-5, err_msg=name)
        same(plain, replaying)
    program = graphs.programs[PROGRAM]
    assert not program.reason
    assert program.replays >= NUM_CHECKED_CALLS
    assert len(program._graphs) <= 2, "one for each size of minibatches"


def test_steps_that_are_not_finite_are_neither_taken_nor_forgotten() -> None:
    plain, replaying, _, (rollout, *_) = agents("ppo.target_kl=0", "ppo.epochs=2")
    learn(plain, rollout), learn(replaying, rollout)
    rollout.log_prob[2, 1] = math.nan
    expected, found = learn(plain, rollout), learn(replaying, rollout)
    assert (found.skipped_nonfinite, found.minibatches) == (expected.skipped_nonfinite, expected.minibatches)
    assert found.skipped_nonfinite == 2
    same(plain, replaying)
    rollout.log_prob[:] = math.nan
    with pytest.raises(PolicyDiverged, match="steps in a row"):
        learn(replaying, rollout)


def test_resumed_and_reconfigured_updates_do_not_use_old_graphs() -> None:
    plain, replaying, graphs, (rollout, *_) = agents("ppo.target_kl=0", "ppo.epochs=4")
    learn(plain, rollout), learn(replaying, rollout)
    saved = io.BytesIO()
    torch.save(ppo_of(replaying).state_dict(), saved)
    saved.seek(0)
    ppo_of(replaying).load_state_dict(torch.load(saved, weights_only=True))
    learn(plain, rollout), learn(replaying, rollout)
    same(plain, replaying)
    for agent in (plain, replaying):
        ppo_of(agent).configure(clip=0.02, max_grad_norm=0.01, target_kl=0.5)
    expected, found = learn(plain, rollout), learn(replaying, rollout)
    assert found.clip_fraction == pytest.approx(expected.clip_fraction, abs=2e-3)
    same(plain, replaying)
    assert not graphs.programs[PROGRAM].reason
    assert 2 <= len(graphs.programs[PROGRAM]._graphs) <= MAX_CACHED_GRAPHS


def test_program_that_cannot_be_captured_learns_as_it_is() -> None:
    def refuse(*works: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    cfg = load(sets=[*SETS, "ppo.target_kl=0.005"])
    (plain, reward), (other, _) = make(cfg), make(cfg, graphs=CudaGraphs(on=True, capture=refuse))
    rollout, _ = play(plain, reward, 1)
    assert learn(plain, rollout).minibatches == learn(other, rollout).minibatches
    same(plain, other)


@given(
    st.lists(st.tuples(st.floats(0, 1) | st.just(math.nan), st.booleans()), min_size=1, max_size=12),
    st.just(0.0) | st.floats(0.01, 1),
    st.integers(0, 3),
)
def test_steps_are_taken_until_the_policy_has_moved_too_far(
    steps: list[tuple[float, bool]], target: float, streak: int
) -> None:
    stop = EarlyStop(torch.device("cpu"))
    stop.streak.fill_(streak)
    stop.begin()
    stopped, longest = False, streak
    for number, finite_gradient in steps:
        kl = torch.tensor(number)
        loss = Loss._make([kl] * len(Loss._fields))
        goes_on = stop.judge_kl(loss, target)
        applied = stop.allow_step(kl.isfinite() & torch.tensor(finite_gradient))
        stopped = stopped or (target > 0 and number > target)
        wanted = not stopped and math.isfinite(number) and finite_gradient
        if not stopped:
            streak = 0 if wanted else streak + 1
        longest = max(longest, streak)
        assert (bool(goes_on), bool(applied)) == (not stopped, wanted)
    assert (int(stop.streak), int(stop.longest)) == (streak, longest)

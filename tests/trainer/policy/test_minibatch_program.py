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
from esper_overwatch.trainer.config.policy_options import PPOConfig
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.early_stop import EarlyStop, MaskedStop
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
    "per pass": ("ppo.target_kl=0.002", "ppo.kl_per=pass"),
    "critic goes on": ("ppo.target_kl=0.005", "ppo.kl_stops=policy"),
    "critic, per pass": ("ppo.target_kl=0.002", "ppo.kl_per=pass", "ppo.kl_stops=policy"),
    "uneven": ("ppo.target_kl=0.01", "ppo.minibatches=4"),
    "observes first": ("ppo.observe_rounds=1",),
    "reevaluated": ("ppo.target_kl=0", "ppo.reevaluate=true"),
    "courses": (
        "ppo.target_kl=0",
        "ppo.warmup_rounds=3",
        "ppo.entropy_rounds=3",
        "ppo.floor=op:0.1",
        "ppo.floor_rounds=3",
        "ppo.sharpen_rounds=3",
    ),
}

DEFAULT = ("target", "critic goes on")


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
        moments, others = (ppo.optimizer.state.get(p, {}) for ppo, p in ((mine, weight), (theirs, found)))
        for kind, moment in moments.items():
            torch.testing.assert_close(others[kind], moment, atol=1e-5, rtol=1e-3, msg=f"{name} {kind}")
    for mean, found in zip(mine.network.buffers(), theirs.network.buffers(), strict=True):
        torch.testing.assert_close(found, mean)
    assert torch.equal(mine._streak, theirs._streak)


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
    assert 3 <= len(graphs.programs[PROGRAM]._graphs) <= MAX_CACHED_GRAPHS


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
    st.floats(0.01, 1),
    st.sampled_from(["minibatch", "pass"]),
    st.integers(0, 3),
)
def test_decisions_on_the_device_are_those_of_the_host(
    steps: list[tuple[float, bool]], target: float, per: str, streak: int
) -> None:
    cfg = PPOConfig(target_kl=target, kl_per=per)  # type: ignore[arg-type]
    host, device = EarlyStop(torch.tensor(streak), cfg), MaskedStop(torch.device("cpu"))
    device.begin(torch.tensor(streak))
    for place, (number, finite_gradient) in enumerate(steps, 1):
        kl, gradient = torch.tensor(number), torch.tensor(finite_gradient)
        if host.stopped or host.stops_at(kl, kl.isfinite()):
            taken = False
        else:
            taken = bool(host.allows_step(kl.isfinite() & gradient))
        goes_on, applied = device.judge(kl, kl.isfinite(), gradient, target_kl=target, kl_per=per)
        if place % 3 == 0 and per == "pass":
            host.check_pass()
            device.end_pass(target)
        assert bool(applied) == taken
        assert bool(device.stopped) == host.stopped
        assert goes_on | applied == goes_on
    assert (int(device.streak), int(device.longest)) == (int(host.streak), int(host.longest))

"""When an update ends, what goes on after it, and updates that only observe."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.config.policy_options import PPOConfig
from esper_overwatch.trainer.policy.early_stop import EarlyStop
from esper_overwatch.trainer.policy.gae import gae
from esper_overwatch.trainer.policy.ppo import PPO
from esper_overwatch.trainer.policy.rollout import Rollout
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics

from .garden import learn, make, play

SETS = ("envs.count=6", "episode_epochs=8", "policy.hidden=16", "ppo.minibatches=3", "ppo.learning_rate=0.01")


def setup(*sets: str) -> tuple[PPO, Rollout]:
    agent, reward = make(load(sets=[*SETS, *sets]))
    assert agent.ppo is not None
    return agent.ppo, play(agent, reward, 1)[0]


def update(ppo: PPO, rollout: Rollout) -> UpdateStatistics:
    return ppo.update(rollout, *gae(rollout.reward, rollout.value, gamma=0.99, lam=0.95))


def weights(ppo: PPO) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in ppo.network.named_parameters()}


@given(
    st.lists(st.floats(0, 1) | st.just(math.nan) | st.just(math.inf), min_size=1, max_size=12),
    st.floats(0.01, 1),
)
def test_pass_is_judged_by_its_finite_mean(kls: list[float], target: float) -> None:
    stop = EarlyStop(torch.zeros((), dtype=torch.int64), PPOConfig(target_kl=target, kl_per="pass"))
    for kl in kls:
        value = torch.tensor(kl, dtype=torch.float64)
        assert not stop.stops_at(value, value.isfinite())
    stop.check_pass()
    finite = [kl for kl in kls if math.isfinite(kl)]
    total, limit = sum(finite), target * len(finite)
    assert stop.stopped == (total > limit) or math.isclose(total, limit)


def test_target_per_pass_ends_updates_after_whole_passes() -> None:
    ppo, rollout = setup("ppo.kl_per=pass", "ppo.target_kl=0.001")
    found = update(ppo, rollout)
    assert found.early_stop
    assert found.minibatches == 3 * found.epochs < 24
    assert found.approx_kl > 0.001
    whole, same_rollout = setup("ppo.target_kl=0", f"ppo.epochs={found.epochs}")
    update(whole, same_rollout)
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(ppo)[name]), name


def test_excess_in_the_last_pass_is_no_early_stop() -> None:
    ppo, rollout = setup("ppo.kl_per=pass", "ppo.target_kl=1e-6", "ppo.epochs=1")
    found = update(ppo, rollout)
    assert found.approx_kl > 1e-6
    assert found.minibatches == 3
    assert not found.early_stop


def critic_error(ppo: PPO, rollout: Rollout) -> float:
    """Mean square of what the critic is wrong by, in units of reward, with the inputs of the update."""
    network, (fresh, _) = copy.deepcopy(ppo.network), setup()
    network.base_norm, network.slot_norm = fresh.network.base_norm, fresh.network.slot_norm
    returns = gae(rollout.reward, rollout.value, gamma=0.99, lam=0.95)[1]
    out = network(rollout.observation, network.initial(6), rollout.reset)
    return float((network.value(out.value.detach()) - returns).square().mean())


def test_critic_alone_learns_on_after_a_stop() -> None:
    plain, rollout = setup("ppo.target_kl=0.001")
    stopped = update(plain, rollout)
    ppo, same_rollout = setup("ppo.target_kl=0.001", "ppo.kl_stops=policy")
    found = update(ppo, same_rollout)
    assert found.minibatches == stopped.minibatches
    assert (stopped.critic_minibatches, found.critic_minibatches) == (0, 24 - found.minibatches - 1)
    changed = {name for name, w in weights(ppo).items() if not torch.equal(w, weights(plain)[name])}
    assert changed == {"critic.weight", "critic.bias"}
    assert critic_error(ppo, same_rollout) < critic_error(plain, rollout)


def test_critic_steps_are_those_of_a_reference() -> None:
    ppo, rollout = setup("ppo.target_kl=0.001", "ppo.kl_stops=policy", "ppo.max_grad_norm=1000000")
    taught: list[tuple[Any, ...]] = []
    teach = ppo._teach_critic

    def kept(*args: Any) -> None:
        taught.append((copy.deepcopy(ppo.network), copy.deepcopy(ppo.optimizer.state_dict()), *args))
        teach(*args)

    ppo._teach_critic = kept  # type: ignore[method-assign]
    update(ppo, rollout)
    ((network, state, minibatches, taught_on, target, _),) = taught
    assert minibatches
    adam = torch.optim.Adam(network.parameters(), lr=0.01, eps=1e-5)
    adam.load_state_dict(state)
    hidden = network(taught_on.observation, network.initial(6), taught_on.reset).h.detach()
    for envs in minibatches:
        adam.zero_grad()
        error = network.critic(hidden[:, envs]).squeeze(-1) - target[:, envs]
        (ppo.cfg.value_coefficient * error.square().mean() / 2).backward()
        adam.step()
    for mine, found in zip(network.critic.parameters(), ppo.network.critic.parameters(), strict=True):
        torch.testing.assert_close(found, mine, rtol=1e-5, atol=1e-6)


def test_observing_rounds_learn_normalisers_only() -> None:
    agent, reward = make(load(sets=[*SETS, "ppo.observe_rounds=2"]))
    assert agent.ppo is not None
    network = agent.ppo.network
    for round in (1, 2):
        before, seen = weights(agent.ppo), network.base_norm.mean.clone()
        found = learn(agent, play(agent, reward, round)[0])
        assert (found.minibatches, found.epochs, found.early_stop) == (0, 0, False)
        assert math.isfinite(found.policy_loss)
        assert found.ratio_max == pytest.approx(1.0, abs=1e-5)
        assert not torch.equal(seen, network.base_norm.mean)
        for name, weight in weights(agent.ppo).items():
            assert name.startswith("critic") or torch.equal(weight, before[name]), name
    assert learn(agent, play(agent, reward, 3)[0]).minibatches > 0

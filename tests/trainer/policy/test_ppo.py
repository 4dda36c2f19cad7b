"""The PPO update against a plain float64 reference, its gate, its bookkeeping and its resume."""

from __future__ import annotations

import dataclasses
import io
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from esper_overwatch.protocol.messages.events import PPOUpdate
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, HEADS_OF_OP, Op
from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.config.policy_options import PPOConfig
from esper_overwatch.trainer.policy.agent import Agent
from esper_overwatch.trainer.policy.coefficients import Coefficients
from esper_overwatch.trainer.policy.feature_statistics import FEATURE_GROUPS
from esper_overwatch.trainer.policy.gae import gae
from esper_overwatch.trainer.policy.loss import ppo_loss
from esper_overwatch.trainer.policy.network import ActorCritic
from esper_overwatch.trainer.policy.observation import BASE_COLUMNS, SLOT_COLUMNS
from esper_overwatch.trainer.policy.ppo import PPO, PolicyDiverged
from esper_overwatch.trainer.policy.rollout import Rollout
from esper_overwatch.trainer.policy.update_statistics import explained_within
from esper_overwatch.trainer.telemetry.round_events import update_event

from .garden import WORTH, learn, make, play

SETS = ("envs.count=6", "episode_epochs=8", "policy.hidden=16")


def setup(*sets: str) -> tuple[Agent, PPO, Rollout]:
    agent, reward = make(load(sets=[*SETS, *sets]))
    rollout, _ = play(agent, reward, 1)
    assert agent.ppo is not None
    return agent, agent.ppo, rollout


def double(rollout: Rollout) -> Rollout:
    copy = rollout.envs(torch.arange(rollout.reward.shape[1]))
    for name in ("log_prob", "value", "reward"):
        setattr(copy, name, getattr(copy, name).double())
    for name in ("base", "slot"):
        setattr(copy.observation, name, getattr(copy.observation, name).double())
    return copy


def reference(
    network: ActorCritic, batch: Rollout, advantage: Tensor, target: Tensor, cfg: PPOConfig
) -> Tensor:
    """The loss by its definition: loops over steps, envs and heads, log-probabilities by hand."""
    t_max, n = advantage.shape
    out = network(batch.observation, network.initial(n), batch.reset)
    total = torch.zeros((), dtype=torch.float64)
    for t in range(t_max):
        for env in range(n):
            legal = batch.legal[t, env]
            op, slot = Op(int(batch.actions[t, env, 0])), int(batch.actions[t, env, 1])
            for head, name in enumerate(HEAD_NAMES):
                if name != "op" and name not in HEADS_OF_OP[op]:
                    continue
                scores = out.logits[head][t, env]
                choice = int(batch.actions[t, env, head])
                if name == "op":
                    open_ = [o for o in range(len(Op)) if legal[o].any()]
                elif name == "slot":
                    scores = scores[op]
                    open_ = [s for s in range(len(WORTH)) if legal[op, s]]
                else:
                    scores = scores[slot]
                    open_ = list(range(len(scores)))
                p = torch.stack([scores[c] for c in open_]).exp()
                p = p / p.sum()
                ratio = p[open_.index(choice)] / batch.log_prob[t, env, head].exp()
                a = advantage[t, env]
                clipped = min(max(ratio.item(), 1 - cfg.clip), 1 + cfg.clip)
                total = total - (ratio * a if (ratio * a).item() <= clipped * a.item() else clipped * a)
                if len(open_) > 1:
                    total = total + cfg.entropy_coefficient * (p * p.log()).sum() / math.log(len(open_))
            error = out.value[t, env] - target[t, env]
            total = total + cfg.value_coefficient * error * error / 2
    return total / (t_max * n)


@pytest.mark.parametrize(("seed", "sets"), [(0, ()), (1, ("ppo.clip=0.1", "ppo.value_coefficient=2"))])
def test_loss_and_gradients_are_those_of_the_definition(seed: int, sets: tuple[str, ...]) -> None:
    agent, ppo, rollout = setup(f"seed={seed + 1}", "ppo.entropy_coefficient=0.1", *sets)
    network, cfg, batch = ppo.network.double(), agent.cfg.ppo, double(rollout)
    g = torch.Generator().manual_seed(seed)
    # Log-probabilities of an older policy, so that ratios leave the clip range on both sides.
    relevant = agent.space.relevant_OH[batch.actions[..., 0]]
    batch.log_prob += relevant * 0.4 * torch.randn(batch.log_prob.shape, generator=g, dtype=torch.float64)
    advantage, target = (torch.randn(batch.reward.shape, generator=g).double() for _ in range(2))

    loss = ppo_loss(network, agent.space, batch, advantage, target, Coefficients.of(cfg, 0, torch.float64))
    expected = reference(network, batch, advantage, target, cfg)
    assert loss.clip_fraction > 0.2
    torch.testing.assert_close(loss.total, expected, rtol=1e-10, atol=1e-12)
    parameters = list(network.parameters())
    mine = torch.autograd.grad(loss.total, parameters)
    plain = torch.autograd.grad(expected, parameters, allow_unused=True)
    for gradient, known in zip(mine, plain, strict=True):
        torch.testing.assert_close(
            gradient, torch.zeros_like(gradient) if known is None else known, rtol=1e-8, atol=1e-12
        )


def test_before_the_first_step_all_ratios_are_one() -> None:
    agent, ppo, rollout = setup()
    flat = torch.zeros_like(rollout.reward)
    loss = ppo_loss(ppo.network, agent.space, rollout, flat, flat, Coefficients.of(ppo.cfg, 0))
    assert loss.approx_kl.abs() < 1e-6
    torch.testing.assert_close(loss.ratio_min, torch.ones(len(HEAD_NAMES)), rtol=0, atol=1e-5)
    torch.testing.assert_close(loss.ratio_max, torch.ones(len(HEAD_NAMES)), rtol=0, atol=1e-5)


def advantages(rollout: Rollout) -> tuple[Tensor, Tensor]:
    return gae(rollout.reward, rollout.value, gamma=0.99, lam=0.95)


def weights(ppo: PPO) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in ppo.network.named_parameters()}


def moments(ppo: PPO) -> list[Tensor]:
    return [tensor for part in ppo.state_dict()["moments"] for tensor in part]


def known_features(ppo: PPO, rollout: Rollout) -> np.ndarray[Any, Any]:
    """The measured features in float64, normalised and clipped; NaN where not measured."""
    parts = []
    for norm, seen, columns in (
        (ppo.network.base_norm, rollout.observation.base, BASE_COLUMNS),
        (ppo.network.slot_norm, rollout.observation.slot, SLOT_COLUMNS),
    ):
        x = seen[..., : len(columns.measured)].double().numpy()
        parts.append(np.clip((x - norm.mean.numpy()) / norm.std.numpy(), -8, 8).reshape(-1))
    return np.concatenate(parts)


def test_what_an_update_reports() -> None:
    agent, ppo, rollout = setup("ppo.target_kl=0")
    advantage, returns = advantages(rollout)
    before = weights(ppo)
    seen = known_features(ppo, rollout)
    event = update_event(ppo.update(rollout, advantage, returns))
    cfg = agent.cfg.ppo
    known = ~np.isnan(seen)
    assert event.observation_missing == pytest.approx(1 - known.mean())
    assert event.observation_rms == pytest.approx(np.sqrt((seen[known] ** 2).mean()), rel=1e-4)
    assert event.observation_clipped == pytest.approx((np.abs(seen[known]) >= 8).mean())
    assert list(event.observation_groups) == list(FEATURE_GROUPS)
    assert event.ratio_max == max(event.head_ratio_max.values())
    assert all(ratio >= 1.0 - 1e-4 for ratio in event.head_ratio_max.values())
    mattered = agent.space.relevant_OH[rollout.actions[..., 0]].sum((0, 1)).tolist()
    for count, (name, share) in zip(mattered, event.head_clip_fraction.items(), strict=True):
        assert (share is None) == (count == 0), name
    assert any(event.head_clip_fraction.values())
    assert event.entropy_coefficient == cfg.entropy_coefficient
    assert event.value_coefficient == cfg.value_coefficient
    assert (event.epochs, event.minibatches) == (cfg.epochs, cfg.epochs * cfg.minibatches)
    assert not event.early_stop
    assert event.skipped_nonfinite == 0
    residual = (returns - rollout.value).double()
    explained = 1 - residual.var() / returns.double().var()
    assert event.explained_variance == pytest.approx(explained.item(), abs=1e-4)
    following = rollout.reward.double().flip(0)
    for t in range(1, len(following)):
        following[t] += cfg.gamma * following[t - 1]
    error = following.flip(0) - rollout.value.double()
    within = 1 - error.var(1, correction=0).sum() / following.var(1, correction=0).sum()
    assert event.explained_variance_within == pytest.approx(within.item(), abs=1e-4)
    assert event.return_std == pytest.approx(returns.std().item(), rel=1e-5)
    assert event.advantage_mean == pytest.approx(advantage.mean().item(), abs=1e-6)
    for op in Op:
        share = (rollout.actions[..., 0] == op).double().mean().item()
        assert event.op_fraction[op.name] == pytest.approx(share)
    used = {"op"} | {h for op in Op if event.op_fraction[op.name] for h in HEADS_OF_OP[op]}
    assert {name for name, norm in event.head_grad_norm.items() if norm} == used
    assert {name for name, entropy in event.head_entropy.items() if entropy is not None} == used
    assert all(0 < e <= 1.0001 for e in event.head_entropy.values() if e is not None)
    assert 0 < event.entropy <= 1.0001
    assert event.grad_norm > 0
    assert event.critic_grad_norm is not None
    assert event.critic_grad_norm <= event.grad_norm
    assert event.lstm_h_rms is not None
    assert 0 < event.lstm_h_rms < 1
    assert any(not torch.equal(before[name], p) for name, p in ppo.network.named_parameters())
    again = msgspec.convert(msgspec.to_builtins(event), PPOUpdate)
    assert again == event


def test_a_critic_that_knows_the_time_explains_nothing_within() -> None:
    random = torch.Generator().manual_seed(3)
    reward = torch.rand(24, 8, generator=random)
    following = reward.flip(0).cumsum(0).flip(0)
    clock = following.mean(1, keepdim=True).expand_as(following)
    assert explained_within(reward, clock, 1.0).item() == pytest.approx(0.0, abs=1e-9)
    assert explained_within(reward, following, 1.0).item() == pytest.approx(1.0, abs=1e-9)
    twice = clock + 2 * (following - clock)
    assert explained_within(reward, twice, 1.0).item() == pytest.approx(0.0, abs=1e-6)
    assert explained_within(reward, reward, 0.0).item() == pytest.approx(1.0)
    assert explained_within(reward[:, :1].expand(24, 8), clock, 0.9).isnan()


def test_the_returns_of_a_constant_world_explain_nothing() -> None:
    _, ppo, rollout = setup()
    rollout.reward.fill_(1.0)
    event = update_event(
        ppo.update(rollout, torch.zeros_like(rollout.reward), torch.ones_like(rollout.reward))
    )
    assert event.explained_variance is None
    assert event.explained_variance_within is None


def test_a_step_whose_loss_is_not_finite_changes_nothing() -> None:
    _, ppo, rollout = setup("ppo.epochs=1", "ppo.minibatches=2")
    advantage, returns = advantages(rollout)
    ppo.update(rollout, advantage, returns)
    before, moments_before = weights(ppo), moments(ppo)
    rollout.log_prob[0, :] = -math.inf
    event = ppo.update(rollout, advantage, returns)
    assert event.skipped_nonfinite == 2
    assert (event.minibatches, event.epochs) == (0, 0)
    assert math.isnan(event.policy_loss)
    for name, p in ppo.network.named_parameters():
        if not name.startswith("critic"):  # the critic is rescaled to the new returns, its values stay
            assert torch.equal(before[name], p), name
    assert all(torch.equal(a, b) for a, b in zip(moments_before, moments(ppo), strict=True))


def test_one_bad_env_costs_only_its_own_minibatches() -> None:
    _, ppo, rollout = setup("ppo.epochs=2", "ppo.minibatches=3", "ppo.target_kl=0")
    rollout.log_prob[2, 1] = math.nan
    event = ppo.update(rollout, *advantages(rollout))
    assert event.skipped_nonfinite == 2
    assert event.minibatches == 4
    assert all(p.isfinite().all() for p in ppo.network.parameters())
    assert math.isfinite(event.policy_loss)


def test_three_in_a_row_end_the_training_with_the_reason() -> None:
    _, ppo, rollout = setup("ppo.epochs=1", "ppo.minibatches=2")
    advantage, returns = advantages(rollout)
    rollout.log_prob[:] = math.nan
    ppo.update(rollout, advantage, returns)
    with pytest.raises(PolicyDiverged) as caught:
        ppo.update(rollout, advantage, returns)
    assert "4 steps in a row" in str(caught.value)
    assert "ppo.learning_rate" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_update_stops_early_beyond_target_kl() -> None:
    _, ppo, rollout = setup("ppo.target_kl=1e-6", "ppo.minibatches=2", "ppo.epochs=5")
    event = ppo.update(rollout, *advantages(rollout))
    assert event.early_stop
    assert event.minibatches == 1
    assert event.approx_kl > 1e-6
    other_agent, other, other_rollout = setup("ppo.target_kl=0", "ppo.minibatches=2", "ppo.epochs=5")
    assert not other.update(other_rollout, *advantages(other_rollout)).early_stop
    assert other_agent.cfg.ppo.target_kl == 0


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often the network ran forwards, and a loss backwards."""
    counts = {"forward": 0, "backward": 0}
    forward, backward = ActorCritic.forward, torch.autograd.grad

    def counted_forward(self: ActorCritic, *args: Any) -> Any:
        counts["forward"] += 1
        return forward(self, *args)

    def counted_backward(*args: Any, **options: Any) -> Any:
        counts["backward"] += 1
        return backward(*args, **options)

    monkeypatch.setattr(ActorCritic, "forward", counted_forward)
    monkeypatch.setattr(torch.autograd, "grad", counted_backward)
    return counts


@pytest.mark.parametrize("target_kl", [1e-6, 1e-3, 0.02])
def test_nothing_is_computed_after_a_stop(passes: dict[str, int], target_kl: float) -> None:
    _, ppo, rollout = setup(f"ppo.target_kl={target_kl}", "ppo.minibatches=3", "ppo.learning_rate=0.01")
    passes["forward"] = 0
    event = ppo.update(rollout, *advantages(rollout))
    assert event.early_stop
    assert event.minibatches < 24
    assert passes == {"forward": event.minibatches + 1, "backward": event.minibatches}
    assert event.epochs == math.ceil(event.minibatches / 3)


def test_without_a_target_every_minibatch_is_computed(passes: dict[str, int]) -> None:
    _, ppo, rollout = setup("ppo.target_kl=0", "ppo.minibatches=3", "ppo.epochs=4")
    passes["forward"] = 0
    assert ppo.update(rollout, *advantages(rollout)).minibatches == 12
    assert passes == {"forward": 12, "backward": 12}


def test_stopped_update_has_the_weights_of_its_applied_steps() -> None:
    _, stopped, rollout = setup("ppo.target_kl=0.005", "ppo.minibatches=1")
    event = stopped.update(rollout, *advantages(rollout))
    assert event.early_stop
    _, whole, same_rollout = setup("ppo.target_kl=0", "ppo.minibatches=1", f"ppo.epochs={event.epochs}")
    whole.update(same_rollout, *advantages(same_rollout))
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(stopped)[name]), name


class ScalarReads(TorchDispatchMode):
    """Counts reads of a tensor's value by the host: item(), float(), bool() and their like."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    real = Tensor.cpu

    def counted(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(self.numel())
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "cpu", counted)
    return seen


@pytest.mark.parametrize("target_kl", [0.0, 1e-3])
def test_an_update_brings_everything_over_at_once(transfers: list[int], target_kl: float) -> None:
    """With a target, one bit of each minibatch says beside it whether to go on."""
    _, ppo, rollout = setup(f"ppo.target_kl={target_kl}", "ppo.learning_rate=0.01")
    with ScalarReads() as reads:
        event = ppo.update(rollout, *advantages(rollout))
    assert len(transfers) == 1
    assert reads.count == (event.minibatches + event.early_stop if target_kl else 0)


def test_deciding_reads_nothing_back(transfers: list[int]) -> None:
    agent, reward = make(load(sets=SETS))
    play(agent, reward, 1)
    with ScalarReads() as reads:
        play(agent, reward, 2)
    assert reads.count == 0
    assert transfers == []


def test_a_resumed_run_goes_on_bit_for_bit() -> None:
    cfg = load(sets=SETS)
    agent, reward = make(cfg)
    for round in (1, 2, 3):
        rollout, _ = play(agent, reward, round)
        learn(agent, rollout)
    buffer = io.BytesIO()
    torch.save(agent.state_dict(), buffer)
    buffer.seek(0)
    resumed, other_reward = make(cfg)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    for round in (4, 5):
        events = []
        for one, pay in ((agent, reward), (resumed, other_reward)):
            rollout, _ = play(one, pay, round)
            event = update_event(dataclasses.replace(learn(one, rollout), seconds=0.0))
            events.append((event, rollout.state_dict()))
        assert events[0][0] == events[1][0]
        for name, value in events[0][1].items():
            assert torch.equal(value.nan_to_num(-9), events[1][1][name].nan_to_num(-9)), name
    mine, theirs = agent.state_dict()["network"], resumed.state_dict()["network"]
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)

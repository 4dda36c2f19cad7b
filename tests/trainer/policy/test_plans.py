"""Decisions about all slots at once: their probabilities, their draws, and what is learned of them."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op
from esper_overwatch.trainer.config.load import ConfigError, load
from esper_overwatch.trainer.config.policy_options import PPOConfig
from esper_overwatch.trainer.policy.actions import ActionSpace
from esper_overwatch.trainer.policy.baselines import NO_SEED
from esper_overwatch.trainer.policy.coefficients import Coefficients
from esper_overwatch.trainer.policy.loss import ppo_loss
from esper_overwatch.trainer.policy.network import ActorCritic
from esper_overwatch.trainer.policy.observation import BASE_COLUMNS, SLOT_COLUMNS, Observation
from esper_overwatch.trainer.policy.plans import PlanSpace, decide_plan
from esper_overwatch.trainer.policy.rollout import Rollout

from . import garden

SLOTS, KINDS = 3, 2
EPOCHS = (0, 2)
SETS = ["device=cpu", "envs.count=8", "envs.copies=4", "policy.decision_epochs=0,2", "episode_epochs=9"]


def network_of(seed: int) -> ActorCritic:
    """A network whose choices depend on one another."""
    network = ActorCritic(ActionSpace(SLOTS, KINDS), 16, seed, plans=True)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=g)
    return network


def seen(n: int, seed: int = 0) -> Observation:
    g = torch.Generator().manual_seed(seed)
    return Observation(
        torch.randn(n, len(BASE_COLUMNS.names), generator=g),
        torch.randn(n, SLOTS, len(SLOT_COLUMNS.names), generator=g),
        torch.full((n, SLOTS), -1),
    )


def joint(network: ActorCritic, space: PlanSpace, plan: Tensor, free: Tensor) -> Tensor:
    """Log-probabilities [n] of plans [n, S] of one env."""
    n, one = len(plan), seen(1)
    step = Observation(*(part.expand(1, n, *part.shape[1:]) for part in vars(one).values()))
    out = network(step, network.initial(n), torch.ones(1, n, dtype=torch.bool), plan.unsqueeze(0))
    return space.evaluate(tuple(head[0] for head in out.logits), plan, free).log_prob.sum(-1)


@pytest.mark.parametrize("free", [(True, True, True), (True, False, True), (False, False, False)])
def test_probabilities_of_all_plans_sum_to_one(free: tuple[bool, ...]) -> None:
    network, space = network_of(1), PlanSpace(EPOCHS, SLOTS)
    kinds = [range(NO_SEED, KINDS) if is_free else (NO_SEED,) for is_free in free]
    plans = torch.tensor(list(product(*kinds)))
    log_prob = joint(network, space, plans, torch.tensor(free).expand(len(plans), -1))
    assert log_prob.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_draws_have_the_probabilities_they_tell() -> None:
    network, space, n = network_of(2), PlanSpace(EPOCHS, SLOTS), 4000
    one = seen(1)
    many = Observation(*(part.expand(n, *part.shape[1:]) for part in vars(one).values()))
    free, reset = torch.ones(n, SLOTS, dtype=torch.bool), torch.ones(n, dtype=torch.bool)
    uniform = torch.rand(n, 2 * SLOTS, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found = decide_plan(
            network, space, many, network.initial(n), reset, free, uniform, torch.ones(n, SLOTS)
        )
    plan, log_prob, likelihood = found[0], found[1], found[6]
    told = joint(network, space, plan, free)
    torch.testing.assert_close(log_prob.sum(-1), told, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(likelihood[:, 0], told.exp(), atol=1e-6, rtol=1e-5)
    nothing = (plan == NO_SEED).all(1)
    assert float(nothing.double().mean()) == pytest.approx(float(likelihood[0, 1 + Op.WAIT]), abs=0.03)
    for row in plan.unique(dim=0):
        share = float((plan == row).all(1).double().mean())
        expected = joint(network, space, row.unsqueeze(0), free[:1]).exp().item()
        assert share == pytest.approx(expected, abs=4 * math.sqrt(expected / n) + 1e-3)


def test_only_free_slots_are_planted_greedily_or_drawn() -> None:
    network, space, n = network_of(4), PlanSpace(EPOCHS, SLOTS), 64
    free = torch.rand(n, SLOTS, generator=torch.Generator().manual_seed(1)) < 0.5
    for uniform in (None, torch.rand(n, 2 * SLOTS, generator=torch.Generator().manual_seed(2))):
        with torch.no_grad():
            plan, *_ = decide_plan(
                network,
                space,
                seen(n),
                network.initial(n),
                torch.ones(n, dtype=torch.bool),
                free,
                uniform,
                torch.ones(n, SLOTS),
            )
        assert bool((plan[~free] == NO_SEED).all())
        assert bool((plan < KINDS).all())


def test_slot_waits_until_planting_is_more_probable_than_not() -> None:
    network, space = network_of(5), PlanSpace(EPOCHS, SLOTS)
    with torch.no_grad():
        for name in ("op", "slot"):
            for parameter in network.heads[name].parameters():
                parameter.zero_()
        network.heads["op"].bias[Op.WAIT], network.heads["op"].bias[Op.GERMINATE] = (
            math.log(0.6),
            math.log(0.4),
        )
        hidden, waited = network.initial(1), torch.ones(1, SLOTS)
        for planted in (False, True):
            plan, _, _, waited, *_ = decide_plan(
                network,
                space,
                seen(1),
                hidden,
                torch.zeros(1, dtype=torch.bool),
                torch.ones(1, SLOTS, dtype=torch.bool),
                None,
                waited,
            )
            assert bool((plan != NO_SEED).all()) is planted  # .6, then .36


def reference(
    network: ActorCritic, batch: Rollout, advantage: Tensor, target: Tensor, cfg: PPOConfig
) -> Tensor:
    """The loss by its definition: loops over decisions, envs and slots, in float64."""
    n = advantage.shape[1]
    out = network(batch.observation, network.initial(n), batch.reset, batch.plan)
    total = torch.zeros((), dtype=torch.float64)
    for row, epoch in enumerate(EPOCHS):
        for env in range(n):
            log_p, entropy, most = ({"op": 0.0, "blueprint": 0.0} for _ in range(3))
            for slot in range(SLOTS):
                if not batch.free[epoch, env, slot]:
                    continue
                scores = out.logits[0][epoch, env] + out.logits[1][epoch, env, :, slot]
                either = torch.stack([scores[Op.WAIT], scores[Op.GERMINATE]]).softmax(0)
                kinds = out.logits[2][epoch, env, slot].softmax(0)
                kind = int(batch.plan[epoch, env, slot])
                for name, p, choice in (("op", either, int(kind >= 0)), ("blueprint", kinds, kind)):
                    if choice >= 0:
                        log_p[name] = log_p[name] + p[choice].log()
                        entropy[name] = entropy[name] - (p * p.log()).sum()
                        most[name] += math.log(len(p))
            for name in log_p:
                if not most[name]:
                    continue
                ratio = (log_p[name] - batch.log_prob[epoch, env, HEAD_NAMES.index(name)]).exp()
                a = advantage[row, env]
                total = total - torch.minimum(ratio * a, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * a)
                total = total - cfg.entropy_coefficient * entropy[name] / most[name]
            total = total + cfg.value_coefficient * (out.value[epoch, env] - target[row, env]) ** 2 / 2
    return total / (len(EPOCHS) * n)


def test_loss_and_gradients_are_those_of_the_definition() -> None:
    cfg = load(sets=[*SETS, "ppo.entropy_coefficient=0.1"])
    agent, reward = garden.make(cfg)
    rollout, _ = garden.play(agent, reward, 1)
    assert agent.ppo is not None
    assert agent.plans is not None
    network, batch = agent.ppo.network.double(), rollout.epochs(agent.plans.horizon)
    for part, names in ((batch, ("log_prob", "value")), (batch.observation, ("base", "slot"))):
        for name in names:
            setattr(part, name, getattr(part, name).double())
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():  # choices that depend on one another, ratios far from 1
            parameter += 0.1 * torch.randn(parameter.shape, generator=g, dtype=torch.float64)
    advantage, target = (torch.randn(len(EPOCHS), 8, generator=g, dtype=torch.float64) for _ in range(2))
    coefficients = Coefficients.of(cfg.ppo, 0, torch.float64)
    loss = ppo_loss(network, agent.plans, batch, advantage, target, coefficients)
    expected = reference(network, batch, advantage, target, cfg.ppo)
    assert loss.clip_fraction > 0.2
    torch.testing.assert_close(loss.total, expected, rtol=1e-10, atol=1e-12)
    parameters = list(network.parameters())
    mine, plain = (
        torch.autograd.grad(total, parameters, materialize_grads=True) for total in (loss.total, expected)
    )
    for gradient, known in zip(mine, plain, strict=True):
        torch.testing.assert_close(gradient, known, rtol=1e-8, atol=1e-12)


def test_first_ratios_are_one_and_the_update_learns_to_plant() -> None:
    cfg = load(sets=[*SETS, "envs.count=32", "ppo.minibatches=2", "ppo.learning_rate=0.01", "rounds=30"])
    torch.manual_seed(0)
    agent, reward = garden.make(cfg)
    paid = []
    for round_ in range(1, 31):
        rollout, _ = garden.play(agent, reward, round_)
        paid.append(float(rollout.reward.sum(0).mean()))
        statistics = garden.learn(agent, rollout)
        assert statistics.ratio_min <= 1.0 <= statistics.ratio_max
    assert sum(paid[-5:]) / 5 > sum(paid[:5]) / 5 + 0.1
    matters = [not math.isnan(share) for share in statistics.head_clip_fraction]
    assert matters == [name in ("op", "blueprint") for name in HEAD_NAMES]


def test_between_decisions_the_policy_only_follows_its_plan() -> None:
    agent, reward = garden.make(load(sets=SETS))
    rollout, _ = garden.play(agent, reward, 1)
    decided = rollout.free.any(-1).any(-1)
    assert decided.tolist() == [epoch in EPOCHS for epoch in range(9)]
    planned = torch.where(rollout.plan[0] != NO_SEED, rollout.plan[0], rollout.plan[2])
    germinated = rollout.actions[..., 0] == Op.GERMINATE
    slot = rollout.actions[..., HEAD_NAMES.index("slot")]
    kind = rollout.actions[..., HEAD_NAMES.index("blueprint")]
    for epoch, env in germinated.nonzero().tolist():
        assert int(planned[env, slot[epoch, env]]) == int(kind[epoch, env])
    assert bool((rollout.actions[..., 0] != Op.PRUNE).all())


@pytest.mark.parametrize("epochs", ["3,3", "5,2", "9", "0,12"])
def test_epochs_that_do_not_ascend_or_fit_are_refused(epochs: str) -> None:
    with pytest.raises(ConfigError, match=r"policy.decision_epochs = .*must ascend, and stay below"):
        load(sets=["episode_epochs=9", f"policy.decision_epochs={epochs}"])


def test_copies_that_do_not_divide_the_envs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"envs.copies = 3: must divide envs.count = 8"):
        load(sets=["envs.count=8", "envs.copies=3"])

"""The reward kernel against a scalar reference, and what its sums promise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from protocol.messages.vocabulary import Stage
from trainer.config.policy_options import RewardConfig
from trainer.measurements import Measurements
from trainer.policy.gae import gae
from trainer.reward.compute import STAGE_PROGRESS, Reward, total
from trainer.reward.modes import MODES, RunContext
from trainer.seeds.table import SlotTable

S, T, HOST, YOUNG = 3, 24, 274, 2


def terms(gamma: float = 0.99, **cfg: Any) -> RunContext:
    return RunContext(RewardConfig(**cfg), gamma, T, 0.1, HOST, YOUNG)


def world(n: int, seed: int) -> tuple[SlotTable, Measurements]:
    g = torch.Generator().manual_seed(seed)
    table, measurements = SlotTable.empty(n, S), Measurements.unmeasured(n, S)
    table.stage = torch.randint(0, len(Stage), (n, S), generator=g)
    table.contribution = torch.rand(n, S, generator=g) - 0.3
    table.contribution[torch.rand(n, S, generator=g) < 0.3] = torch.nan
    table.alpha = torch.rand(n, S, generator=g)
    table.age = torch.randint(0, 6, (n, S), generator=g)
    measurements.val_accuracy = torch.rand(n, generator=g)
    measurements.val_accuracy[torch.rand(n, generator=g) < 0.1] = torch.nan
    measurements.parameters = (HOST + torch.randint(0, 3000, (n,), generator=g)).float()
    return table, measurements


@dataclass(frozen=True)
class Env:
    """One env of a `world`, in Python floats."""

    stage: list[int]
    contribution: list[float]
    alpha: list[float]
    age: list[int]
    accuracy: float
    parameters: float


def envs(table: SlotTable, measurements: Measurements) -> list[Env]:
    columns = (
        table.stage,
        table.contribution,
        table.alpha,
        table.age,
        measurements.val_accuracy,
        measurements.parameters,
    )
    return [Env(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def given(env: Env) -> list[float]:
    blended = {Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED}
    pairs = zip(env.stage, env.contribution, strict=True)
    return [c if s in blended and not math.isnan(c) else 0.0 for s, c in pairs]


def potentials(t: RunContext, env: Env, epoch: int, gain: float) -> dict[str, float]:
    left = 1 - (epoch + 1) / t.epochs
    return {
        "gain": gain if math.isnan(env.accuracy) else env.accuracy - t.chance,
        "contribution": t.cfg.contribution * left * sum(given(env)),
        "stage": t.cfg.stage * left * sum(STAGE_PROGRESS.get(Stage(s), 0.0) for s in env.stage),
    }


def scalar(t: RunContext, earlier: Env, env: Env, epoch: int, rolled_back: bool) -> dict[str, float]:
    """One env's components by their definition, in Python floats."""
    cfg, last = t.cfg, epoch == t.epochs - 1
    before = potentials(t, earlier, epoch - 1, 0.0)
    phi = potentials(t, env, epoch, before["gain"])
    change = {name: (1.0 if last else t.gamma) * phi[name] - before[name] for name in phi}
    rent = -cfg.rent * (env.parameters - t.host_parameters) / t.host_parameters
    rollback = {"rollback": -cfg.rollback_penalty if rolled_back else 0.0}
    if cfg.mode == "shaped":
        return change | {"rent": rent / t.epochs} | rollback
    if cfg.mode == "contribution":
        positive = sum(c for c in given(env) if c > 0)
        negative = sum(c for c in given(env) if c < 0)
        bounded = min(positive, max(phi["gain"], 0.0)) + negative
        steps = zip(env.alpha, earlier.alpha, strict=True)
        moves = [] if rolled_back else [(now - then) ** 2 for now, then in steps]
        return rollback | {
            "contribution": cfg.contribution * bounded / t.epochs,
            "stage": change["stage"],
            "rent": rent / t.epochs,
            "shock": -cfg.shock * sum(moves),
            "terminal": phi["gain"] if last else 0.0,
        }
    paid = {"gain": phi["gain"] if last else 0.0, "rent": rent if last else 0.0} | rollback
    if cfg.mode == "sparse":
        return paid
    pairs = zip(env.stage, env.age, strict=True)
    thrown = sum(s == Stage.PRUNED and age <= t.min_training_epochs for s, age in pairs)
    return paid | {"early_prune": 0.0 if rolled_back else -cfg.early_prune * thrown}


@pytest.mark.finding("AR-1")
@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("epoch", [1, 11, T - 1])
def test_equals_the_scalar_reference(mode: str, epoch: int) -> None:
    n = 10_000 if epoch == 11 else 500
    t = terms(
        mode=mode, rent=0.02, contribution=0.3, stage=0.07, rollback_penalty=0.5, shock=0.3, early_prune=0.2
    )
    reward = Reward(t, n, S)
    reward.begin_episode()
    earlier, now = world(n, 1), world(n, 2)
    rolled_back = torch.arange(n) % 7 == 0
    reward(*earlier, epoch - 1, torch.zeros(n, dtype=torch.bool))
    components = reward(*now, epoch, rolled_back)
    mine = {name: values.tolist() for name, values in components.items()}
    summed = total(components).tolist()
    for index, (before, env) in enumerate(zip(envs(*earlier), envs(*now), strict=True)):
        expected = scalar(t, before, env, epoch, index % 7 == 0)
        assert mine.keys() == expected.keys()
        for name, value in expected.items():
            assert abs(mine[name][index] - value) < 2e-6, (index, name)
        assert abs(summed[index] - sum(expected.values())) < 2e-6
        assert abs(summed[index] - sum(values[index] for values in mine.values())) < 1e-6
    assert all(column.count_nonzero() for name, column in components.items() if name_is_due(name, epoch))


def name_is_due(name: str, epoch: int) -> bool:
    """Whether some of many random envs must be paid this; what is told at the end is 0 before."""
    return epoch == T - 1 or name in ("shock", "early_prune", "stage", "rollback")


def episode(
    reward: Reward, n: int, seed: int, hit: int | None = None
) -> tuple[torch.Tensor, list[Measurements]]:
    """Rewards [T, N] of an episode of random states; env 0 is rolled back in epoch `hit`."""
    reward.begin_episode()
    rows, seen = [], []
    for epoch in range(T):
        table, measurements = world(n, seed * 1000 + epoch)
        rolled_back = torch.zeros(n, dtype=torch.bool)
        rolled_back[0] = epoch == hit
        rows.append(total(reward(table, measurements, epoch, rolled_back)))
        seen.append(measurements)
    return torch.stack(rows), seen


def test_undiscounted_episode_earns_final_accuracy_less_rent() -> None:
    n = 50
    for mode in ("shaped", "sparse"):
        rewards, seen = episode(Reward(terms(gamma=1.0, mode=mode), n, S), n, seed=3)
        final = torch.zeros(n)
        for measurements in seen:
            final = measurements.val_accuracy.where(~measurements.val_accuracy.isnan(), final)
        growth = torch.stack([(s.parameters - HOST) / HOST for s in seen])
        paid = growth[-1] if mode == "sparse" else growth.mean(0)
        torch.testing.assert_close(rewards.sum(0), final - 0.1 - 0.01 * paid, atol=1e-5, rtol=0)


def test_shaping_does_not_change_what_an_episode_is_worth() -> None:
    """For any discount the discounted return does not depend on the shaping weights (Ng et al., 1999)."""
    n, gamma = 20, 0.9
    discount = gamma ** torch.arange(T, dtype=torch.float32)[:, None]
    worth = [
        (discount * episode(Reward(terms(gamma, contribution=c, stage=s), n, S), n, seed=4)[0]).sum(0)
        for c, s in ((0.0, 0.0), (0.5, 0.0), (0.0, 1.0), (2.0, 3.0))
    ]
    for other in worth[1:]:
        torch.testing.assert_close(other, worth[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("hit", [0, 7, T - 1])
@pytest.mark.parametrize("mode", ["shaped", "sparse", "minimal"])
def test_a_rollback_reaches_ppo_whichever_epoch_it_happens_in(hit: int, mode: str) -> None:
    n = 3
    reward = Reward(terms(rollback_penalty=0.75, mode=mode, early_prune=0.0), n, S)
    calm, struck = (episode(reward, n, seed=5, hit=h)[0] for h in (None, hit))
    difference = struck - calm
    assert difference[hit, 0].item() == pytest.approx(-0.75, abs=1e-6)
    assert difference.count_nonzero() == 1
    values = torch.zeros_like(calm)
    advantage = [gae(r, values, gamma=0.99, lam=0.95)[0] for r in (calm, struck)]
    lower = advantage[1] < advantage[0] - 1e-3
    assert lower[: hit + 1, 0].all()
    assert not lower[hit + 1 :, 0].any()
    assert not lower[:, 1:].any()


@pytest.mark.parametrize("mode", sorted(MODES))
def test_rewards_are_finite_whatever_was_measured(mode: str) -> None:
    n = 4
    reward = Reward(terms(mode=mode), n, S)
    table, measurements = world(n, 6)
    measurements.val_loss.fill_(math.inf)
    measurements.val_accuracy.fill_(math.nan)
    table.contribution.fill_(math.nan)
    for epoch in range(T):
        assert total(reward(table, measurements, epoch, torch.ones(n, dtype=torch.bool))).isfinite().all()


def test_seeds_share_no_more_than_their_host_has_gained() -> None:
    """Two seeds that each claim the whole gain are paid it once; what a third takes away counts in full."""
    reward = Reward(terms(gamma=1.0, mode="contribution", contribution=0.6, stage=0.0, rent=0.0), 3, S)
    table, measurements = SlotTable.empty(3, S), Measurements.unmeasured(3, S)
    table.stage.fill_(Stage.HOLDING)
    table.contribution = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.0], [0.5, 0.5, -0.3]])
    measurements.val_accuracy, measurements.parameters = torch.full((3,), 0.6), torch.full((3,), float(HOST))
    paid = reward(table, measurements, 3, torch.zeros(3, dtype=torch.bool))["contribution"]
    torch.testing.assert_close(paid, 0.6 * torch.tensor([0.5, 0.3, 0.2]) / T)


def test_alpha_in_small_steps_costs_less_than_at_once() -> None:
    def cost(path: list[float]) -> float:
        reward, paid = Reward(terms(mode="contribution", shock=0.5), 1, S), 0.0
        for epoch, alpha in enumerate(path):
            table, measurements = SlotTable.empty(1, S), Measurements.unmeasured(1, S)
            table.alpha[0, 0] = alpha
            paid += float(reward(table, measurements, epoch, torch.tensor([False]))["shock"])
        return paid

    assert cost([0.0, 1.0, 1.0]) == pytest.approx(-0.5)
    assert cost([0.25, 0.5, 0.75, 1.0]) == pytest.approx(-0.125)
    assert cost([1.0, 1.0, 0.0]) == pytest.approx(-1.0)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_memory_travels_in_the_state(mode: str) -> None:
    n = 8
    first, second = Reward(terms(mode=mode), n, S), Reward(terms(mode=mode), n, S)
    calm = torch.zeros(n, dtype=torch.bool)
    first(*world(n, 7), 0, calm)
    second.load_state_dict(first.state_dict())
    for a, b in zip(
        first(*world(n, 8), 1, calm).values(), second(*world(n, 8), 1, calm).values(), strict=True
    ):
        assert torch.equal(a, b)


def test_first_two_slots_of_the_default_task_pay() -> None:
    """Accuracies and sizes measured for the pointwise host: .31 (274), .94 (1,460), .95 (2,053)."""
    reward = Reward(terms(gamma=1.0, mode="sparse"), 3, S)
    measurements = Measurements.unmeasured(3, S)
    measurements.val_accuracy = torch.tensor([0.31, 0.94, 0.95])
    measurements.parameters = torch.tensor([274.0, 1460.0, 2053.0])
    worth = total(reward(SlotTable.empty(3, S), measurements, T - 1, torch.zeros(3, dtype=torch.bool)))
    assert worth.argmax() == 1
    assert worth[2] > worth[0]

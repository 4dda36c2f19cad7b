"""The reward kernel against a scalar reference, and what its sums promise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainer.config import RewardConfig
from trainer.policy.gae import gae
from trainer.reward.shaped import PROGRESS, Reward, Terms, total
from trainer.seeds.stages import Stage
from trainer.seeds.table import SlotTable
from trainer.signals import Signals

S, T, HOST = 3, 24, 274


def terms(gamma: float = 0.99, **cfg: Any) -> Terms:
    return Terms(RewardConfig(**cfg), gamma, T, 0.1, HOST)


def world(n: int, seed: int) -> tuple[SlotTable, Signals]:
    g = torch.Generator().manual_seed(seed)
    table, signals = SlotTable.empty(n, S), Signals.unmeasured(n, S)
    table.stage = torch.randint(0, len(Stage), (n, S), generator=g)
    table.contribution = torch.rand(n, S, generator=g) - 0.3
    table.contribution[torch.rand(n, S, generator=g) < 0.3] = torch.nan
    signals.val_accuracy = torch.rand(n, generator=g)
    signals.val_accuracy[torch.rand(n, generator=g) < 0.1] = torch.nan
    signals.parameters = (HOST + torch.randint(0, 3000, (n,), generator=g)).float()
    return table, signals


def scalar(
    t: Terms, before: tuple[float, float, float], stage: list[int], contribution: list[float],
    accuracy: float, parameters: float, epoch: int, rolled_back: bool,
) -> tuple[dict[str, float], tuple[float, float, float]]:  # fmt: skip
    """One env's components and potentials by their definition, in Python floats."""
    last = epoch == t.epochs - 1
    left = 1 - (epoch + 1) / t.epochs
    blended = {Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED}
    gain = before[0] if math.isnan(accuracy) else accuracy - t.chance
    given = sum(c for s, c in zip(stage, contribution, strict=True) if s in blended and not math.isnan(c))
    phi = (
        gain,
        t.cfg.contribution * left * given,
        t.cfg.stage * left * sum(PROGRESS.get(Stage(s), 0.0) for s in stage),
    )
    rent = -t.cfg.rent * (parameters - t.host_parameters) / t.host_parameters
    rollback = -t.cfg.rollback_penalty if rolled_back else 0.0
    if t.cfg.mode == "sparse":
        return {"gain": gain if last else 0.0, "rent": rent if last else 0.0, "rollback": rollback}, phi
    gamma = 1.0 if last else t.gamma
    change = [gamma * now - then for now, then in zip(phi, before, strict=True)]
    names = dict(zip(("gain", "contribution", "stage"), change, strict=True))
    return names | {"rent": rent / t.epochs, "rollback": rollback}, phi


@pytest.mark.finding("AR-1")
@pytest.mark.parametrize("mode", ["shaped", "sparse"])
@pytest.mark.parametrize("epoch", [1, 11, T - 1])
def test_equals_the_scalar_reference(mode: str, epoch: int) -> None:
    n = 10_000 if epoch == 11 else 500
    t = terms(mode=mode, rent=0.02, contribution=0.3, stage=0.07, rollback_penalty=0.5)
    reward = Reward(t, n)
    reward.begin_episode()
    earlier, now = world(n, 1), world(n, 2)
    rolled_back = torch.arange(n) % 7 == 0
    reward(*earlier, epoch - 1, torch.zeros(n, dtype=torch.bool))
    components = reward(*now, epoch, rolled_back)
    summed = total(components)
    rows: list[Any] = [x.tolist() for x in (earlier[0].stage, earlier[0].contribution)]
    rows += [x.tolist() for x in (earlier[1].val_accuracy, earlier[1].parameters)]
    rows += [x.tolist() for x in (now[0].stage, now[0].contribution, now[1].val_accuracy, now[1].parameters)]
    mine = {name: values.tolist() for name, values in components.items()}
    for env in range(n):
        a = [row[env] for row in rows]
        _, before = scalar(t, (0.0, 0.0, 0.0), a[0], a[1], a[2], a[3], epoch - 1, False)
        expected, _ = scalar(t, before, a[4], a[5], a[6], a[7], epoch, env % 7 == 0)
        for name, value in expected.items():
            assert mine[name][env] == pytest.approx(value, abs=2e-6), name
        assert summed[env].item() == pytest.approx(sum(expected.values()), abs=2e-6)


def episode(reward: Reward, n: int, seed: int, hit: int | None = None) -> tuple[torch.Tensor, list[Signals]]:
    """Rewards [T, N] of an episode of random states; env 0 is rolled back in epoch `hit`."""
    reward.begin_episode()
    rows, seen = [], []
    for epoch in range(T):
        table, signals = world(n, seed * 1000 + epoch)
        rolled_back = torch.zeros(n, dtype=torch.bool)
        rolled_back[0] = epoch == hit
        rows.append(total(reward(table, signals, epoch, rolled_back)))
        seen.append(signals)
    return torch.stack(rows), seen


def test_without_discount_an_episode_earns_its_final_accuracy_less_the_rent() -> None:
    n = 50
    for mode in ("shaped", "sparse"):
        rewards, seen = episode(Reward(terms(gamma=1.0, mode=mode), n), n, seed=3)
        final = torch.zeros(n)
        for signals in seen:
            final = signals.val_accuracy.where(~signals.val_accuracy.isnan(), final)
        growth = torch.stack([(s.parameters - HOST) / HOST for s in seen])
        paid = growth[-1] if mode == "sparse" else growth.mean(0)
        torch.testing.assert_close(rewards.sum(0), final - 0.1 - 0.01 * paid, atol=1e-5, rtol=0)


def test_shaping_does_not_change_what_an_episode_is_worth() -> None:
    """For any discount the discounted return does not depend on the shaping weights (Ng et al., 1999)."""
    n, gamma = 20, 0.9
    discount = gamma ** torch.arange(T, dtype=torch.float32)[:, None]
    worth = [
        (discount * episode(Reward(terms(gamma, contribution=c, stage=s), n), n, seed=4)[0]).sum(0)
        for c, s in ((0.0, 0.0), (0.5, 0.0), (0.0, 1.0), (2.0, 3.0))
    ]
    for other in worth[1:]:
        torch.testing.assert_close(other, worth[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("hit", [0, 7, T - 1])
def test_a_rollback_reaches_ppo_whichever_epoch_it_happens_in(hit: int) -> None:
    n = 3
    reward = Reward(terms(rollback_penalty=0.75), n)
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


def test_rewards_are_finite_whatever_was_measured() -> None:
    n = 4
    reward = Reward(terms(), n)
    table, signals = world(n, 6)
    signals.val_loss.fill_(math.inf)
    signals.val_accuracy.fill_(math.nan)
    table.contribution.fill_(math.nan)
    for epoch in range(T):
        assert total(reward(table, signals, epoch, torch.ones(n, dtype=torch.bool))).isfinite().all()


def test_memory_travels_in_the_state() -> None:
    n = 8
    first, second = Reward(terms(), n), Reward(terms(), n)
    calm = torch.zeros(n, dtype=torch.bool)
    first(*world(n, 7), 0, calm)
    second.load_state_dict(first.state_dict())
    for a, b in zip(
        first(*world(n, 8), 1, calm).values(), second(*world(n, 8), 1, calm).values(), strict=True
    ):
        assert torch.equal(a, b)


def test_the_third_slot_of_the_default_task_does_not_pay_and_the_first_two_do() -> None:
    """Accuracies and sizes measured for the pointwise host: .31 (274), .94 (1,460), .95 (2,053)."""
    reward = Reward(terms(gamma=1.0, mode="sparse"), 3)
    signals = Signals.unmeasured(3, S)
    signals.val_accuracy = torch.tensor([0.31, 0.94, 0.95])
    signals.parameters = torch.tensor([274.0, 1460.0, 2053.0])
    worth = total(reward(SlotTable.empty(3, S), signals, T - 1, torch.zeros(3, dtype=torch.bool)))
    assert worth.argmax() == 1
    assert worth[2] > worth[0]

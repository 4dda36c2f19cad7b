"""The reward kernel against a scalar reference, and what its sums promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from numpy.testing import assert_allclose

from esper_overwatch.protocol.messages.vocabulary import BLENDED, Op, Stage
from esper_overwatch.trainer.config.policy_options import PAYING_MODES, RewardConfig
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.gae import gae
from esper_overwatch.trainer.reward.compute import STAGE_PROGRESS, Reward, total
from esper_overwatch.trainer.reward.modes import MODES, RunContext
from esper_overwatch.trainer.seeds.table import SlotTable

S, T, HOST, YOUNG, GUESS = 3, 24, 274, 2, 2.5


def terms(gamma: float = 0.99, **cfg: Any) -> RunContext:
    return RunContext(RewardConfig(**cfg), gamma, T, 0.1, HOST, YOUNG, GUESS)


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
    measurements.parameters = HOST + torch.randint(0, 3000, (n,), generator=g)
    measurements.val_loss = 4 * torch.rand(n, generator=g)
    measurements.val_loss[torch.rand(n, generator=g) < 0.1] = torch.inf
    measurements.seed_parameters = torch.randint(0, 900, (n, S), generator=g)
    pairs = torch.rand(n, S, S, generator=g) - 0.5
    table.interaction = pairs + pairs.transpose(1, 2)
    table.interaction[torch.rand(n, S, S, generator=g) < 0.2] = torch.nan
    return table, measurements


@dataclass(frozen=True)
class Env:
    """One env of a `world`, in Python floats."""

    stage: list[int]
    contribution: list[float]
    alpha: list[float]
    age: list[int]
    interaction: list[list[float]]
    accuracy: float
    loss: float
    parameters: float
    seed_parameters: list[float]


def envs(table: SlotTable, measurements: Measurements) -> list[Env]:
    columns = (
        table.stage,
        table.contribution,
        table.alpha,
        table.age,
        table.interaction,
        measurements.val_accuracy,
        measurements.val_loss,
        measurements.parameters,
        measurements.seed_parameters,
    )
    return [Env(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


class Reference:
    """One env's components by their definition, epoch by epoch, in Python floats."""

    def __init__(self, t: RunContext) -> None:
        self.t = t
        self.gains = [0.0, 0.0, 0.0]
        self.escrow = self.loss_paid = self.credited = 0.0
        self.loss = self.lowest = t.guess_loss
        self.phi = {"gain": 0.0, "contribution": 0.0, "stage": 0.0}
        self.alpha, self.owed = [0.0] * S, [0.0] * S
        self.pruned: set[int] = set()
        self.fossils: set[int] = set()

    def step(self, env: Env, epoch: int, rolled_back: bool, op: int) -> dict[str, float]:
        t, cfg = self.t, self.t.cfg
        self.last = epoch == t.epochs - 1
        self.discount, left = 1.0 if self.last else t.gamma, 1 - (epoch + 1) / t.epochs
        self.given = [
            c if s in BLENDED and not math.isnan(c) else 0.0
            for s, c in zip(env.stage, env.contribution, strict=True)
        ]
        self.gain = self.gains[-1] if math.isnan(env.accuracy) else env.accuracy - t.chance
        self.gains = [*self.gains[-2:], self.gain]
        if self.last:
            counted = self.gains[-cfg.final_epochs :]
            self.gain = sum(counted) / len(counted)
        phi = {
            "gain": self.gain,
            "contribution": cfg.contribution * left * sum(self.given),
            "stage": cfg.stage * left * sum(STAGE_PROGRESS.get(Stage(s), 0.0) for s in env.stage),
        }
        self.change = {name: self.discount * phi[name] - self.phi[name] for name in phi}
        self.phi = phi
        fossils = {k for k in range(S) if env.stage[k] == Stage.FOSSILIZED}
        pruned = {k for k in range(S) if env.stage[k] == Stage.PRUNED}
        parts = {"rollback": -cfg.rollback_penalty if rolled_back else 0.0}
        if cfg.op_fee:
            parts["op_fee"] = 0.0 if op == Op.WAIT else -cfg.op_fee
        if cfg.hindsight:
            parts["hindsight"] = self.hindsight(env, pruned, fossils, rolled_back)
        if cfg.mode in ("shaped", "sparse", "minimal", "contribution"):
            parts |= self.of_potentials(env, pruned, rolled_back)
        else:
            parts |= self.of_earlier_work(env, fossils)
        self.alpha, self.pruned, self.fossils = env.alpha, pruned, self.fossils | fossils
        return parts

    def rent(self, env: Env) -> float:
        """Of a complete episode."""
        return -self.t.cfg.rent * (env.parameters - self.t.host_parameters) / self.t.host_parameters

    def of_potentials(self, env: Env, pruned: set[int], rolled_back: bool) -> dict[str, float]:
        t, cfg, change, last = self.t, self.t.cfg, self.change, self.last
        rent = {"rent": self.rent(env) / t.epochs}
        if cfg.mode == "shaped":
            return change | rent | {"gain": cfg.gain * change["gain"]}
        if cfg.mode == "contribution":
            positive, negative = (sum(c for c in self.given if c * sign > 0) for sign in (1, -1))
            bounded = min(positive, max(self.gain, 0.0)) + negative
            moves = [(now - then) ** 2 for now, then in zip(env.alpha, self.alpha, strict=True)]
            return rent | {
                "contribution": cfg.contribution * bounded / t.epochs,
                "stage": change["stage"],
                "shock": 0.0 if rolled_back else -cfg.shock * sum(moves),
                "terminal": last * cfg.terminal * self.gain,
            }
        parts = {"gain": last * cfg.gain * self.gain, "rent": last * self.rent(env)}
        if cfg.mode == "minimal":
            young = [k for k in pruned if env.age[k] <= t.min_training_epochs]
            parts["early_prune"] = 0.0 if rolled_back else -cfg.early_prune * len(young)
        return parts

    def of_earlier_work(self, env: Env, fossils: set[int]) -> dict[str, float]:
        t, cfg, given, gain, last = self.t, self.t.cfg, self.given, self.gain, self.last
        rent, final = {"rent": self.rent(env) / t.epochs}, last * cfg.terminal * gain
        if cfg.mode == "loss":
            return self.of_loss(env)
        if cfg.mode == "escrow":
            aim = min(self.gains)
            following = aim if last else min(max(aim, self.escrow - 0.2), self.escrow + 0.2)
            paid, self.escrow = self.discount * following - self.escrow, following
            return rent | {"gain": cfg.gain * paid}
        parts = {"gain": cfg.gain * self.change["gain"]}
        if cfg.mode == "simplified":
            return parts | {
                "fossilize": last * cfg.fossilize * 2 * sum(given[k] >= 0.01 and gain > 0 for k in fossils),
                "terminal": 3 * final,
            }
        bonus = 0.0
        for k in fossils - self.fossils:
            if given[k] >= 0.01 and gain > 0:
                bonus += 0.3 + 0.5 * 2 / (1 / given[k] + 1 / gain)
        parts |= rent | {"fossilize": cfg.fossilize * bonus, "terminal": 5 * final}
        if cfg.mode == "basic_plus":
            flow = sum(given[k] if given[k] > 0 else given[k] / 2 for k in fossils)
            parts["drip"] = cfg.drip * min(max(flow, -0.1), 0.1)
        return parts

    def of_loss(self, env: Env) -> dict[str, float]:
        t, cfg = self.t, self.t.cfg
        self.loss = env.loss if math.isfinite(env.loss) else self.loss
        self.lowest = min(self.lowest, self.loss)
        fallen = t.epochs * (t.guess_loss - (self.loss + self.lowest) / 2) / t.guess_loss
        following = min(max(fallen, self.loss_paid - 5), self.loss_paid + 5)
        paid, self.loss_paid = self.discount * following - self.loss_paid, following
        old = sum(p for p, age in zip(env.seed_parameters, env.age, strict=True) if age >= 3)
        unlearned = min(max(1 - self.loss / t.guess_loss, -1), 1)
        return {
            "gain": cfg.gain * 5 * paid,
            "stage": self.change["stage"],
            "rent": -cfg.rent * 5 * math.log(1 + old / t.host_parameters),
            "terminal": self.last * cfg.terminal * 5 * unlearned,
        }

    def hindsight(self, env: Env, pruned: set[int], fossils: set[int], rolled_back: bool) -> float:
        gone = set() if rolled_back else pruned - self.pruned
        for k in range(S):
            given = [env.interaction[scaffold][k] for scaffold in gone]
            self.owed[k] += sum(max(0.0, gift) for gift in given if not math.isnan(gift))
            if env.stage[k] not in BLENDED or rolled_back:
                self.owed[k] = 0.0
        due = self.t.cfg.hindsight * sum(self.owed[k] for k in fossils)
        for k in fossils:
            self.owed[k] = 0.0
        due = min(due, 0.2 - self.credited)
        self.credited += due
        return due


WEIGHTS = {
    "gain": 0.9,
    "terminal": 0.8,
    "rent": 0.02,
    "contribution": 0.3,
    "stage": 0.07,
    "shock": 0.3,
    "early_prune": 0.2,
    "rollback_penalty": 0.5,
    "fossilize": 0.7,
    "drip": 0.6,
    "op_fee": 0.03,
    "hindsight": 0.15,
}
"""By option; all differ from the defaults."""
EPOCHS = [0, 1, 2, 10, 11, 12, 13, 21, 22, T - 1]


def played(
    t: RunContext, n: int
) -> Iterator[tuple[int, dict[str, torch.Tensor], list[Env], list[bool], list[int]]]:
    """A course of random worlds: epoch, components, envs, rollbacks, ops."""
    reward = Reward(t, n, S)
    reward.begin_episode()
    for epoch in EPOCHS:
        table, measurements = world(n, epoch)
        rolled_back = (torch.arange(n) + epoch) % 7 == 0
        ops = (torch.arange(n) + epoch) % len(Op)
        components = reward(table, measurements, epoch, rolled_back, ops)
        yield epoch, components, envs(table, measurements), rolled_back.tolist(), ops.tolist()


@pytest.mark.parametrize("final_epochs", [1, 3])
@pytest.mark.parametrize("mode", sorted(MODES))
def test_equals_the_scalar_reference(mode: str, final_epochs: int) -> None:
    n = 350
    t = terms(mode=mode, final_epochs=final_epochs, **WEIGHTS)
    references = [Reference(t) for _ in range(n)]
    tolerance = 3e-5 if mode == "loss" else 3e-6  # its potential is T times as large
    ever: dict[str, int] = {}
    for epoch, components, states, rolled_back, ops in played(t, n):
        mine = {name: values.tolist() for name, values in components.items()}
        summed = total(components).tolist()
        expected = [
            reference.step(env, epoch, rolled_back[i], ops[i])
            for i, (reference, env) in enumerate(zip(references, states, strict=True))
        ]
        for values in expected:
            assert mine.keys() == values.keys()
        for name, found in mine.items():
            wanted = [values[name] for values in expected]
            assert_allclose(found, wanted, atol=tolerance, rtol=3e-6, err_msg=f"epoch {epoch}, {name}")
        sums = [sum(values.values()) for values in expected]
        assert_allclose(summed, sums, atol=3 * tolerance, rtol=1e-5, err_msg=f"epoch {epoch}")
        for name, values in components.items():
            ever[name] = ever.get(name, 0) + int(values.count_nonzero())
    assert all(ever.values()), ever


CALM = torch.tensor([False])
COMPONENTS = {"rollback_penalty": "rollback"}
"""By option, the component that it weighs, where the names differ."""


def test_every_weight_is_known_here() -> None:
    others = {"mode", "final_epochs", "only_fossilized"}
    assert others | WEIGHTS.keys() == set(RewardConfig.__struct_fields__)


@pytest.mark.parametrize("weight", sorted(WEIGHTS))
@pytest.mark.parametrize("mode", sorted(MODES))
def test_weight_zero_removes_its_component_and_nothing_else(mode: str, weight: str) -> None:
    n, component = 60, COMPONENTS.get(weight, weight)
    whole, without = (
        [components for _, components, *_ in played(terms(mode=mode, **weights), n)]
        for weights in (WEIGHTS, WEIGHTS | {weight: 0.0})
    )
    for one, other in zip(whole, without, strict=True):
        for name in one:
            if name == component:
                assert name not in other or not other[name].any()
            else:
                assert torch.equal(one[name], other[name]), name
        assert not other.keys() - one.keys()
    assert (component in whole[0]) == (mode in PAYING_MODES.get(weight, mode).split()), (
        "or the option is idle"
    )
    if component in whole[0]:
        assert any(one[component].any() for one in whole)


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


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("final_epochs", [1, 2, 5, 40])
def test_shaped_telescopes_to_the_mean_of_final_epochs(final_epochs: int) -> None:
    """Exactly in float64, whatever was shaped in between; an episode shorter than that counts whole."""
    n, fee, rent = 30, 0.002, 0.1
    t = terms(1.0, final_epochs=final_epochs, op_fee=fee, rent=rent, contribution=0.5, stage=0.3)
    reward = Reward(t, n, S)
    reward.begin_episode()
    paid, gains, growth, acted = torch.zeros(n), [], [], []
    for epoch in range(T):
        table, measurements = world(n, 77 + epoch)
        for holder in (table, measurements):
            for name, values in vars(holder).items():
                setattr(holder, name, values.double() if values.is_floating_point() else values)
        gain = measurements.val_accuracy - 0.1
        gains.append(gain.where(~gain.isnan(), gains[-1] if gains else 0.0))
        growth.append((measurements.parameters - HOST) / HOST)
        ops = (torch.arange(n) + epoch) % len(Op)
        acted.append(ops != Op.WAIT)
        paid += total(reward(table, measurements, epoch, torch.zeros(n, dtype=torch.bool), ops))
    last = torch.stack(gains)[-final_epochs:].mean(0)
    expected = last - rent * torch.stack(growth).mean(0) - fee * torch.stack(acted).sum(0)
    torch.testing.assert_close(paid, expected, atol=1e-12, rtol=0)


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
    measurements.val_accuracy, measurements.parameters = torch.full((3,), 0.6), torch.full((3,), HOST)
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
    first, second = (Reward(terms(mode=mode, **WEIGHTS), n, S) for _ in range(2))
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
    measurements.parameters = torch.tensor([274, 1460, 2053])
    worth = total(reward(SlotTable.empty(3, S), measurements, T - 1, torch.zeros(3, dtype=torch.bool)))
    assert worth.argmax() == 1
    assert worth[2] > worth[0]

"""What acts without learning: constant schedules, and networks that take their most probable actions."""

from __future__ import annotations

import math

import pytest
import torch

from esper_overwatch.protocol.messages.vocabulary import Op, Stage
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.actions import ActionSpace
from esper_overwatch.trainer.policy.actor import Actor
from esper_overwatch.trainer.policy.network import ActorCritic
from esper_overwatch.trainer.seeds.lifecycle import Lifecycle
from esper_overwatch.trainer.seeds.table import SlotTable

torch.set_num_threads(1)
SLOTS = 3


def constant_actor(plants: str) -> Actor:
    cfg = settings.load(
        sets=["policy.kind=constant", f"policy.constant={plants}", "envs.count=2", "ppo.minibatches=1"]
    )
    return Actor(cfg, slots=SLOTS, host_parameters=100)


def test_constant_schedule_plants_what_it_names() -> None:
    actor = constant_actor("conv_light,none,norm")
    lifecycle, table = Lifecycle(actor.cfg), SlotTable.empty(2, SLOTS, "cpu")
    measured = Measurements.unmeasured(2, SLOTS)
    planted = []
    for epoch in range(2):
        legal = lifecycle.legal(table, measured)
        decision = actor.act(table, measured, legal, epoch)
        planted.append(decision.actions[:, :3].tolist())
        lifecycle.apply(table, decision.actions, legal, measured)
    assert planted == [[[Op.GERMINATE, 0, 3]] * 2, [[Op.GERMINATE, 2, 0]] * 2]
    assert table.stage[:, 1].tolist() == [Stage.DORMANT] * 2


@pytest.mark.parametrize("plants", ["", "norm", "norm,none,lora", "norm,norm,norm,norm"])
def test_schedule_that_does_not_fit_is_refused(plants: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.constant = .*each of the 3 slots .* or none"):
        constant_actor(plants)


def random_step(generator: torch.Generator, n: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Logits and what is legal, for n envs; WAIT always is."""
    space = ActionSpace(SLOTS, 4)
    logits = (
        torch.randn(n, len(Op), generator=generator, dtype=torch.float64),
        torch.randn(n, len(Op), SLOTS, generator=generator, dtype=torch.float64),
        *(torch.randn(n, SLOTS, size, generator=generator).double() for size in space.sizes[2:]),
    )
    logits[0][:, Op.WAIT] += 3.0
    legal = torch.rand(n, len(Op), SLOTS, generator=generator) < 0.4
    legal[:, Op.WAIT] = True
    return logits, legal


def test_greedy_actions_are_those_of_the_definition() -> None:
    n, space, generator = 200, ActionSpace(SLOTS, 4), torch.Generator().manual_seed(1)
    waited, left = torch.ones(n, dtype=torch.float64), [1.0] * n
    taken = 0
    for _ in range(12):
        logits, legal = random_step(generator, n)
        actions, waited = space.act_greedily(logits, legal, waited)
        for env in range(n):
            open_ = [op for op in Op if legal[env, op].any()]
            weights = {op: float(logits[0][env, op].exp()) for op in open_}
            left[env] *= weights.pop(Op.WAIT) / sum(float(logits[0][env, op].exp()) for op in open_)
            op = Op.WAIT
            if left[env] < 0.5:
                op, left[env] = max(weights, key=lambda one: weights[one]), 1.0
            assert actions[env, 0] == op
            if op == Op.WAIT:
                continue
            taken += 1
            slots = [slot for slot in range(SLOTS) if legal[env, op, slot]]
            slot = max(slots, key=lambda one: float(logits[1][env, op, one]))
            assert actions[env, 1] == slot
            for head in range(2, len(space.sizes)):
                best = logits[head][env, slot].argmax() if space.relevant_OH[op, head] else 0
                assert actions[env, head] == best
        torch.testing.assert_close(waited, torch.tensor(left, dtype=torch.float64))
    assert n < taken < 11 * n, "some wait, some act"


def test_what_is_likely_sooner_or_later_is_done() -> None:
    space, legal = ActionSpace(SLOTS, 4), torch.zeros(1, len(Op), SLOTS, dtype=torch.bool)
    legal[:, [Op.WAIT, Op.GERMINATE]] = True
    logits = [torch.zeros(1, len(Op)), torch.zeros(1, len(Op), SLOTS)]
    logits += [torch.zeros(1, SLOTS, size) for size in space.sizes[2:]]
    logits[0][0, Op.WAIT] = math.log(9.0)  # 0.9 ** 7 is the first power below a half
    ops, waited = [], torch.ones(1)
    for _ in range(14):
        actions, waited = space.act_greedily(tuple(logits), legal, waited)
        ops.append(Op(int(actions[0, 0])))
    assert ops == ([Op.WAIT] * 6 + [Op.GERMINATE]) * 2


def test_greedy_network_acts_alike_whatever_the_round() -> None:
    cfg = settings.load(
        sets=["policy.learn=false", "policy.greedy=true", "envs.count=2", "ppo.minibatches=1"]
    )
    network = ActorCritic(ActionSpace(SLOTS, 4), 16, 1)
    actions = []
    for round_ in range(3):
        actor = Actor(cfg, network, slots=SLOTS, host_parameters=100)
        actor.begin_episode(round_)
        table = SlotTable.empty(2, SLOTS, "cpu")
        measured = Measurements.unmeasured(2, SLOTS)
        legal = Lifecycle(cfg).legal(table, measured)
        actions.append(actor.act(table, measured, legal, 0).actions)
    assert torch.equal(actions[0], actions[1])
    assert torch.equal(actions[0], actions[2])


def test_greedy_policy_that_learns_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy\.greedy = true: .* set policy\.learn=false"):
        settings.load(sets=["policy.greedy=true"])


def test_temperature_sharpens_what_is_drawn() -> None:
    n, network = 400, ActorCritic(ActionSpace(SLOTS, 4), 16, 1)
    with torch.no_grad():
        network.heads["op"].weight.mul_(100.0)
    table, measured = SlotTable.empty(n, SLOTS), Measurements.unmeasured(n, SLOTS)

    def drawn(*sets: str) -> torch.Tensor:
        cfg = settings.load(sets=["policy.learn=false", f"envs.count={n}", *sets])
        actor = Actor(cfg, network, slots=SLOTS, host_parameters=100)
        actor.begin_episode(1)
        return actor.act(table, measured, Lifecycle(cfg).legal(table, measured), 0).actions[:, 0]

    first, greedy = drawn(), drawn("policy.greedy=true")
    assert torch.equal(drawn("policy.temperature=0.01"), greedy)
    shares = [float((drawn(f"policy.temperature={t}") == greedy).float().mean()) for t in (0.3, 1.0, 3.0)]
    assert shares[0] > shares[1] > shares[2], shares
    assert shares[1] == float((first == greedy).float().mean())


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        ([], r"set policy\.learn=false"),
        (["policy.learn=false", "policy.greedy=true"], r"leave out policy\.greedy"),
    ],
)
def test_temperature_without_effect_is_refused(sets: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.temperature = 0\.5: .*{told}"):
        settings.load(sets=[*sets, "policy.temperature=0.5"])

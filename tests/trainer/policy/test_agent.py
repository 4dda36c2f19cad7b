"""What the loop talks to: PPO and the baselines behind one interface, and PPO that learns."""

from __future__ import annotations

import math
from statistics import mean

import pytest
import torch

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op, Stage
from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.agent import Agent, PolicyMismatch
from esper_overwatch.trainer.policy.coefficients import Coefficients
from esper_overwatch.trainer.policy.gae import gae
from esper_overwatch.trainer.policy.loss import ppo_loss
from esper_overwatch.trainer.policy.observation import LAYOUT_VERSION
from esper_overwatch.trainer.reward.modes import MODES
from esper_overwatch.trainer.seeds.table import SlotTable
from tests.cases import nightly

from .garden import WORTH, Garden, learn, make, play

S = len(WORTH)


def config(*sets: str) -> Config:
    return load(sets=["envs.count=4", "episode_epochs=8", "policy.hidden=16", *sets])


def test_the_same_seed_and_round_decide_the_same() -> None:
    def actions(round: int, *sets: str) -> torch.Tensor:
        agent, reward = make(config(*sets))
        return play(agent, reward, round)[0].actions

    assert torch.equal(actions(1), actions(1))
    assert not torch.equal(actions(1), actions(2))
    assert not torch.equal(actions(1), actions(1, "seed=2"))


def test_what_was_stored_is_what_the_network_says_again() -> None:
    agent, reward = make(config())
    rollout, _ = play(agent, reward, 1)
    assert agent.ppo is not None
    network = agent.ppo.network
    out = network(rollout.observation, network.initial(4), rollout.reset)
    again = agent.space.evaluate(out.logits, rollout.actions, rollout.legal).log_prob
    torch.testing.assert_close(again, rollout.log_prob, atol=1e-6, rtol=0)
    torch.testing.assert_close(network.value(out.value), rollout.value, atol=1e-6, rtol=0)


def test_no_growth_never_acts() -> None:
    agent, reward = make(config("policy.kind=no_growth"))
    rollout, measurements = play(agent, reward, 1)
    assert agent.ppo is None
    assert rollout.actions.eq(0).all()
    assert measurements.parameters.eq(274).all()
    assert rollout.log_prob.eq(0).all()


def test_the_fixed_schedule_fills_two_slots_and_keeps_them() -> None:
    agent, reward = make(config("policy.kind=fixed"))
    rollout, measurements = play(agent, reward, 1)
    taken = [[tuple(a[:2].tolist()) for a in rollout.actions[:, env]] for env in range(4)]
    assert all(one == taken[0] for one in taken)
    done = [pair for pair in taken[0] if pair[0] != Op.WAIT]
    per_slot = [[Op(op) for op, slot in done if slot == s] for s in range(S)]
    assert per_slot == [[Op.GERMINATE, Op.ADVANCE, Op.ADVANCE, Op.FOSSILIZE]] * 2 + [[]]
    germinated = rollout.actions[rollout.actions[..., 0] == Op.GERMINATE]
    assert germinated[:, HEAD_NAMES.index("blueprint")].eq(3).all()
    torch.testing.assert_close(measurements.val_accuracy, torch.full((4,), 0.85))


def test_random_draws_every_legal_op_alike() -> None:
    agent, reward = make(config("policy.kind=random", "envs.count=64"))
    rollout, _ = play(agent, reward, 1)
    choices = rollout.legal.any(-1).sum(-1).float()
    torch.testing.assert_close(rollout.log_prob[..., 0], -choices.log())
    first = torch.bincount(rollout.actions[0, :, 0], minlength=6)
    assert first[Op.WAIT] + first[Op.GERMINATE] == 64
    assert 16 < first[Op.WAIT] < 48


def test_a_rollback_starts_the_memory_of_that_env_afresh() -> None:
    agent, _ = make(config())
    garden, measurements = Garden(4), Measurements.unmeasured(4, S)
    agent.act(garden.table, measurements, garden.legal(), 0)
    agent.reset_hidden(torch.tensor([False, True, False, False]))
    decision = agent.act(garden.table, garden.measure(), garden.legal(), 1)
    assert decision.reset.tolist() == [False, True, False, False]
    assert not agent.act(garden.table, garden.measure(), garden.legal(), 2).reset.any()


def hesitate(agent: Agent) -> torch.Tensor:
    """Plant with probability .1 in each epoch, due in the seventh; returns what is legal."""
    assert agent.network is not None
    head = agent.network.heads["op"]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.bias[Op.WAIT] = math.log(9.0)
    legal = torch.zeros(4, len(Op), S, dtype=torch.bool)
    legal[:, [Op.WAIT, Op.GERMINATE]] = True
    return legal


def ops_of(agent: Agent, legal: torch.Tensor, epochs: range) -> list[list[int]]:
    """Greedy ops by epoch and env."""
    table, measured = SlotTable.empty(4, S), Measurements.unmeasured(4, S)
    return [agent.act(table, measured, legal, epoch).actions[:, 0].tolist() for epoch in epochs]


@pytest.mark.parametrize("stop", [0, 4, 6])
def test_greedy_agent_goes_on_waiting_after_a_resume(stop: int) -> None:
    sets = ("policy.learn=false", "policy.greedy=true")
    (agent, _), (other, _) = make(config(*sets)), make(config(*sets))
    legal = hesitate(agent)
    agent.begin_episode(1)
    ops = ops_of(agent, legal, range(stop))
    other.load_state_dict(agent.state_dict())
    assert ops + ops_of(other, legal, range(stop, 8)) == [[0] * 4] * 6 + [[Op.GERMINATE] * 4] + [[0] * 4]


def test_greedy_agent_waits_afresh_after_a_rollback() -> None:
    agent, _ = make(config("policy.learn=false", "policy.greedy=true"))
    legal = hesitate(agent)
    agent.begin_episode(1)
    ops_of(agent, legal, range(3))
    agent.reset_hidden(torch.tensor([False, True, False, False]))
    waits = [0] * 4
    others = [Op.GERMINATE, 0, Op.GERMINATE, Op.GERMINATE]
    second = [0, Op.GERMINATE, 0, 0]
    assert ops_of(agent, legal, range(3, 10)) == [waits] * 3 + [others] + [waits] * 2 + [second]


def test_a_checkpoint_of_another_policy_is_refused_in_one_line() -> None:
    agent, _ = make(config())
    for sets, state, words in (
        (["policy.kind=random"], {}, ["kind", "ppo", "random"]),
        (["policy.hidden=32"], {}, ["does not fit", "size"]),
        ([], {"layout": 1}, ["layout 1", f"layout {LAYOUT_VERSION}", "start a new run"]),
    ):
        other, _ = make(config(*sets))
        with pytest.raises(PolicyMismatch) as caught:
            other.load_state_dict(agent.state_dict() | state)
        message = str(caught.value)
        assert "\n" not in message
        assert all(word in message for word in words), message


@pytest.mark.parametrize("slots", [1, 10])
def test_any_number_of_slots_and_blueprints(slots: int) -> None:
    cfg = load(sets=["envs.count=2", "seeds.blueprints=norm", "policy.hidden=8"])
    agent = Agent(cfg, slots=slots, host_parameters=10)
    table, measurements = SlotTable.empty(2, slots), Measurements.unmeasured(2, slots)
    legal = torch.zeros(2, len(Op), slots, dtype=torch.bool)
    legal[:, Op.GERMINATE] = table.stage == Stage.DORMANT
    legal[:, Op.GERMINATE, -1] = True
    decision = agent.act(table, measurements, legal, 0)
    assert decision.actions[:, 0].eq(Op.GERMINATE).all()
    assert decision.actions[:, 2].eq(0).all()


def accuracies(kind: str, rounds: int, mode: str = "shaped") -> list[float]:
    """Mean final accuracy of each round of a run of the default configuration."""
    agent, reward = make(load(sets=[f"policy.kind={kind}", f"reward.mode={mode}"]))
    found = []
    for round in range(1, rounds + 1):
        rollout, measurements = play(agent, reward, round)
        if agent.ppo is not None:
            learn(agent, rollout)
        found.append(measurements.val_accuracy.mean().item())
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["minimal", *(nightly(m) for m in sorted(set(MODES) - {"shaped", "minimal"}))]
)
def test_it_learns_in_every_mode_of_the_reward(mode: str) -> None:
    assert mean(accuracies("ppo", 25, mode)[-5:]) > mean(accuracies("random", 5)) + 0.15


@pytest.mark.nightly
def test_ppo_learns_to_grow_and_approaches_the_best_schedule() -> None:
    ppo, random = accuracies("ppo", 120), mean(accuracies("random", 5))
    assert random < 0.55
    assert mean(ppo[20:25]) > random + 0.15
    assert mean(ppo[-10:]) > 0.78 > random + 0.2


@pytest.mark.nightly
def test_deciding_and_learning_compile_whole_and_equal_eager() -> None:
    agent, reward = make(config("episode_epochs=2"))
    rollout, _ = play(agent, reward, 1)
    assert agent.ppo is not None
    network, space, coefficients = agent.ppo.network, agent.space, Coefficients.of(agent.ppo.cfg, 0)
    hidden = network.initial(4)
    uniform = torch.rand(*rollout.reward.shape, len(HEAD_NAMES))
    advantage, returns = gae(rollout.reward, rollout.value, gamma=0.99, lam=0.95)

    @torch.no_grad()
    def decide() -> tuple[torch.Tensor, ...]:
        out = network(rollout.observation, hidden, rollout.reset)
        actions = space.sample(out.logits, rollout.legal, uniform)
        return *out.logits, out.value, actions, *space.evaluate(out.logits, actions, rollout.legal)

    def loss() -> tuple[torch.Tensor, ...]:
        return ppo_loss(network, space, rollout, advantage, returns, coefficients)

    counters = torch._dynamo.utils.counters
    for function, backend in ((decide, "inductor"), (loss, "aot_eager")):
        torch._dynamo.reset()
        counters.clear()
        expected, got = function(), torch.compile(function, fullgraph=True, backend=backend)()
        assert counters["stats"]["unique_graphs"] == 1
        assert not counters["graph_break"]
        if function is loss:
            parameters = list(network.parameters())
            expected += torch.autograd.grad(expected[0], parameters)
            got += torch.autograd.grad(got[0], parameters)
        for eager, compiled in zip(expected, got, strict=True):
            torch.testing.assert_close(compiled, eager, atol=1e-5, rtol=1e-3, equal_nan=True)

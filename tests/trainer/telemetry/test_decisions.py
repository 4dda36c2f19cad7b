"""What an epoch's event says of its decisions: probabilities and value as the network gives them again."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.protocol.messages.events import EpochFinished
from esper_overwatch.protocol.messages.vocabulary import Op
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.config.load import load as configured
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.observation import Observation
from esper_overwatch.trainer.telemetry.columns import shortest
from esper_overwatch.trainer.telemetry.recorder import Recorder, RunShape
from esper_overwatch.trainer.telemetry.timer import PhaseTimes
from tests.trainer.compute.test_process_group import Recording

from .rig import Rig

ENVS, EPOCHS = 4, 8
SETS = (
    f"envs.count={ENVS}",
    f"episode_epochs={EPOCHS}",
    "device=cpu",
    "envs.threads=1",
    "task.batches_per_epoch=2",
    "task.batch_size=16",
    "policy.hidden=16",
    "ppo.minibatches=1",
)


def episode(*sets: str) -> tuple[Trainer, list[EpochFinished]]:
    """A trainer after an episode, and the `epoch` events of it."""
    torch.set_num_threads(1)
    config, cpu = configured(sets=[*SETS, *sets]), torch.device("cpu")
    trainer, hooks = Trainer(config, load("digits"), cpu, Execution.as_configured(config)), Recording()
    trainer.play(hooks)
    rig = Rig(envs=ENVS)
    slots = tuple(f"r0c{i}" for i in range(trainer.table.shape[1]))
    names = config.seeds.blueprints
    shape = RunShape(
        envs=ENVS,
        slots=slots,
        blueprints=names,
        seed_parameters=[[9] * len(names)] * len(slots),
        rounds=1,
        host_parameters=9,
    )
    recorder = Recorder(rig.emitter, shape, rig.plan)
    recorder.begin_round(1)
    recorder.record_decision(hooks.frames[0])
    for frame in hooks.frames[1:]:
        recorder.begin_epoch()
        recorder.record_outcome(frame, PhaseTimes(1.0, {"train": 1.0}))
        if "stage" in frame:
            recorder.record_decision(frame)
    return trainer, [event.data for event in rig.take("epoch")]


def again(trainer: Trainer) -> dict[str, Any]:
    """What the network, in float64, says of the episode that the trainer holds."""
    agent, seen = trainer.agent, trainer.rollout
    assert agent.ppo is not None
    network = copy.deepcopy(agent.ppo.network).double()
    observation = Observation(
        base=seen.observation.base.double(),
        slot=seen.observation.slot.double(),
        blueprint=seen.observation.blueprint,
    )
    h, c = network.initial(ENVS)
    with torch.no_grad():
        out = network(observation, (h.double(), c.double()), seen.reset)
        chosen = agent.space.evaluate(out.logits, seen.actions, seen.legal).log_prob.sum(-1).exp()
        ops = agent.space.op_probabilities(out.logits, seen.legal)
        return {"probability": chosen, "op_probability": ops, "value": network.value(out.value)}


@pytest.mark.parametrize("sets", [(), ("policy.greedy=true", "policy.learn=false")])
def test_an_epoch_tells_what_the_network_says_again(sets: tuple[str, ...]) -> None:
    trainer, epochs = episode(*sets)
    assert len(epochs) == EPOCHS
    for name, expected in again(trainer).items():
        found = torch.tensor([getattr(epoch, name) for epoch in epochs], dtype=torch.float64)
        torch.testing.assert_close(found, expected.double(), atol=1e-6, rtol=0)
    by_op = torch.tensor([epoch.op_probability for epoch in epochs])
    assert by_op.shape == (EPOCHS, ENVS, len(Op))
    assert torch.allclose(by_op.sum(-1), torch.ones(EPOCHS, ENVS))
    assert (by_op[~trainer.rollout.legal.any(-1)] == 0.0).all()


def test_a_rule_has_no_probabilities_and_no_value() -> None:
    _, epochs = episode("policy.kind=heuristic")
    assert len(epochs) == EPOCHS
    for epoch in epochs:
        assert (epoch.probability, epoch.op_probability, epoch.value) == ([], [], [])


def test_numbers_keep_every_bit_in_half_the_digits() -> None:
    values = np.random.default_rng(1).normal(size=(64, 3)).astype(np.float32)
    values[0], values[1] = (1e-9, 3e38, -0.0), (np.nan, np.inf, 1e-45)
    lists = shortest(values)
    assert np.array_equal(np.array(lists, dtype=np.float32), values, equal_nan=True)
    assert len(repr(lists)) < 0.65 * len(repr(values.tolist()))

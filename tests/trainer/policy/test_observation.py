"""What the policy is shown: every column where its name says, nothing invented for what was not measured."""

from __future__ import annotations

import math

import pytest
import torch

from protocol.messages.vocabulary import Op, Stage
from trainer.measurements import Measurements
from trainer.policy.actions import ActionSpace
from trainer.policy.network import ActorCritic
from trainer.policy.observation import (
    BASE_COLUMNS,
    NUM_HISTORY_EPOCHS,
    SLOT_COLUMNS,
    Observation,
    ObservationBuilder,
)
from trainer.seeds.table import SlotTable

N, S = 2, 3


def observer() -> ObservationBuilder:
    return ObservationBuilder(N, S, episode_epochs=10, host_parameters=100)


def measured(accuracy: float = 0.5, loss: float = 1.0) -> Measurements:
    measurements = Measurements.unmeasured(N, S)
    for name in ("train_accuracy", "val_accuracy", "host_health"):
        getattr(measurements, name).fill_(accuracy)
    for name in ("train_loss", "val_loss"):
        getattr(measurements, name).fill_(loss)
    measurements.host_grad_norm.fill_(0.01)
    measurements.parameters.fill_(200.0)
    return measurements


def base(seen: Observation, name: str, env: int = 0) -> float:
    return seen.base[env, BASE_COLUMNS.names.index(name)].item()


def slot(seen: Observation, name: str, slot: int, env: int = 0) -> float:
    return seen.slot[env, slot, SLOT_COLUMNS.names.index(name)].item()


def test_shapes_are_the_layout() -> None:
    seen = observer().observe(SlotTable.empty(N, S), Measurements.unmeasured(N, S), 0)
    assert seen.base.shape == (N, len(BASE_COLUMNS.names))
    assert seen.slot.shape == (N, S, len(SLOT_COLUMNS.names))
    assert len(set(BASE_COLUMNS.names)) == len(BASE_COLUMNS.names)
    assert len(set(SLOT_COLUMNS.names)) == len(SLOT_COLUMNS.names)


def test_before_the_first_epoch_everything_measured_is_absent() -> None:
    seen = observer().observe(SlotTable.empty(N, S), Measurements.unmeasured(N, S), 0)
    for name in BASE_COLUMNS.measured:
        assert math.isnan(base(seen, name))
        assert base(seen, f"no_{name}") == 1
    for name in BASE_COLUMNS.plain:
        assert math.isfinite(base(seen, name))
    assert base(seen, "share_dormant") == 1
    assert sum(base(seen, f"last_{op.name.lower()}") for op in Op) == 0


def test_values_and_history_are_in_their_columns() -> None:
    watch = observer()
    accuracies = [0.1, 0.2, 0.3, 0.4, 0.5]
    for epoch, accuracy in enumerate(accuracies):
        seen = watch.observe(SlotTable.empty(N, S), measured(accuracy, loss=accuracy * 10), epoch)
    assert base(seen, "val_accuracy") == pytest.approx(0.5)
    assert base(seen, "val_loss") == pytest.approx(math.log(6))
    assert base(seen, "epoch") == pytest.approx(0.4)
    assert base(seen, "growth_log") == pytest.approx(math.log(2))
    assert base(seen, "host_grad_norm_log10") == pytest.approx(-2)
    for k in range(NUM_HISTORY_EPOCHS):
        ago = k + 2
        assert base(seen, f"val_accuracy_{ago}_ago") == pytest.approx(accuracies[-ago])
        assert base(seen, f"val_loss_{ago}_ago") == pytest.approx(math.log1p(accuracies[-ago] * 10))
        assert base(seen, f"no_val_loss_{ago}_ago") == 0


def test_slots_show_their_seed() -> None:
    table = SlotTable.empty(N, S)
    table.stage[0, 1] = Stage.BLENDING
    table.blueprint[0, 1] = 2
    table.alpha[0, 1], table.alpha_target[0, 1] = 0.25, 1.0
    table.ramp_epochs[0, 1], table.ramp_done[0, 1] = 4, 1
    table.contribution[0, 1], table.accuracy_at_stage[0, 1] = 0.2, 0.4
    table.contribution_age[0, 1], table.epochs_in_stage[0, 1], table.age[0, 1] = 0, 2, 6
    measurements = measured()
    measurements.seed_grad_norm[0, 1], measurements.seed_health[0, 1] = 1.0, 1.0
    seen = observer().observe(table, measurements, 3)
    expected = {
        "contribution": 0.2,
        "accuracy_since_stage": 0.1,
        "grad_norm_log10": 0,
        "health": 1,
        "blending": 1,
        "dormant": 0,
        "alpha": 0.25,
        "alpha_target": 1,
        "moving": 1,
        "ramp_left": 0.3,
        "pruning": 0,
        "contribution_age": 0,
        "epochs_in_stage": 0.2,
        "age": 0.6,
        "no_contribution": 0,
        "no_contribution_velocity": 1,
    }
    for name, value in expected.items():
        assert slot(seen, name, 1) == pytest.approx(value, abs=1e-6), name
    assert math.isnan(slot(seen, "contribution", 0))
    assert slot(seen, "contribution_age", 0) == pytest.approx(-0.1)
    assert seen.blueprint.tolist() == [[-1, 2, -1], [-1, -1, -1]]


def test_the_last_action_and_its_success_are_shown() -> None:
    watch = observer()
    watch.record_executed(torch.tensor([Op.PRUNE, Op.WAIT]), torch.tensor([False, True]))
    seen = watch.observe(SlotTable.empty(N, S), measured(), 1)
    assert base(seen, "last_prune") == 1
    assert base(seen, "last_wait") == 0
    assert base(seen, "last_executed") == 0
    assert base(seen, "last_wait", env=1) == base(seen, "last_executed", env=1) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30, -math.inf])
def test_a_diverged_env_cannot_poison_the_network(value: float) -> None:
    measurements = measured()
    for name in vars(measurements):
        if name != "parameters":
            getattr(measurements, name)[0] = value
    seen = observer().observe(SlotTable.empty(N, S), measurements, 1)
    network = ActorCritic(ActionSpace(S, 4), hidden=16, seed=0)
    network.learn_normalisers(seen)
    step = Observation(**{name: row.unsqueeze(0) for name, row in vars(seen).items()})
    out = network(step, network.initial(N), torch.ones(1, N, dtype=torch.bool))
    assert all(head.isfinite().all() for head in out.logits)
    assert out.value.isfinite().all()


def test_memory_travels_in_the_state() -> None:
    first, second = observer(), observer()
    table = SlotTable.empty(N, S)
    for epoch in range(4):
        first.observe(table, measured(0.1 * epoch), epoch)
    first.record_executed(torch.tensor([1, 2]), torch.tensor([True, False]))
    second.load_state_dict(first.state_dict())
    a, b = (watch.observe(table, measured(0.7), 4) for watch in (first, second))
    assert torch.equal(a.base.nan_to_num(-9), b.base.nan_to_num(-9))

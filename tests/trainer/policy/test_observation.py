"""What the policy is shown: every column where its name says, nothing invented for what was not measured."""

from __future__ import annotations

import math

import pytest
import torch

from esper_overwatch.protocol.messages.vocabulary import Curve, Op, Stage, Style
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.actions import ActionSpace
from esper_overwatch.trainer.policy.network import ActorCritic
from esper_overwatch.trainer.policy.observation import (
    BASE_COLUMNS,
    LAYOUT_VERSION,
    NUM_HISTORY_EPOCHS,
    SLOT_COLUMNS,
    Observation,
    ObservationBuilder,
)
from esper_overwatch.trainer.seeds.table import SlotTable

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


GOLDEN_BASE = {
    "train_loss": math.log1p(0.9),
    "val_loss": math.log1p(1.1),
    "train_accuracy": 0.7,
    "val_accuracy": 0.55,
    "val_accuracy_best": 0.6,
    "host_grad_norm_log10": -2.0,
    "host_health": 0.75,
    "val_loss_2_ago": math.log1p(1.0),
    "val_loss_3_ago": math.log1p(1.5),
    "val_loss_4_ago": math.nan,
    "val_accuracy_2_ago": 0.6,
    "val_accuracy_3_ago": 0.4,
    "val_accuracy_4_ago": math.nan,
    "no_train_loss": 0,
    "no_val_loss": 0,
    "no_train_accuracy": 0,
    "no_val_accuracy": 0,
    "no_val_accuracy_best": 0,
    "no_host_grad_norm_log10": 0,
    "no_host_health": 0,
    "no_val_loss_2_ago": 0,
    "no_val_loss_3_ago": 0,
    "no_val_loss_4_ago": 1,
    "no_val_accuracy_2_ago": 0,
    "no_val_accuracy_3_ago": 0,
    "no_val_accuracy_4_ago": 1,
    "epoch": 0.3,
    "growth_log": math.log(1.9),
    "share_dormant": 1 / 3,
    "share_germinated": 0,
    "share_training": 0,
    "share_blending": 1 / 3,
    "share_holding": 1 / 3,
    "share_fossilized": 0,
    "share_pruned": 0,
    "share_embargoed": 0,
    "share_resetting": 0,
    "last_wait": 0,
    "last_germinate": 0,
    "last_advance": 0,
    "last_set_alpha": 1,
    "last_prune": 0,
    "last_fossilize": 0,
}
GOLDEN_SLOT = {
    "contribution": 0.2,
    "contribution_velocity": 0.05,
    "accuracy_since_stage": 0.15,
    "grad_norm_log10": 1.0,
    "health": 0.5,
    "interaction": 0.125,
    "interaction_best": 0.125,
    "new_weights_norm_log10": math.nan,
    "new_weights_agreement": math.nan,
    "new_kernel_norm_log10": math.nan,
    "new_kernel_agreement": math.nan,
    "no_contribution": 0,
    "no_contribution_velocity": 0,
    "no_accuracy_since_stage": 0,
    "no_grad_norm_log10": 0,
    "no_health": 0,
    "no_interaction": 0,
    "no_interaction_best": 0,
    "no_new_weights_norm_log10": 1,
    "no_new_weights_agreement": 1,
    "no_new_kernel_norm_log10": 1,
    "no_new_kernel_agreement": 1,
    "dormant": 0,
    "germinated": 0,
    "training": 0,
    "blending": 1,
    "holding": 0,
    "fossilized": 0,
    "pruned": 0,
    "embargoed": 0,
    "resetting": 0,
    "style_add": 0,
    "style_multiply": 0,
    "style_gate": 1,
    "curve_linear": 0,
    "curve_cosine": 0,
    "curve_sigmoid_gentle": 0,
    "curve_sigmoid": 1,
    "curve_sigmoid_sharp": 0,
    "tempo": 0.5,
    "alpha": 0.25,
    "alpha_target": 0.7,
    "moving": 1,
    "ramp_left": 0.3,
    "pruning": 1,
    "contribution_age": 0.2,
    "epochs_in_stage": 0.4,
    "age": 0.6,
    "embargo": 0.1,
    "parameters_log": math.log(1.8),
    "last_action": 1,
}
"""Layout 4, in order: after a change of either, `LAYOUT_VERSION` is another."""


def golden_state() -> tuple[ObservationBuilder, SlotTable, Measurements]:
    """Env 0 in its fourth epoch: a seed in slot 1 is being blended, one in slot 2 is held."""
    watch, table, now = observer(), SlotTable.empty(N, S), measured()
    for epoch, (loss, accuracy) in enumerate(((1.5, 0.4), (1.0, 0.6))):
        watch.observe(table, measured(accuracy, loss), epoch)
    watch.record_action(torch.tensor([Op.SET_ALPHA, Op.WAIT]), torch.tensor([1, 0]))
    table.stage[0, 1], table.stage[0, 2] = Stage.BLENDING, Stage.HOLDING
    table.blueprint[0, 1], table.blueprint[0, 2] = 2, 0
    table.style[0, 1], table.tempo[0, 1], table.curve[0, 1] = Style.GATE, 5, Curve.SIGMOID
    table.alpha[0, 1], table.alpha_target[0, 1] = 0.25, 0.7
    table.ramp_epochs[0, 1], table.ramp_done[0, 1], table.pruning[0, 1] = 5, 2, True
    table.contribution[0, 1], table.contribution_velocity[0, 1], table.contribution_age[0, 1] = 0.2, 0.05, 2
    table.accuracy_at_stage[0, 1], table.epochs_in_stage[0, 1] = 0.4, 4
    table.age[0, 1], table.embargo[0, 1] = 6, 1
    table.interaction[0, 1, 2] = table.interaction[0, 2, 1] = 0.125
    now.train_loss[0], now.val_loss[0], now.train_accuracy[0], now.val_accuracy[0] = 0.9, 1.1, 0.7, 0.55
    now.host_health[0], now.parameters[0], now.seed_parameters[0, 1] = 0.75, 190.0, 80.0
    now.seed_grad_norm[0, 1], now.seed_health[0, 1] = 10.0, 0.5
    return watch, table, now


def test_layout_4_column_by_column() -> None:
    watch, table, now = golden_state()
    seen = watch.observe(table, now, 3)
    assert LAYOUT_VERSION == 4
    assert tuple(GOLDEN_BASE) == BASE_COLUMNS.names
    assert tuple(GOLDEN_SLOT) == SLOT_COLUMNS.names
    golden = torch.tensor(list(GOLDEN_BASE.values()))
    torch.testing.assert_close(seen.base[0], golden, equal_nan=True, atol=1e-6, rtol=0)
    golden = torch.tensor(list(GOLDEN_SLOT.values()))
    torch.testing.assert_close(seen.slot[0, 1], golden, equal_nan=True, atol=1e-6, rtol=0)
    assert seen.blueprint.tolist() == [[-1, 2, 0], [-1, -1, -1]]


def test_an_empty_slot_shows_no_seed() -> None:
    watch, table, now = golden_state()
    seen = watch.observe(table, now, 3)
    expected = dict.fromkeys(SLOT_COLUMNS.measured, math.nan)
    expected |= {f"no_{name}": 1.0 for name in SLOT_COLUMNS.measured}
    expected |= dict.fromkeys(SLOT_COLUMNS.plain, 0.0) | {"dormant": 1.0, "contribution_age": -0.1}
    for empty in ((0, 0), (1, 1)):
        torch.testing.assert_close(
            seen.slot[empty], torch.tensor(list(expected.values())), equal_nan=True, atol=1e-6, rtol=0
        )


def test_what_an_empty_slot_would_gain_is_shown() -> None:
    watch, table, now = golden_state()
    now.growth[0, 0] = torch.tensor([0.01, 0.5, 0.0, -0.1])
    seen = watch.observe(table, now, 3)
    shown = [slot(seen, name, 0) for name in SLOT_COLUMNS.measured[-4:]]
    assert shown == pytest.approx([-2.0, 0.5, -8.0, -0.1])
    assert slot(seen, "no_new_kernel_norm_log10", 0) == 0
    assert slot(seen, "no_new_kernel_norm_log10", 1) == 1


def test_interactions_are_those_with_seeds_still_blended() -> None:
    table = SlotTable.empty(N, S)
    table.stage[0] = torch.tensor([Stage.HOLDING, Stage.BLENDING, Stage.FOSSILIZED])
    table.stage[1] = torch.tensor([Stage.HOLDING, Stage.PRUNED, Stage.FOSSILIZED])
    pairs = torch.tensor([[math.nan, 0.1, -0.3], [0.1, math.nan, math.nan], [-0.3, math.nan, math.nan]])
    table.record_interaction(pairs.expand(N, S, S))
    seen = observer().observe(table, measured(), 1)
    assert [slot(seen, "interaction", k) for k in range(S)] == pytest.approx([-0.2, 0.1, -0.3])
    assert [slot(seen, "interaction_best", k) for k in range(S)] == pytest.approx([0.1, 0.1, -0.3])
    assert slot(seen, "interaction", 0, env=1) == pytest.approx(-0.3)
    assert slot(seen, "no_interaction", 1, env=1) == 1


def test_the_last_action_and_its_slot_are_shown() -> None:
    watch = observer()
    watch.record_action(torch.tensor([Op.PRUNE, Op.WAIT]), torch.tensor([2, 0]))
    seen = watch.observe(SlotTable.empty(N, S), measured(), 1)
    assert base(seen, "last_prune") == base(seen, "last_wait", env=1) == 1
    assert base(seen, "last_wait") == 0
    assert [slot(seen, "last_action", k) for k in range(S)] == [0, 0, 1]
    assert [slot(seen, "last_action", k, env=1) for k in range(S)] == [0, 0, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30, -math.inf])
def test_a_diverged_env_cannot_poison_the_network(value: float) -> None:
    measurements = measured()
    for name in vars(measurements):
        if "parameters" not in name:
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
    first.record_action(torch.tensor([1, 2]), torch.tensor([1, 2]))
    second.load_state_dict(first.state_dict())
    a, b = (watch.observe(table, measured(0.7), 4) for watch in (first, second))
    assert torch.equal(a.base.nan_to_num(-9), b.base.nan_to_num(-9))
    assert torch.equal(a.slot.nan_to_num(-9), b.slot.nan_to_num(-9))

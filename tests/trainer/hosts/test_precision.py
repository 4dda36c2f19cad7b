"""Mixed precision: close to float32, decided once, and one host's overflow is its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts.host_group import HostGroup
from esper_overwatch.trainer.hosts.optimizer import ParameterGroup, StackedSGD, padded_zeros
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.precision import GROWTH_INTERVAL_STEPS, INITIAL_SCALE, LossScale
from esper_overwatch.trainer.hosts.slot_plan import Topology
from tests.cases import nightly
from tests.trainer.hosts.plots import config, every_state, plant, rows, tiny

torch.set_num_threads(1)
CPU = torch.device("cpu")
COLUMNS = rows(every_state(blueprints=7), list(range(0, 63, 2)))
"""Not of all kinds there may be: how far a step is off depends on which are sampled."""


def group(plan: str, dtype: str) -> HostGroup:
    cfg = config(len(COLUMNS["stage"]), (8, 8, 16), envs__plan=plan, amp__dtype=dtype, task__batch_size=32)
    population = Population(cfg, tiny(), CPU)
    plant(population, COLUMNS)
    table, made = population.table, population.groups[0]
    made.plan_epoch(Topology.of(table.stage, table.blueprint, table.style), 1, 0)
    population.close()
    return made


def per_host(gradients: dict[str, Tensor]) -> Tensor:
    """All gradients of a host in one row: [n, P]."""
    return torch.cat([g.reshape(g.shape[0], -1).double() for g in gradients.values()], dim=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "dtype"),
    [("gather", "bf16"), ("masked", "fp16"), nightly("gather", "fp16"), nightly("masked", "bf16")],
)
def test_mixed_precision_step_is_close_to_float32(plan: str, dtype: str) -> None:
    whole, mixed = group(plan, "off"), group(plan, dtype)
    loss, _, gradients = whole.gradients(*whole.batches.at(1, 0))
    mixed_loss, _, mixed_gradients = mixed.gradients(*mixed.batches.at(1, 0))
    assert not torch.equal(mixed_loss, loss), "it was not computed in another precision"
    assert mixed_loss.dtype == torch.float32
    assert {g.dtype for g in mixed_gradients.values()} == {torch.float32}
    torch.testing.assert_close(mixed_loss, loss, atol=3e-3, rtol=0)
    cosine = torch.cosine_similarity(per_host(mixed_gradients), per_host(gradients))
    assert cosine.min() > 0.97
    assert cosine.median() > 0.99
    score, mixed_score = whole.validate(1, 0), mixed.validate(1, 0)
    torch.testing.assert_close(mixed_score.loss, score.loss, atol=1e-2, rtol=0)
    assert mixed.buffers["block0.norm.mean"].dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", nightly("fp16")])
def test_hosts_learn_the_digits_in_mixed_precision(dtype: str) -> None:
    losses = []
    for name in ("off", dtype):
        cfg = config(4, host__kernel=3, amp__dtype=name, task__batch_size=64, task__batches_per_epoch=12)
        population = Population(cfg, load("digits"), CPU)
        population.begin_episode(1)
        table = population.table
        population.set_topology(table.stage, table.blueprint, table.style)
        measurements = [population.run_epoch(1, epoch).measurements for epoch in range(4)][-1]
        population.close()
        losses.append(measurements.train_loss)
    torch.testing.assert_close(losses[1], losses[0], atol=0.1, rtol=0)
    assert (losses[1] < 1.0).all()


@pytest.mark.slow
def test_overflow_skips_the_step_of_that_host_alone() -> None:
    made, calm = group("gather", "fp16"), group("gather", "fp16")
    assert made.loss_scale is not None
    made.loss_scale.scale_N[3] = 2.0**24
    before = {name: w.detach().clone() for name, w in made.weights.items()}
    momentum = {name: m.clone() for name, m in made.optimizer.momentum.items()}
    trained, quiet = made.train(1, 0), calm.train(1, 0)
    assert made.loss_scale.scale_N[3] == 2.0**21, "each of the three steps overflowed"
    others = torch.arange(len(made)) != 3
    assert (made.loss_scale.scale_N[others] == INITIAL_SCALE).all()
    for name, weight in made.weights.items():
        assert torch.equal(weight[3], before[name][3]), name
        assert torch.equal(made.optimizer.momentum[name][3], momentum[name][3]), name
        assert torch.equal(weight[others], calm.weights[name][others]), name
    assert trained.host_grad_norm[3].isnan(), "it was not measured"
    assert trained.skipped_steps is not None
    assert trained.skipped_steps.tolist() == [3 * (env == 3) for env in range(len(made))]
    assert trained.host_health[3].isnan()
    assert trained.loss[3].isfinite()
    assert torch.equal(trained.host_grad_norm[others], quiet.host_grad_norm[others])


def test_epochs_report_scales_and_skipped_steps_of_all_groups() -> None:
    made = Population(config(5, amp__dtype="fp16", envs__group_size=2), tiny(), CPU)
    made.begin_episode(1)
    made.set_topology(made.table.stage, made.table.blueprint, made.table.style)
    scale = made.groups[1].loss_scale
    assert scale is not None
    scale.scale_N[1] = 2.0**24
    scaling = made.run_epoch(1, 0).scaling
    assert scaling["skipped_steps"].tolist() == [0, 0, 0, 3, 0]
    assert scaling["loss_scale"].tolist() == [*[INITIAL_SCALE] * 3, 2.0**21, INITIAL_SCALE]
    plain = Population(config(2), tiny(), CPU)
    plain.begin_episode(1)
    plain.set_topology(plain.table.stage, plain.table.blueprint, plain.table.style)
    assert plain.run_epoch(1, 0).scaling == {}
    made.close()
    plain.close()


def test_the_scale_doubles_after_good_steps_and_ends_somewhere() -> None:
    scale = LossScale(2, CPU)
    fine, bad = torch.ones(2, 3), torch.tensor([[1.0, 1, 1], [1, float("nan"), 1]])
    for _ in range(GROWTH_INTERVAL_STEPS):
        assert scale.update({"w": fine}).all()
    assert scale.scale_N.tolist() == [2 * INITIAL_SCALE] * 2
    assert scale.update({"w": bad, "b": torch.ones(2)}).tolist() == [True, False]
    assert scale.scale_N.tolist() == [2 * INITIAL_SCALE, INITIAL_SCALE]
    for _ in range(100):
        scale.update({"w": bad})
    assert scale.scale_N[1] == 2.0**-14


def test_rows_that_are_not_taken_keep_weight_and_momentum() -> None:
    weight, taken = padded_zeros((3, 2), torch.float32).fill_(1.0), torch.tensor([True, False, True])
    stacked = StackedSGD({"w": weight}, [ParameterGroup(["w"], 0.1)], 0.9)
    stacked.step({"w": torch.ones(3, 2)})
    stacked.step({"w": torch.tensor([[1.0, 1], [float("inf"), 1], [2, 2]])}, taken)
    assert weight[1].tolist() == pytest.approx([0.9, 0.9])
    assert stacked.momentum["w"][1].tolist() == [1.0, 1.0]
    assert weight[0].tolist() == pytest.approx([0.9 - 0.19] * 2)


def test_the_scales_survive_a_checkpoint() -> None:
    cfg = config(3, amp__dtype="fp16", envs__group_size=2)
    one, other = Population(cfg, tiny(), CPU), Population(cfg, tiny(), CPU)
    assert one.groups[0].loss_scale is not None
    one.groups[0].loss_scale.scale_N[1] = 8.0
    other.load_state_dict(one.state_dict())
    assert other.groups[0].loss_scale is not None
    assert other.groups[0].loss_scale.scale_N[1] == 8.0

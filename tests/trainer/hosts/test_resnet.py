"""The stacked residual host and seeds in its slots against sequential modules, in float64."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, Stage
from esper_overwatch.trainer.config.load import ConfigError, load_sourced
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.resnet import ResNet
from esper_overwatch.trainer.hosts.slot_plan import Topology
from esper_overwatch.trainer.hosts.task_defaults import resolve_task_defaults
from esper_overwatch.trainer.hosts.validation import Coalitions
from esper_overwatch.trainer.seeds.table import is_in
from tests.cases import nightly
from tests.trainer.hosts.plots import config, every_state, plant, rows, tiny
from tests.trainer.oracle import env_from
from tests.trainer.resnet_oracle import ResNetEnv

torch.set_num_threads(1)
DATA = tiny(shape=(2, 9, 6))
"""Maps of 9x6, 5x3 and 3x2: halves are rounded up."""
Made = tuple[Config, Population]


def populate(columns: dict[str, Tensor], dtype: torch.dtype = torch.float64, **changes: object) -> Made:
    settings = {"host__family": "resnet", "host__blocks": 2, **changes}
    cfg = config(columns["stage"].shape[0], **settings)
    population = Population(cfg, DATA, "cpu", dtype=dtype)
    plant(population, columns)
    table, at = population.table, 0
    topology = Topology.of(table.stage, table.blueprint, table.style)
    for group in population.groups:
        group.plan_epoch(topology.rows(at, at + len(group)), 1, 0)
        at += len(group)
    return cfg, population


SOME = list(range(0, 63, 3))
"""Envs of `every_state` in which each stage, blueprint and style occurs."""
PLANS = [
    ("gather", "grouped", 1),
    ("masked", "grouped", 1),
    nightly("gather", "grouped", 2),
    nightly("gather", "unfold", 1),
]
"""Plan, convolution, rows of slots."""


def planted(plan: str, convolution: str, slot_rows: int) -> Made:
    columns = rows(every_state(slots=3 * slot_rows), SOME[: len(SOME) // slot_rows])
    changes = {"envs__convolution": convolution, "host__slot_rows": slot_rows}
    return populate(columns, envs__plan=plan, envs__group_size=64, **changes)


def oracles(cfg: Config, population: Population) -> list[tuple[ResNetEnv, dict[str, str]]]:
    state = population.state_dict()
    return [env_from(cfg, DATA, population, state, env, ResNetEnv) for env in range(cfg.envs.count)]


def assert_close(a: Tensor, b: Tensor, what: str) -> None:
    torch.testing.assert_close(a, b.view_as(a), rtol=1e-8, atol=1e-10, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize(("plan", "convolution", "slot_rows"), PLANS)
def test_hosts_and_seeds_train_as_modules_do(plan: str, convolution: str, slot_rows: int) -> None:
    cfg, population = planted(plan, convolution, slot_rows)
    group, sequential = population.groups[0], oracles(cfg, population)
    for step in range(2):
        index = group.batches.indices(1, step)
        loss, _, gradients = group.gradients(*group.batches.at(1, step))
        group.optimizer.step(gradients)
        of, weights = population.pool.unpacked(gradients), population.pool.unpacked(group.weights)
        for env, (oracle, names_of) in enumerate(sequential):
            x, labels = oracle.inputs(DATA.train, index[env]), DATA.train.labels[index[env]]
            expected, _ = oracle.step(x, labels)
            assert_close(loss[env], expected, f"loss of env {env}, step {step}")
            for name, parameter in oracle.named_parameters():
                where = f"{name} of env {env}, step {step}"
                if name in oracle.measured:
                    assert_close(of[names_of[name]][env], oracle.measured[name], f"gradient of {where}")
                assert_close(weights[names_of[name]][env].detach(), parameter.detach(), where)
    population.close()


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "convolution", "slot_rows"), PLANS[:3])
def test_validation_and_contributions_are_those_of_modules(
    plan: str, convolution: str, slot_rows: int
) -> None:
    cfg, population = planted(plan, convolution, slot_rows)
    sequential, batches = oracles(cfg, population), population.groups[0].batches
    indices = [batches.indices(1, step) for step in range(cfg.task.batches_per_epoch)]
    measurements = population.run_epoch(1, 0).measurements
    _, test_accuracy = population.test()
    for env, (oracle, _) in enumerate(sequential):
        seen = [(oracle.inputs(DATA.train, i[env]), DATA.train.labels[i[env]]) for i in indices]
        losses = [oracle.step(x, labels)[0] for x, labels in seen]
        calibration = [x for x, _ in seen[-cfg.validation.calibration_batches :]]
        oracle.measure(calibration)
        loss, accuracy = oracle.validate(DATA.val)
        assert float(measurements.train_loss[env]) == pytest.approx(np.mean(losses), rel=1e-5), env
        assert float(measurements.val_loss[env]) == pytest.approx(loss, rel=1e-5), env
        assert float(measurements.val_accuracy[env]) == pytest.approx(accuracy), env
        assert float(test_accuracy[env]) == pytest.approx(oracle.validate(DATA.test)[1]), env
        for slot in range(len(population.slots)):
            measured = float(measurements.contribution[env, slot])
            if int(population.table.stage[env, slot]) in BLENDED:
                oracle.measure(calibration, without=[slot])
                without = oracle.validate(DATA.val, without=[slot])[1]
                assert measured == pytest.approx(accuracy - without, abs=1e-6), f"slot {slot}, env {env}"
            else:
                assert np.isnan(measured), f"slot {slot}, env {env}"
    population.close()


@pytest.mark.slow
@pytest.mark.parametrize("slot_rows", [nightly(1), 2])
def test_coalitions_are_what_modules_without_those_seeds_score(slot_rows: int) -> None:
    cfg, population = planted("gather", "grouped", slot_rows)
    population.run_epoch(1, 0)
    population.test()
    table, state, group = population.table, population.state_dict(), population.groups[0]
    end = cfg.episode_epochs * cfg.task.batches_per_epoch
    steps = range(end - cfg.validation.calibration_batches, end)
    differ = False
    for env, blended in enumerate(is_in(table.stage, BLENDED)):
        seeds = blended.nonzero().flatten().tolist()
        coalitions = [list(left) for count in range(len(seeds) + 1) for left in combinations(seeds, count)]
        removed = np.array([sum(1 << slot for slot in left) for left in coalitions])
        found = group.coalitions(Coalitions(np.full(len(removed), env), removed), 1).tolist()
        oracle, _ = env_from(cfg, DATA, population, state, env, ResNetEnv)
        inputs = [oracle.inputs(DATA.train, group.batches.indices(1, step)[env]) for step in steps]
        for left, worth in zip(coalitions, found, strict=True):
            oracle.measure(inputs, without=left)
            assert worth == pytest.approx(oracle.validate(DATA.val, without=left)[1]), (env, left)
        differ |= len(seeds) > 1 and len(set(found)) > 1
    assert differ
    population.close()


@pytest.mark.parametrize("plan", ["gather", nightly("masked")])
def test_a_resumed_population_goes_on_bit_for_bit(plan: str) -> None:
    settings = {"envs__plan": plan, "envs__group_size": 2}
    _, whole = populate(rows(every_state(), [0, 7, 14, 21]), torch.float32, **settings)
    whole.run_epoch(1, 0)
    _, resumed = populate(rows(every_state(), [1, 2, 3, 4]), torch.float32, **settings)
    resumed.load_state_dict(whole.state_dict())
    for epoch in (1, 2):
        for population in (whole, resumed):
            table = population.table
            table.stage[:, 1], table.blueprint[:, 1] = int(Stage.GERMINATED), epoch
            population.set_topology(table.stage, table.blueprint, table.style)
        one, other = (vars(population.run_epoch(1, epoch).measurements) for population in (whole, resumed))
        for name, value in one.items():
            assert torch.equal(value.nan_to_num(7e7), other[name].nan_to_num(7e7)), name
    state, again = whole.state_dict(), resumed.state_dict()
    for part in ("weights", "momentum", "buffers"):
        for name, tensor in state[part].items():
            assert torch.equal(tensor, again[part][name]), name
    for population in (whole, resumed):
        population.close()


@pytest.mark.parametrize("size", [nightly(1), 2])
def test_grouping_does_not_matter(size: int) -> None:
    columns = rows(every_state(), list(range(0, 45, 9)))
    results = []
    for group_size in (5, size):
        _, population = populate(columns, envs__group_size=group_size)
        results.append((population.run_epoch(1, 0).measurements, population.state_dict()))
        population.close()
    (one, state_one), (other, state_other) = results
    for name, value in vars(one).items():
        torch.testing.assert_close(getattr(other, name), value, equal_nan=True, rtol=1e-6, atol=1e-7)
    for name, value in state_one["weights"].items():
        torch.testing.assert_close(state_other["weights"][name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("channels", "residuals"), [((16, 32, 64), 3), ((8, 8), 1), ((12, 6, 6), 2)])
def test_parameters_are_those_of_the_formula(channels: tuple[int, ...], residuals: int) -> None:
    model = ResNet(channels, residuals, (3, 32, 32), 10)
    expected, before = 9 * 3 * channels[0] + 2 * channels[0], channels[0]
    for i, width in enumerate(channels):
        expected += 9 * before * width + 9 * width**2 * (2 * residuals - 1) + 2 * width * 2 * residuals
        expected += before * width + 2 * width if i or before != width else 0
        before = width
    expected += 10 * (before + 1)
    assert sum(spec.count for spec in model.specs().values()) == expected
    if channels == (16, 32, 64):
        assert expected == 272_474, "ResNet-20 with projections"
    assert [block.size for block in model.blocks] == [(32, 32), (16, 16), (8, 8)][: len(channels)]


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["host.blocks=2"], "host.blocks (--set): is for a resnet host, and host.family is cnn"),
        (["host.family=resnet", "host.kernel=3"], "host.kernel (--set): is for a cnn host, and"),
        (
            ["host.family=transformer"],
            "host.family = transformer: tiny is images, which a cnn or resnet host",
        ),
    ],
)
def test_options_of_the_other_architecture_are_refused(sets: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_task_defaults(load_sourced(sets=sets), "tiny", "images")
    assert words in str(caught.value)

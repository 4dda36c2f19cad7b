"""The stacked engine against sequential modules, in float64: losses, gradients, weights, contributions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.hosts import seed_pool as seeding
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.slot_plan import Topology
from tests.cases import nightly
from tests.trainer.hosts.plots import config, every_state, plant, rows, tiny
from tests.trainer.oracle import Env, env_from

torch.set_num_threads(1)
DATA = tiny()
Oracles = list[tuple[Env, dict[str, str]]]


def populate(columns: dict[str, Tensor], **changes: object) -> tuple[Config, Population]:
    cfg = config(columns["stage"].shape[0], **changes)
    population = Population(cfg, DATA, "cpu", dtype=torch.float64)
    plant(population, columns)
    table = population.table
    topology = Topology.of(table.stage, table.blueprint, table.style)
    at = 0
    for group in population.groups:
        group.plan_epoch(topology.rows(at, at + len(group)), 1, 0)
        at += len(group)
    return cfg, population


def oracles(cfg: Config, population: Population) -> Oracles:
    state = population.state_dict()
    return [env_from(cfg, DATA, population, state, env) for env in range(cfg.envs.count)]


CLIP = 0.05
"""Below the norm of some of the planted seeds' gradients and above that of others."""


APART = 0
"""Instead of `seeding.ALONE_MIN_NUMBERS`: all seeds with convolutions run one by one."""


@pytest.fixture(
    params=[
        ("gather", CLIP, APART, 1),
        ("masked", CLIP, seeding.ALONE_MIN_NUMBERS, 1),
        nightly(("gather", CLIP, seeding.ALONE_MIN_NUMBERS, 1)),
        nightly(("gather", 0.0, seeding.ALONE_MIN_NUMBERS, 1)),
        nightly(("gather", CLIP, APART, 2)),
        nightly(("masked", CLIP, seeding.ALONE_MIN_NUMBERS, 2)),
    ],
    ids=str,
)
def planted(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Config, Population]]:
    plan, clip, large, slot_rows = request.param
    monkeypatch.setattr(seeding, "ALONE_MIN_NUMBERS", large)
    columns = every_state(slots=3 * slot_rows)
    changes = {"seeds__max_grad_norm": clip, "host__slot_rows": slot_rows}
    cfg, population = populate(columns, envs__plan=plan, envs__group_size=len(columns["stage"]), **changes)
    yield cfg, population
    population.close()


def assert_close(a: Tensor, b: Tensor, what: str) -> None:
    torch.testing.assert_close(a, b.view_as(a), rtol=1e-8, atol=1e-10, msg=lambda m: f"{what}: {m}")


def about(population: Population, env: int) -> str:
    table = population.table
    cells = [
        f"stage {int(table.stage[env, s])} blueprint {int(table.blueprint[env, s])} "
        f"style {int(table.style[env, s])} alpha {float(table.alpha[env, s]):.2f}"
        for s in range(table.shape[1])
    ]
    return f"env {env} ({'; '.join(cells)})"


def test_every_state_blueprint_and_style_trains_as_modules_do(planted: tuple[Config, Population]) -> None:
    cfg, population = planted
    group = population.groups[0]
    sequential = oracles(cfg, population)
    for step in range(3):
        index = group.batches.indices(1, step)
        loss, _, gradients = group.gradients(*group.batches.at(1, step))
        group.optimizer.step(gradients)
        of, weights = population.pool.unpacked(gradients), population.pool.unpacked(group.weights)
        for env, (oracle, names_of) in enumerate(sequential):
            x, labels = oracle.inputs(DATA.train, index[env]), DATA.train.labels[index[env]]
            expected, _ = oracle.step(x, labels)
            where = f"step {step}, {about(population, env)}"
            assert_close(loss[env], expected, f"loss, {where}")
            for name, parameter in oracle.named_parameters():
                if name in oracle.measured:
                    assert_close(
                        of[names_of[name]][env], oracle.measured[name], f"gradient of {name}, {where}"
                    )
                weight = weights[names_of[name]][env].detach()
                assert_close(weight, parameter.detach(), f"{name}, {where}")


def test_an_epoch_of_a_population_is_that_of_modules(planted: tuple[Config, Population]) -> None:
    cfg, population = planted
    sequential = oracles(cfg, population)
    batches = population.groups[0].batches
    indices = [batches.indices(1, step) for step in range(cfg.task.batches_per_epoch)]
    measurements = population.run_epoch(1, 0).measurements
    test_loss, test_accuracy = population.test()
    for env, (oracle, _) in enumerate(sequential):
        seen = [(oracle.inputs(DATA.train, i[env]), DATA.train.labels[i[env]]) for i in indices]
        steps = [oracle.step(x, labels) for x, labels in seen]
        calibration = [x for x, _ in seen[-cfg.validation.calibration_batches :]]
        oracle.measure(calibration)
        loss, accuracy = oracle.validate(DATA.val)
        what = about(population, env)
        assert float(measurements.train_loss[env]) == pytest.approx(
            np.mean([s[0] for s in steps]), rel=1e-5
        ), what
        hits = sum(int(s[1]) for s in steps) / (len(steps) * cfg.task.batch_size)
        assert float(measurements.train_accuracy[env]) == pytest.approx(hits), what
        assert float(measurements.val_loss[env]) == pytest.approx(loss, rel=1e-5), what
        assert float(measurements.val_accuracy[env]) == pytest.approx(accuracy), what
        loss, on_test = oracle.validate(DATA.test)
        assert float(test_loss[env]) == pytest.approx(loss, rel=1e-5), what
        assert float(test_accuracy[env]) == pytest.approx(on_test), what
        for slot in range(len(population.slots)):
            measured = float(measurements.contribution[env, slot])
            if int(population.table.stage[env, slot]) in BLENDED:
                oracle.measure(calibration, without=[slot])
                without = oracle.validate(DATA.val, without=[slot])[1]
                assert measured == pytest.approx(accuracy - without, abs=1e-6), f"slot {slot}, {what}"
            else:
                assert np.isnan(measured), f"slot {slot}, {what}"
        for first, second in combinations(range(len(population.slots)), 2):
            measured = float(measurements.interaction[env, first, second])
            if np.isnan(measured):
                continue
            scores = {frozenset(): accuracy}
            for absent in ([first], [second], [first, second]):
                oracle.measure(calibration, without=absent)
                scores[frozenset(absent)] = oracle.validate(DATA.val, without=absent)[1]
            alone = scores[frozenset([first])] + scores[frozenset([second])]
            expected = accuracy - alone + scores[frozenset([first, second])]
            assert measured == pytest.approx(expected, abs=1e-6), f"slots {first}, {second}, {what}"
            assert measured == float(measurements.interaction[env, second, first])
    assert measurements.interaction.isfinite().any()


@pytest.mark.slow
def test_gradient_norms_are_those_of_the_last_step(planted: tuple[Config, Population]) -> None:
    cfg, population = planted
    sequential = oracles(cfg, population)
    batches = population.groups[0].batches
    measurements = population.run_epoch(1, 0).measurements
    for env, (oracle, _) in enumerate(sequential):
        for step in range(cfg.task.batches_per_epoch):
            index = batches.indices(1, step)[env]
            oracle.step(oracle.inputs(DATA.train, index), DATA.train.labels[index])
        host, seeds = [], {slot: [] for slot in range(len(population.slots))}
        for name, gradient in oracle.measured.items():
            part, slot = name.split(".")[:2]
            (seeds[int(slot)] if part in ("seed", "gate") else host).append(gradient.norm())
        what = about(population, env)
        expected = float(torch.stack(host).norm())
        assert float(measurements.host_grad_norm[env]) == pytest.approx(expected, rel=1e-5), what
        for slot, norms in seeds.items():
            measured = float(measurements.seed_grad_norm[env, slot])
            if norms:
                assert measured == pytest.approx(float(torch.stack(norms).norm()), rel=1e-5), what
            else:
                assert np.isnan(measured), f"slot {slot}, {what}"


@pytest.mark.parametrize("size", [2, nightly(1), nightly(5)])
def test_grouping_does_not_matter(size: int) -> None:
    columns = rows(every_state(), list(range(0, 63, 9)))
    results = []
    for group_size in (7, size):
        _, population = populate(columns, envs__group_size=group_size)
        population.run_epoch(1, 0)
        results.append((population.run_epoch(1, 1).measurements, population.state_dict()))
        population.close()
    (one, state_one), (other, state_other) = results
    for name, value in vars(one).items():
        torch.testing.assert_close(getattr(other, name), value, equal_nan=True, rtol=1e-6, atol=1e-7)
    for name, value in state_one["weights"].items():
        torch.testing.assert_close(state_other["weights"][name], value, rtol=1e-9, atol=1e-11)

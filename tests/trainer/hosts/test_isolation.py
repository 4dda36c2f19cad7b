"""Hosts do not feel each other, nor a seed that is not blended: bit for bit, in float32."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.seeds.image_blueprints import BLUEPRINTS
from tests.cases import nightly
from tests.trainer.hosts.plots import config, every_state, plant, rows

torch.set_num_threads(1)
DIGITS = load("digits")
SICK = 3
"""The env that does what it likes."""
USUAL = (("gather", "grouped", (8, 8, 8), 1), ("masked", "native", (4, 8, 16), 3))
SIZES = (((8, 8, 8), 1), ((4, 8, 16), 3), ((16, 32, 8), 3))
PRODUCT = ((*ways, *size) for *ways, size in product(("gather", "masked"), ("grouped", "native"), SIZES))
GROWN = [*USUAL, *(nightly(*case) for case in PRODUCT if case not in USUAL)]
"""Plan, convolution, channels and kernel: of each plan and convolution one by default."""


def run(
    columns: dict[str, Tensor],
    plan: str,
    channels: tuple[int, ...] = (8, 8, 8),
    kernel: int = 1,
    spoil: Callable[[Population], None] = lambda population: None,
    convolution: str = "grouped",
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Two epochs; what was measured, and the weights at the end."""
    cfg = config(
        columns["stage"].shape[0],
        channels,
        host__kernel=kernel,
        envs__plan=plan,
        envs__group_size=64,
        envs__convolution=convolution,
        task__batch_size=64,
    )
    population = Population(cfg, DIGITS, "cpu")
    plant(population, columns)
    spoil(population)
    population.run_epoch(1, 0)
    measurements = population.run_epoch(1, 1).measurements
    weights = {name: w.clone() for name, w in population.state_dict()["weights"].items()}
    population.close()
    return vars(measurements), weights


def same_but(env: int, one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, value in one.items():
        others = torch.arange(value.shape[0]) != env
        a, b = value[others], other[name][others]
        assert torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7)), name


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "convolution", "channels", "kernel"), GROWN)
def test_what_one_env_grows_changes_no_bit_of_another(
    plan: str, convolution: str, channels: tuple[int, ...], kernel: int
) -> None:
    columns = rows(every_state(), list(range(0, 56, 7)))
    changed = {name: values.clone() for name, values in columns.items()}
    for slot, (stage, alpha) in enumerate(
        [(Stage.HOLDING, 1.0), (Stage.TRAINING, 0.0), (Stage.DORMANT, 0.0)]
    ):
        changed["stage"][SICK, slot] = int(stage)
        changed["alpha"][SICK, slot] = alpha
        changed["blueprint"][SICK, slot] = 5 if stage != Stage.DORMANT else -1
        changed["pruning"][SICK, slot] = False
    plain = run(columns, plan, channels, kernel, convolution=convolution)
    other = run(changed, plan, channels, kernel, convolution=convolution)
    for one, two in zip(plain, other, strict=True):
        same_but(SICK, one, two)
    assert not torch.equal(plain[0]["train_loss"][SICK], other[0]["train_loss"][SICK])


@pytest.mark.parametrize(
    ("plan", "convolution"),
    [
        ("gather", "grouped"),
        ("masked", "native"),
        nightly("gather", "native"),
        nightly("masked", "grouped"),
    ],
)
def test_a_sick_env_infects_nobody(plan: str, convolution: str) -> None:
    columns = rows(every_state(), list(range(0, 56, 7)))

    def poison(population: Population) -> None:
        with torch.no_grad():
            population.groups[0].weights["block0.conv.weight"][SICK] = float("nan")

    plain = run(columns, plan, convolution=convolution)
    sick = run(columns, plan, spoil=poison, convolution=convolution)
    assert sick[0]["train_loss"][SICK].isnan()
    for one, two in zip(plain, sick, strict=True):
        same_but(SICK, one, two)


@pytest.mark.parametrize("plan", ["gather", nightly("masked")])
def test_isolated_seeds_do_not_change_how_a_host_trains(plan: str) -> None:
    n = 2 * len(BLUEPRINTS)
    blueprint = torch.arange(n).unsqueeze(1).expand(n, 3) % len(BLUEPRINTS)
    stage = torch.full((n, 3), int(Stage.TRAINING))
    stage[n // 2 :] = int(Stage.GERMINATED)
    columns = {
        "stage": stage,
        "blueprint": blueprint,
        "style": torch.arange(3).expand(n, 3),
        "alpha": torch.zeros(n, 3),
        "pruning": torch.zeros(n, 3, dtype=torch.bool),
    }
    empty = columns | {"stage": torch.zeros_like(stage), "blueprint": torch.full_like(stage, -1)}
    (grown, weights), (bare, bare_weights) = run(columns, plan), run(empty, plan)
    for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "host_grad_norm"):
        assert torch.equal(grown[name], bare[name]), name
    for name in (name for name in weights if name.startswith(("block", "head"))):
        assert torch.equal(weights[name], bare_weights[name]), name
    assert (grown["seed_grad_norm"] > 0).all(), "the seeds must learn nevertheless"


@pytest.mark.slow
@pytest.mark.parametrize("plan", [nightly("gather"), "masked"])
def test_nan_seed_at_alpha_zero_leaves_its_host_alone(plan: str) -> None:
    n = len(BLUEPRINTS)
    columns = {
        "stage": torch.full((n, 3), int(Stage.BLENDING)),
        "alpha": torch.zeros(n, 3),
        "blueprint": torch.arange(n).unsqueeze(1).expand(n, 3),
        "style": torch.arange(3).expand(n, 3),
        "pruning": torch.ones(n, 3, dtype=torch.bool),
    }
    empty = columns | {"stage": torch.zeros(n, 3, dtype=torch.int64), "blueprint": torch.full((n, 3), -1)}

    def poison(population: Population) -> None:
        with torch.no_grad():
            for group in population.groups:
                for name, weight in group.weights.items():
                    if name.startswith("r0c"):
                        weight[1:] = float("nan")

    (sick, weights), (bare, bare_weights) = run(columns, plan, spoil=poison), run(empty, plan)
    for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy", "host_grad_norm"):
        assert torch.equal(sick[name], bare[name]), name
    for name in (name for name in weights if name.startswith(("block", "head"))):
        assert torch.equal(weights[name], bare_weights[name]), name


def test_frozen_seed_keeps_its_weights_while_its_host_learns() -> None:
    n = len(BLUEPRINTS)
    columns = {
        "stage": torch.full((n, 3), int(Stage.BLENDING)),
        "alpha": torch.full((n, 3), 0.5),
        "blueprint": torch.arange(n).unsqueeze(1).expand(n, 3),
        "style": torch.arange(3).expand(n, 3),
        "pruning": torch.ones(n, 3, dtype=torch.bool),
    }
    before: dict[str, Tensor] = {}

    def remember(population: Population) -> None:
        before.update({k: w.clone() for k, w in population.state_dict()["weights"].items()})

    measurements, after = run(columns, "gather", spoil=remember)
    for name, weight in before.items():
        assert torch.equal(weight, after[name]) == name.startswith("r0c"), name
    assert measurements["seed_grad_norm"].isnan().all()
    assert (measurements["host_grad_norm"] > 0).all()

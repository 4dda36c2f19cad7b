"""Blueprints: shape, identity at birth with a gradient, parameter counts, independence of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.convolutions import GROUPED
from esper_overwatch.trainer.compute.stacked_ops import Init, Parameters, initialise
from esper_overwatch.trainer.seeds.image_blueprints import BLUEPRINTS, Blueprint, BlueprintError, verify
from esper_overwatch.trainer.seeds.registry import blueprint
from tests.trainer.oracle import make_seed

torch.set_num_threads(1)
SIZED = [blueprint(name, "cnn") for name in ("attention:width=3", "bottleneck:width=5")]
KINDS = [*BLUEPRINTS.values(), *SIZED]


def newborn(kind: Blueprint, rows: int, channels: int) -> Parameters:
    keys = rng.key(1, rng.Purpose.SEED, torch.arange(rows))
    return initialise(kind.specs(channels), keys, torch.float64)


def images(rows: int, channels: int, size: int = 4) -> Tensor:
    flat = rng.normal(rng.key(2, rng.Purpose.SEED), 3 * rows * channels * size * size, torch.float64)
    x = flat.view(3, rows * channels, size, size)
    return torch.relu(x).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("channels", [4, 8, 12, 16])
def test_a_newborn_is_the_identity_and_can_wake_up(kind: Blueprint, channels: int) -> None:
    weights = {name: w.requires_grad_() for name, w in newborn(kind, 2, channels).items()}
    x = images(2, channels).requires_grad_()
    y = kind.forward(x, weights, GROUPED)
    assert (y - x).abs().max() < 1e-6
    pull = rng.normal(rng.key(3, rng.Purpose.SEED), x.numel(), torch.float64).view_as(x)
    rate = 0.1
    for step in range(2):
        _, *gradients = torch.autograd.grad(kind.forward(x, weights, GROUPED), [x, *weights.values()], pull)
        moved = [name for name, g in zip(weights, gradients, strict=True) if g.abs().max() > 0]
        assert moved, f"step {step}: nothing learns"
        with torch.no_grad():
            for w, g in zip(weights.values(), gradients, strict=True):
                w -= rate * g
    assert set(moved) == set(weights), "from the second step on every tensor has a gradient"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_parameter_counts_are_those_of_the_modules(kind: Blueprint) -> None:
    for channels in (4, 8, 32):
        module = make_seed(kind.name, channels)
        assert kind.parameters(channels) == sum(p.numel() for p in module.parameters())


def test_a_residual_convolution_has_the_593_parameters_of_the_design() -> None:
    assert blueprint("conv_light", "cnn").parameters(8) == 593


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_newborns_of_different_keys_differ_where_they_are_random(kind: Blueprint) -> None:
    for name, spec in kind.specs(8).items():
        one, two = newborn(kind, 2, 8)[name]
        assert torch.equal(one, two) == (spec.fan_in == 0)
        if spec.fan_in:
            assert one.abs().max() <= spec.fan_in**-0.5


def test_an_unknown_blueprint_is_named_with_those_there_are() -> None:
    with pytest.raises(BlueprintError, match=r"'conv_lihgt' for a cnn host; there are norm, attention"):
        blueprint("conv_lihgt", "cnn")


def test_blueprint_that_breaks_its_contract_is_refused() -> None:
    halves = Blueprint(
        "halves", lambda c: {"gain": Init()}, lambda x, p, _: x[:, :, ::2], identity_at_birth=False
    )
    with pytest.raises(BlueprintError, match=r"halves turns .* a seed must keep the shape"):
        verify(halves, 8, (4, 4))
    doubles = Blueprint("doubles", lambda c: {"gain": Init()}, lambda x, p, _: 2 * x, identity_at_birth=True)
    with pytest.raises(BlueprintError, match="doubles claims to be the identity"):
        verify(doubles, 8, (4, 4))

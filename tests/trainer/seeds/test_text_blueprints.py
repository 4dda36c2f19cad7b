"""Blueprints for texts: identity at birth with a gradient, parameter counts, no look ahead."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.trainer.text_oracle import Attention as SelfAttention
from tests.trainer.text_oracle import Behind, Lora, Norm, mlp
from trainer.compute import rng
from trainer.compute.stacked_ops import Init, Parameters, conv, initialise
from trainer.seeds import image_blueprints as blueprints
from trainer.seeds import text_blueprints as causal
from trainer.seeds.image_blueprints import Blueprint, BlueprintError, verify
from trainer.seeds.registry import blueprint

torch.set_num_threads(1)
KINDS = list(causal.BLUEPRINTS.values())
MODULES = {
    "norm": Norm,
    "lora": Lora,
    "mlp": lambda c: Behind(mlp(c, 4 * c)),
    "attention": lambda c: Behind(SelfAttention(c, 1)),
}


def newborn(kind: Blueprint, rows: int, channels: int) -> Parameters:
    keys = rng.key(1, rng.Purpose.SEED, torch.arange(rows))
    return initialise(kind.specs(channels), keys, torch.float64)


def texts(rows: int, channels: int, width: int = 6) -> Tensor:
    flat = rng.normal(rng.key(2, rng.Purpose.SEED), 3 * rows * channels * width, torch.float64)
    return flat.view(3, rows * channels, width, 1).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("channels", [4, 24, 32])
def test_a_newborn_is_the_identity_and_can_wake_up(kind: Blueprint, channels: int) -> None:
    weights = {name: w.requires_grad_() for name, w in newborn(kind, 2, channels).items()}
    x = texts(2, channels).requires_grad_()
    assert (kind.forward(x, weights, conv) - x).abs().max() < 1e-6
    pull = rng.normal(rng.key(3, rng.Purpose.SEED), x.numel(), torch.float64).view_as(x)
    for step in range(2):
        _, *gradients = torch.autograd.grad(kind.forward(x, weights, conv), [x, *weights.values()], pull)
        moved = [name for name, g in zip(weights, gradients, strict=True) if g.abs().max() > 0]
        assert moved, f"step {step}: nothing learns"
        with torch.no_grad():
            for w, g in zip(weights.values(), gradients, strict=True):
                w -= 0.1 * g
    assert set(moved) == set(weights), "from the second step on every tensor has a gradient"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_parameter_counts_are_those_of_the_modules(kind: Blueprint) -> None:
    for channels in (4, 16, 40):
        assert kind.parameters(channels) == sum(p.numel() for p in MODULES[kind.name](channels).parameters())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_built_in_kinds_are_fit_for_a_text(kind: Blueprint) -> None:
    verify(kind, 16, (5, 1), causal=True)


@pytest.mark.parametrize("name", ["attention", "depthwise", "conv_light", "conv_heavy", "bottleneck"])
def test_what_looks_ahead_is_refused_in_a_text_host(name: str) -> None:
    kind = blueprints.BLUEPRINTS[name]
    verify(kind, 16, (5, 1))
    with pytest.raises(BlueprintError, match=f"blueprint {name} looks ahead"):
        verify(kind, 16, (5, 1), causal=True)


def test_what_begins_with_nonsense_is_refused() -> None:
    nan = Blueprint("nan", lambda c: {"gain": Init()}, lambda x, p, _: x / 0.0 * 0.0, identity_at_birth=False)
    with pytest.raises(BlueprintError, match="nan puts out NaN"):
        verify(nan, 8, (4, 4))


def test_a_family_has_blueprints_of_its_own() -> None:
    assert blueprint("norm", "cnn") is not blueprint("norm", "transformer")
    with pytest.raises(BlueprintError, match=r"'conv_light' for a transformer host; there are norm, lora, "):
        blueprint("conv_light", "transformer")
    with pytest.raises(BlueprintError, match="'lora' for a cnn host"):
        blueprint("lora", "cnn")

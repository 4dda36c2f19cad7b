"""Blueprints for texts: identity at birth with a gradient, parameter counts, no look ahead."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.convolutions import GROUPED
from esper_overwatch.trainer.compute.stacked_ops import Init, Parameters, initialise
from esper_overwatch.trainer.seeds import image_blueprints as blueprints
from esper_overwatch.trainer.seeds import text_blueprints as causal
from esper_overwatch.trainer.seeds.image_blueprints import Blueprint, BlueprintError, verify
from esper_overwatch.trainer.seeds.registry import Family, blueprint
from tests.trainer.text_oracle import make_text_seed

torch.set_num_threads(1)
KINDS = list(causal.BLUEPRINTS.values())
LEARNING_KINDS = [kind for kind in KINDS if kind.name != "noop"]


def newborn(kind: Blueprint, rows: int, channels: int) -> Parameters:
    keys = rng.key(1, rng.Purpose.SEED, torch.arange(rows))
    return initialise(kind.specs(channels), keys, torch.float64)


def texts(rows: int, channels: int, width: int = 6) -> Tensor:
    flat = rng.normal(rng.key(2, rng.Purpose.SEED), 3 * rows * channels * width, torch.float64)
    return flat.view(3, rows * channels, width, 1).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", LEARNING_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("channels", [4, 24, 32])
def test_a_newborn_is_the_identity_and_can_wake_up(kind: Blueprint, channels: int) -> None:
    weights = {name: w.requires_grad_() for name, w in newborn(kind, 2, channels).items()}
    x = texts(2, channels).requires_grad_()
    assert (kind.forward(x, weights, GROUPED) - x).abs().max() < 1e-6
    pull = rng.normal(rng.key(3, rng.Purpose.SEED), x.numel(), torch.float64).view_as(x)
    for step in range(2):
        _, *gradients = torch.autograd.grad(kind.forward(x, weights, GROUPED), [x, *weights.values()], pull)
        moved = [name for name, g in zip(weights, gradients, strict=True) if g.abs().max() > 0]
        assert moved, f"step {step}: nothing learns"
        with torch.no_grad():
            for w, g in zip(weights.values(), gradients, strict=True):
                w -= 0.1 * g
    assert set(moved) == set(weights), "from the second step on every tensor has a gradient"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_parameter_counts_are_those_of_the_modules(kind: Blueprint) -> None:
    for channels in (4, 16, 40):
        module = make_text_seed(kind.name, channels, 6)
        assert kind.parameters(channels) == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("norm", 769),
        ("lora:rank=8", 6_144),
        ("lora_large:rank=32", 24_576),
        ("attention:head_width=96", 589_824),
        ("mlp_small", 589_824),
        ("mlp", 1_179_648),
        ("flex_attention", 589_824),
        ("noop", 0),
    ],
)
def test_all_eight_kinds_have_these_numbers_at_384(name: str, count: int) -> None:
    assert blueprint(name, "transformer").parameters(384) == count


@pytest.mark.parametrize(
    ("name", "family", "words"),
    [
        ("lora:size=3", "transformer", "lora:size=3: write lora:rank=N, N an integer from 1 to 1024"),
        ("lora:rank=0", "transformer", "write lora:rank=N"),
        ("lora:rank=1025", "transformer", "write lora:rank=N"),
        ("lora:rank=-4", "transformer", "write lora:rank=N"),
        ("lora:rank=2.5", "transformer", "write lora:rank=N"),
        ("lora:rank=nan", "transformer", "write lora:rank=N"),
        ("lora:rank=" + "9" * 5000, "transformer", "write lora:rank=N"),
        ("lora:rank=٣", "transformer", "write lora:rank=N"),
        ("lora:", "transformer", "write lora:rank=N"),
        ("norm:rank=3", "transformer", "norm comes in one size; leave :rank=3 out"),
        ("lora:rank=3", "cnn", "no blueprint named 'lora:rank=3' for a cnn host"),
        ("bottleneck:rank=3", "cnn", "write bottleneck:width=N"),
        ("oak:rank=3", "transformer", "no blueprint named 'oak:rank=3'"),
    ],
)
def test_sizes_that_cannot_be_are_refused(name: str, family: Family, words: str) -> None:
    with pytest.raises(BlueprintError, match=words):
        blueprint(name, family)


def test_attention_heads_must_divide_the_width() -> None:
    kind = blueprint("attention:head_width=5", "transformer")
    assert kind.parameters(20) == 4 * 20 * 20
    with pytest.raises(
        BlueprintError, match=r"attention:head_width=5: a head must divide the width of .* 16"
    ):
        kind.specs(16)


def test_a_window_hides_what_lies_before_it() -> None:
    kind = blueprint("flex_attention:window=3", "transformer")
    weights = {
        name: rng.normal(rng.key(4, rng.Purpose.SEED, i), w.numel(), w.dtype).view_as(w)
        for i, (name, w) in enumerate(newborn(kind, 2, 16).items())
    }
    x = texts(2, 16, width=8)
    changed = x.clone()
    changed[:, :, 2] += 1.0
    moved = (
        (kind.forward(changed, weights, GROUPED) - kind.forward(x, weights, GROUPED)).abs().amax((0, 1, 3))
    )
    assert (moved > 0).tolist() == [False, False, True, True, True, False, False, False]


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

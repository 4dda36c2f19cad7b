"""The kinds of seeds for images: small modules that keep the shape of their slot, run for k rows at once.

What every kind must do is checked by `verify`. Those for texts are in `text_blueprints`, third parties' in
`plugin_blueprints`.

Every one is the identity at birth and yet has a gradient from the first step: either its branch is scaled
by a `gain` that begins at 0 (ReZero: Bachlechner et al., 2021), which itself gets a gradient, or its last
linear layer begins at 0 with something other than 0 in front of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.compute import native_seeds, rng
from esper_overwatch.trainer.compute.branches import scaled, squashed, towards_group_norm
from esper_overwatch.trainer.compute.convolutions import GROUPED, Conv
from esper_overwatch.trainer.compute.stacked_ops import (
    Init,
    Parameters,
    group_norm,
    initialise,
    linear,
    pooled,
)

Specs = dict[str, Init]
Size = tuple[int, int]
"""H, W of a slot's map."""


class BlueprintError(EsperError):
    """A blueprint is unknown or does not do what it promises."""

    exit_code = 9


@dataclass(frozen=True)
class Blueprint:
    """A kind of seed."""

    name: str
    specs: Callable[[int], Specs]
    """Tensors of one seed in a slot with that number of channels, in the order in which they are drawn."""
    forward: Callable[[Tensor, Parameters, Conv], Tensor]
    """x [B, k*C, H, W], tensors [k, ...] and how to convolve -> [B, k*C, H, W]; row i uses the i-th seed's
    tensors alone."""
    identity_at_birth: bool
    convolves: bool = True
    """It has convolutions or matrix products, which torch runs by other kernels for one network."""
    layers: Callable[[int], list[Layer]] | None = None
    """What it consists of in a slot with that number of channels; None where our own kernel cannot run it."""
    draw: Callable[[Tensor, torch.dtype], Parameters] | None = None
    """Tensors of newborns by their keys (int64 [k]); None = as `specs` describes."""
    fit: Callable[[int, Size], Blueprint] | None = None
    """Makes the blueprint for a slot's channels and size; None: it suits all slots."""
    change: Callable[[Tensor, Parameters, Conv], Tensor] | None = None
    """What `forward` adds to x, where that is known; see `added`."""

    origin: str = ""
    """Package of a third party's blueprint."""

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"blueprint {self.name}" + (f" ({self.origin})" if self.origin else "")

    def at(self, channels: int, size: Size) -> Blueprint:
        """The blueprint for one slot."""
        return self if self.fit is None else self.fit(channels, size)

    def newborn(self, channels: int, keys: Tensor, dtype: torch.dtype) -> Parameters:
        """Fresh tensors [k, ...] of k seeds, each a function of its own key (int64 [k])."""
        if self.draw is not None:
            return self.draw(keys, dtype)
        return initialise(self.specs(channels), keys, dtype)

    def parameters(self, channels: int) -> int:
        """Numbers that one seed adds to its host."""
        return sum(spec.count for spec in self.specs(channels).values())


@dataclass(frozen=True)
class SizedBlueprint:
    """A kind of seed in several sizes: `name:option=value` where the blueprints of a run are named."""

    option: str
    maximum: int
    """Largest value of the option; the least is 1."""
    make: Callable[..., Blueprint]
    """Makes the blueprint from `name`, as the run names it, and `chosen`, the option's value; 0 = its
    default."""


@dataclass(frozen=True)
class Layer:
    """A layer of a kind of seed."""

    kind: Literal["convolution", "depthwise", "norm", "attention"]
    inputs: int
    outputs: int
    """Channels; with attention, how far it squeezes them."""
    kernel: int = 0
    name: str = ""
    """Of a convolution's weight."""
    norm: str = ""
    """Of the group norm behind a convolution, and a ReLU behind that; empty = neither."""
    is_residual: bool = False
    """What a convolution makes is multiplied by `gain` and added to the seed's input."""

    def specs(self) -> Specs:
        """Its tensors, in the order in which they are drawn."""
        specs: Specs = {}
        if self.kind == "attention":
            return {
                "squeeze.weight": Init((self.outputs, self.inputs), fan_in=self.inputs),
                "squeeze.bias": Init((self.outputs,), fan_in=self.inputs),
                "excite.weight": Init((self.inputs, self.outputs)),
                "excite.bias": Init((self.inputs,)),
            }
        if self.kernel:
            under = (1 if self.kind == "depthwise" else self.inputs), self.kernel, self.kernel
            specs[f"{self.name}.weight"] = Init((self.outputs, *under), fan_in=math.prod(under))
        if self.norm:
            specs |= {
                f"{self.norm}.weight": Init((self.outputs,), fill=1.0),
                f"{self.norm}.bias": Init((self.outputs,)),
            }
        return specs | ({"gain": Init()} if self.is_residual else {})

    def forward(self, x: Tensor, p: Parameters, conv: Conv) -> Tensor:
        """What it makes of x, by torch; of the last layer what the seed adds to its input."""
        if self.kind == "attention":
            return _attention_change(x, p)
        if self.kind == "norm":
            return towards_group_norm(x, *_norm_of(p, self.norm), p["gain"])
        x = conv(x, p[f"{self.name}.weight"], groups=self.inputs if self.kind == "depthwise" else 1)
        if self.norm:
            x = group_norm(x, *_norm_of(p, self.norm))
        if self.is_residual:
            return scaled(x, p["gain"], rectified=bool(self.norm))
        return torch.relu(x) if self.norm else x

    def places(self, place: dict[str, int]) -> native_seeds.LayerPlaces:
        """The layer as our own kernel takes it.

        Args:
            place: of each tensor among a seed's numbers.
        """
        names = (f"{self.name}.weight", f"{self.norm}.weight", f"{self.norm}.bias", "gain")
        if self.kind == "attention":
            names = ("squeeze.weight", "squeeze.bias", "excite.weight", "excite.bias")
        elif not self.is_residual:
            names = (*names[:3], "")
        code = _LAYER_CODES[self.kind]
        found = (place.get(name, -1) for name in names)
        return native_seeds.LayerPlaces(code, self.inputs, self.outputs, self.kernel, *found)


_LAYER_CODES = {
    "convolution": native_seeds.CONVOLUTION,
    "depthwise": native_seeds.DEPTHWISE,
    "norm": native_seeds.NORM,
    "attention": native_seeds.ATTENTION,
}


def _norm_of(p: Parameters, name: str) -> tuple[Tensor, Tensor]:
    return p[f"{name}.weight"], p[f"{name}.bias"]


def _attention_change(x: Tensor, p: Parameters) -> Tensor:
    """Squeeze and excitation (Hu et al., 2018), scaled so that channels begin at 1 and reach 0..2."""
    n = p["squeeze.weight"].shape[0]
    hidden = torch.relu(linear(pooled(x, n), p["squeeze.weight"], p["squeeze.bias"]))
    return squashed(x, linear(hidden, p["excite.weight"], p["excite.bias"]))


def added(
    name: str,
    specs: Callable[[int], Specs],
    change: Callable[[Tensor, Parameters, Conv], Tensor],
    *,
    convolves: bool = True,
    layers: Callable[[int], list[Layer]] | None = None,
) -> Blueprint:
    """A kind of seed that adds something to its input."""
    return Blueprint(
        name,
        specs,
        lambda x, p, conv: x + change(x, p, conv),
        identity_at_birth=True,
        change=change,
        convolves=convolves,
        layers=layers,
    )


def _of_layers(name: str, layers: Callable[[int], list[Layer]], *, convolves: bool = True) -> Blueprint:
    """A blueprint whose seeds are these layers, given the channels of their slot."""

    def specs(channels: int) -> Specs:
        return {name: spec for layer in layers(channels) for name, spec in layer.specs().items()}

    def change(x: Tensor, p: Parameters, conv: Conv) -> Tensor:
        networks = next(iter(p.values())).shape[0]
        for layer in layers(x.shape[1] // networks):
            x = layer.forward(x, p, conv)
        return x

    return added(name, specs, change, convolves=convolves, layers=layers)


def _norm(c: int) -> list[Layer]:
    return [Layer("norm", c, c, norm="norm", is_residual=True)]


def _depthwise(c: int) -> list[Layer]:
    """Depthwise separable convolution (Chollet, 2017)."""
    return [
        Layer("depthwise", c, c, 3, "depth"),
        Layer("convolution", c, c, 1, "point", norm="norm", is_residual=True),
    ]


def _conv(c: int, kernel: int) -> list[Layer]:
    return [Layer("convolution", c, c, kernel, "conv", norm="norm", is_residual=True)]


def _heavy(c: int) -> list[Layer]:
    """The two convolutions of a residual block (He et al., 2016)."""
    return [
        Layer("convolution", c, c, 3, "first", norm="norm1"),
        Layer("convolution", c, c, 3, "second", norm="norm2", is_residual=True),
    ]


def _bottleneck(c: int, chosen: int) -> list[Layer]:
    narrow = chosen or max(2, c // 4)
    return [
        Layer("convolution", c, narrow, 1, "reduce", norm="norm1"),
        Layer("convolution", narrow, narrow, 3, "conv", norm="norm2"),
        Layer("convolution", narrow, c, 1, "expand", is_residual=True),
    ]


def _make_attention(name: str, chosen: int) -> Blueprint:
    return _of_layers(name, lambda c: [Layer("attention", c, chosen or max(4, c // 4))])


def _make_bottleneck(name: str, chosen: int) -> Blueprint:
    return _of_layers(name, partial(_bottleneck, chosen=chosen))


SIZED_BLUEPRINTS: dict[str, SizedBlueprint] = {
    "attention": SizedBlueprint("width", 4096, _make_attention),
    "bottleneck": SizedBlueprint("width", 4096, _make_bottleneck),
}

BLUEPRINTS: dict[str, Blueprint] = {
    b.name: b
    for b in (
        _of_layers("norm", _norm, convolves=False),
        _make_attention("attention", 0),
        _of_layers("depthwise", _depthwise),
        _make_bottleneck("bottleneck", 0),
        _of_layers("conv_small", partial(_conv, kernel=1)),
        _of_layers("conv_light", partial(_conv, kernel=3)),
        _of_layers("conv_heavy", _heavy),
    )
}


def verify(kind: Blueprint, channels: int, size: Size, *, causal: bool = False) -> None:
    """Run a newborn seed once.

    It must keep the shape, put out finite numbers, be the identity where it claims to be and, in a causal
    host, not look ahead.

    Raises:
        BlueprintError: it does not.
    """
    dtype = torch.float64 if kind.draw is None else torch.float32
    weights = kind.newborn(channels, rng.key(0, rng.Purpose.SEED, torch.arange(2)), dtype)
    count = 2 * 2 * channels * size[0] * size[1]
    x = rng.normal(rng.key(0, rng.Purpose.SEED, 2), count, dtype)
    x = x.view(2, 2 * channels, *size).contiguous(memory_format=torch.channels_last)
    y = kind.forward(x, weights, GROUPED)
    if y.shape != x.shape:
        raise BlueprintError(
            f"{kind.title} turns {_seen(x, 2)} into {_seen(y, 2)}; a seed must keep the shape"
        )
    if not y.isfinite().all():
        raise BlueprintError(f"{kind.title} puts out NaN or infinity at birth")
    if kind.identity_at_birth and (y - x).abs().max() > 1e-6:
        raise BlueprintError(f"{kind.title} claims to be the identity at birth and is not")
    if causal:
        _verify_causal(kind, x, weights)


def _seen(x: Tensor, rows: int) -> tuple[int, ...]:
    """The shape of one seed's input."""
    return (x.shape[0], x.shape[1] // rows, *x.shape[2:])


def _verify_causal(kind: Blueprint, x: Tensor, weights: Parameters) -> None:
    """With weights other than those of birth, no position may depend on a later one."""
    keys = rng.key(0, rng.Purpose.SEED, 3, torch.arange(len(weights)))
    grown = {
        name: w + 0.3 * rng.normal(key, w.numel(), w.dtype).view_as(w)
        for key, (name, w) in zip(keys, weights.items(), strict=True)
    }
    half = x.shape[2] // 2
    changed = x.clone()
    changed[:, :, half:] = changed[:, :, half:].flip(2) - 1.0
    before, after = (kind.forward(tokens, grown, GROUPED)[:, :, :half] for tokens in (x, changed))
    if (before - after).abs().max() > 1e-5:
        raise BlueprintError(
            f"{kind.title} looks ahead: a position depends on later ones; a text host cannot use it"
        )

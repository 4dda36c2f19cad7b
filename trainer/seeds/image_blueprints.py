"""The kinds of seeds for images: small modules that keep the shape of their slot, run for k rows at once.

What every kind must do is checked by `verify`. Those for texts are in `text_blueprints`, third parties' in
`plugin_blueprints`.

Every one is the identity at birth and yet has a gradient from the first step: either its branch is scaled
by a `gain` that begins at 0 (ReZero: Bachlechner et al., 2021), which itself gets a gradient, or its last
linear layer begins at 0 with something other than 0 in front of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.convolutions import GROUPED, Conv
from esper_overwatch.trainer.compute.stacked_ops import (
    Init,
    Parameters,
    affine,
    initialise,
    linear,
    pooled,
    residual,
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
    multiplies: bool = True
    """Some of these are not for `Conv`, whose own kernel runs one network as it runs several."""
    draw: Callable[[Tensor, torch.dtype], Parameters] | None = None
    """Tensors of newborns by their keys (int64 [k]); None = as `specs` describes."""
    fit: Callable[[int, Size], Blueprint] | None = None
    """Makes the blueprint for a slot's channels and size; None: it suits all slots."""

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


def _norm_specs(name: str, channels: int) -> Specs:
    return {f"{name}.weight": Init((channels,), fill=1.0), f"{name}.bias": Init((channels,))}


def _norm_of(p: Parameters, name: str = "norm") -> tuple[Tensor, Tensor]:
    return p[f"{name}.weight"], p[f"{name}.bias"]


def _conv_init(outputs: int, inputs: int, kernel: int) -> Init:
    return Init((outputs, inputs, kernel, kernel), fan_in=inputs * kernel * kernel)


def _norm(c: int) -> Specs:
    return {**_norm_specs("norm", c), "gain": Init()}


def _norm_forward(x: Tensor, p: Parameters, conv: Conv) -> Tensor:
    return conv.towards_group_norm(x, p["norm.weight"], p["norm.bias"], p["gain"])


def _attention(c: int, chosen: int = 0) -> Specs:
    hidden = chosen or max(4, c // 4)
    return {
        "squeeze.weight": Init((hidden, c), fan_in=c),
        "squeeze.bias": Init((hidden,), fan_in=c),
        "excite.weight": Init((c, hidden)),
        "excite.bias": Init((c,)),
    }


def _attention_forward(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
    """Squeeze and excitation (Hu et al., 2018), scaled so that channels begin at 1 and reach 0..2."""
    n = p["squeeze.weight"].shape[0]
    hidden = torch.relu(linear(pooled(x, n), p["squeeze.weight"], p["squeeze.bias"]))
    weights = 2.0 * torch.sigmoid(linear(hidden, p["excite.weight"], p["excite.bias"]))
    return affine(x, weights.transpose(0, 1).reshape(x.shape[0], -1))


def _depthwise(c: int) -> Specs:
    return {
        "depth.weight": _conv_init(c, 1, 3),
        "point.weight": _conv_init(c, c, 1),
        **_norm_specs("norm", c),
        "gain": Init(),
    }


def _depthwise_forward(x: Tensor, p: Parameters, conv: Conv) -> Tensor:
    """Depthwise separable convolution (Chollet, 2017)."""
    y = conv(x, p["depth.weight"], groups=p["depth.weight"].shape[1])
    return conv.normed_residual(y, p["point.weight"], *_norm_of(p), x, p["gain"])


def _conv(kernel: int) -> Callable[[int], Specs]:
    return lambda c: {"conv.weight": _conv_init(c, c, kernel), **_norm_specs("norm", c), "gain": Init()}


def _conv_forward(x: Tensor, p: Parameters, conv: Conv) -> Tensor:
    return conv.normed_residual(x, p["conv.weight"], *_norm_of(p), x, p["gain"])


def _heavy(c: int) -> Specs:
    return {
        "first.weight": _conv_init(c, c, 3),
        **_norm_specs("norm1", c),
        "second.weight": _conv_init(c, c, 3),
        **_norm_specs("norm2", c),
        "gain": Init(),
    }


def _heavy_forward(x: Tensor, p: Parameters, conv: Conv) -> Tensor:
    """The two convolutions of a residual block (He et al., 2016)."""
    y = conv.group_normed(x, p["first.weight"], *_norm_of(p, "norm1"))
    return conv.normed_residual(y, p["second.weight"], *_norm_of(p, "norm2"), x, p["gain"])


def _bottleneck(c: int, chosen: int = 0) -> Specs:
    narrow = chosen or max(2, c // 4)
    return {
        "reduce.weight": _conv_init(narrow, c, 1),
        **_norm_specs("norm1", narrow),
        "conv.weight": _conv_init(narrow, narrow, 3),
        **_norm_specs("norm2", narrow),
        "expand.weight": _conv_init(c, narrow, 1),
        "gain": Init(),
    }


def _bottleneck_forward(x: Tensor, p: Parameters, conv: Conv) -> Tensor:
    y = conv.group_normed(x, p["reduce.weight"], *_norm_of(p, "norm1"))
    y = conv.group_normed(y, p["conv.weight"], *_norm_of(p, "norm2"))
    return residual(x, conv(y, p["expand.weight"]), p["gain"])


def _make_attention(name: str, chosen: int) -> Blueprint:
    return Blueprint(name, partial(_attention, chosen=chosen), _attention_forward, identity_at_birth=True)


def _make_bottleneck(name: str, chosen: int) -> Blueprint:
    return Blueprint(
        name,
        partial(_bottleneck, chosen=chosen),
        _bottleneck_forward,
        identity_at_birth=True,
        multiplies=False,
    )


SIZED_BLUEPRINTS: dict[str, SizedBlueprint] = {
    "attention": SizedBlueprint("width", 4096, _make_attention),
    "bottleneck": SizedBlueprint("width", 4096, _make_bottleneck),
}

BLUEPRINTS: dict[str, Blueprint] = {
    b.name: b
    for b in (
        Blueprint("norm", _norm, _norm_forward, identity_at_birth=True, convolves=False),
        _make_attention("attention", 0),
        Blueprint("depthwise", _depthwise, _depthwise_forward, identity_at_birth=True, multiplies=False),
        _make_bottleneck("bottleneck", 0),
        Blueprint("conv_small", _conv(1), _conv_forward, identity_at_birth=True, multiplies=False),
        Blueprint("conv_light", _conv(3), _conv_forward, identity_at_birth=True, multiplies=False),
        Blueprint("conv_heavy", _heavy, _heavy_forward, identity_at_birth=True, multiplies=False),
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

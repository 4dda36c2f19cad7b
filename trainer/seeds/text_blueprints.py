"""The kinds of seeds for texts: no position sees those that come after it.

A text is a map of T rows and one column. Like the kinds for images, every one is the identity at birth and
has a gradient from the first step: its last linear layer begins at 0, or its branch has a `gain` that does.
(`noop` has nothing to learn.)
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor

from esper_overwatch.trainer.compute.branches import towards
from esper_overwatch.trainer.compute.convolutions import Conv
from esper_overwatch.trainer.compute.stacked_ops import (
    Init,
    Parameters,
    affine,
    causal_attention,
    from_matrices,
    layer_norm,
    to_channels,
    to_matrices,
    to_rows,
)

from .image_blueprints import Blueprint, BlueprintError, SizedBlueprint, Specs, added

HEAD_WIDTH = 16
"""Width of an attention head, where it divides the channels."""
WINDOWS_PER_CONTEXT = 4
"""Windows that the context has in flex_attention, where no window is chosen."""
MLP_EXPANSION, SMALL_MLP_EXPANSION = 4, 2
"""Hidden width of an MLP in channels."""
CHANNELS_PER_LORA_RANK, CHANNELS_PER_LARGE_LORA_RANK = 8, 2
"""Channels per rank of a low-rank adapter."""


def _rows(p: Parameters, name: str) -> int:
    return p[name].shape[0]


def _norm(c: int) -> Specs:
    return {"norm.weight": Init((c,), fill=1.0), "norm.bias": Init((c,)), "gain": Init()}


def _towards_norm(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
    """A step towards the layer norm of each position."""
    normed = to_channels(layer_norm(to_rows(x, _rows(p, "gain"))))
    return towards(x, affine(normed, p["norm.weight"].flatten(), p["norm.bias"].flatten()), p["gain"])


def _noop(_: int) -> Specs:
    return {}


def _noop_forward(x: Tensor, _p: Parameters, _conv: Conv) -> Tensor:
    """Nothing: what a seed without effect earns is what the rewards pay for nothing."""
    return x


def _make_lora(name: str, channels_per_rank: int, chosen: int) -> Blueprint:
    def specs(c: int) -> Specs:
        rank = chosen or max(2, c // channels_per_rank)
        return {"down": Init((rank, c), fan_in=c), "up": Init((c, rank))}

    return added(name, specs, _lora)


def _lora(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
    """Low-rank adapter (Hu et al., 2022)."""
    h = to_matrices(x, _rows(p, "up"))
    return from_matrices(h @ p["down"].mT @ p["up"].mT, x.shape)


def _attention(c: int) -> Specs:
    return {"in": Init((3 * c, c), fan_in=c), "out": Init((c, c))}


def _attend(x: Tensor, p: Parameters, heads: int, window: int) -> Tensor:
    """Self-attention behind a layer norm (Vaswani et al., 2017)."""
    h = layer_norm(to_matrices(x, _rows(p, "out")))
    out = causal_attention(h, p["in"], heads, x.shape[2], window)
    return from_matrices(out @ p["out"].mT, x.shape)


def _count_heads(channels: int, width: int) -> int:
    return channels // width if channels % width == 0 else 1


def _make_attention(name: str, chosen: int) -> Blueprint:
    def specs(c: int) -> Specs:
        if chosen and c % chosen:
            raise BlueprintError(f"blueprint {name}: a head must divide the width of the host, {c}")
        return _attention(c)

    def change(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
        return _attend(x, p, _count_heads(p["out"].shape[1], chosen or HEAD_WIDTH), window=0)

    return added(name, specs, change)


def _make_flex_attention(name: str, chosen: int) -> Blueprint:
    def change(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
        window = chosen or max(1, x.shape[2] // WINDOWS_PER_CONTEXT)
        return _attend(x, p, _count_heads(p["out"].shape[1], HEAD_WIDTH), window)

    return added(name, _attention, change)


def _make_mlp(name: str, expansion: int, chosen: int) -> Blueprint:
    def specs(c: int) -> Specs:
        hidden = (chosen or expansion) * c
        return {"in": Init((hidden, c), fan_in=c), "out": Init((c, hidden))}

    return added(name, specs, _mlp)


def _mlp(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
    """The MLP of a transformer's block, behind a layer norm."""
    h = layer_norm(to_matrices(x, _rows(p, "out")))
    hidden = F.gelu(h @ p["in"].mT, approximate="tanh")
    return from_matrices(hidden @ p["out"].mT, x.shape)


SIZED_BLUEPRINTS: dict[str, SizedBlueprint] = {
    "lora": SizedBlueprint("rank", 1024, partial(_make_lora, channels_per_rank=CHANNELS_PER_LORA_RANK)),
    "lora_large": SizedBlueprint(
        "rank", 1024, partial(_make_lora, channels_per_rank=CHANNELS_PER_LARGE_LORA_RANK)
    ),
    "attention": SizedBlueprint("head_width", 1024, _make_attention),
    "flex_attention": SizedBlueprint("window", 65536, _make_flex_attention),
    "mlp_small": SizedBlueprint("expansion", 64, partial(_make_mlp, expansion=SMALL_MLP_EXPANSION)),
    "mlp": SizedBlueprint("expansion", 64, partial(_make_mlp, expansion=MLP_EXPANSION)),
}

BLUEPRINTS: dict[str, Blueprint] = {
    b.name: b
    for b in (
        added("norm", _norm, _towards_norm, convolves=False),
        *(sized.make(name=name, chosen=0) for name, sized in SIZED_BLUEPRINTS.items()),
        Blueprint("noop", _noop, _noop_forward, identity_at_birth=True, convolves=False),
    )
}
DEFAULT_BLUEPRINTS = ("norm", "lora", "attention", "mlp")
"""Blueprints of a text where no others are asked for."""

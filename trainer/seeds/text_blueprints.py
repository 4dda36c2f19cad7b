"""The kinds of seeds for texts: no position sees those that come after it.

A text is a map of T rows and one column. Like the kinds for images, every one is the identity at birth and
has a gradient from the first step: its last linear layer begins at 0, or its branch has a `gain` that does.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from trainer.compute.stacked_ops import (
    Conv,
    Init,
    Parameters,
    affine,
    causal_attention,
    from_matrices,
    layer_norm,
    residual,
    to_channels,
    to_matrices,
    to_rows,
)

from .image_blueprints import Blueprint, Specs

HEAD_WIDTH = 16
"""Of an attention head, where it divides the channels."""
MLP_EXPANSION = 4
"""Hidden width of an MLP in channels."""
CHANNELS_PER_LORA_RANK = 8
"""Channels per rank of a low-rank adapter."""


def _rows(p: Parameters, name: str) -> int:
    return p[name].shape[0]


def _norm(c: int) -> Specs:
    return {"norm.weight": Init((c,), fill=1.0), "norm.bias": Init((c,)), "gain": Init()}


def _norm_forward(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
    """Layer norm of each position."""
    normed = to_channels(layer_norm(to_rows(x, _rows(p, "gain"))))
    scaled = affine(normed, p["norm.weight"].flatten(), p["norm.bias"].flatten())
    return residual(x, scaled - x, p["gain"])


def _lora(c: int) -> Specs:
    rank = max(2, c // CHANNELS_PER_LORA_RANK)
    return {"down": Init((rank, c), fan_in=c), "up": Init((c, rank))}


def _lora_forward(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
    """Low-rank adapter (Hu et al., 2022)."""
    h = to_matrices(x, _rows(p, "up"))
    return x + from_matrices(h @ p["down"].mT @ p["up"].mT, x.shape)


def _attention(c: int) -> Specs:
    return {"in": Init((3 * c, c), fan_in=c), "out": Init((c, c))}


def _attention_forward(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
    """Self-attention behind a layer norm (Vaswani et al., 2017)."""
    channels = p["out"].shape[1]
    heads = channels // HEAD_WIDTH if channels % HEAD_WIDTH == 0 else 1
    h = layer_norm(to_matrices(x, _rows(p, "out")))
    return x + from_matrices(causal_attention(h, p["in"], heads, x.shape[2]) @ p["out"].mT, x.shape)


def _mlp(c: int) -> Specs:
    return {"in": Init((MLP_EXPANSION * c, c), fan_in=c), "out": Init((c, MLP_EXPANSION * c))}


def _mlp_forward(x: Tensor, p: Parameters, _conv: Conv) -> Tensor:
    """The MLP of a transformer's block, behind a layer norm."""
    h = layer_norm(to_matrices(x, _rows(p, "out")))
    hidden = F.gelu(h @ p["in"].mT, approximate="tanh")
    return x + from_matrices(hidden @ p["out"].mT, x.shape)


BLUEPRINTS: dict[str, Blueprint] = {
    b.name: b
    for b in (
        Blueprint("norm", _norm, _norm_forward, identity_at_birth=True, convolves=False),
        Blueprint("lora", _lora, _lora_forward, identity_at_birth=True),
        Blueprint("attention", _attention, _attention_forward, identity_at_birth=True),
        Blueprint("mlp", _mlp, _mlp_forward, identity_at_birth=True),
    )
}

"""The transformer host: a GPT that predicts each next token, with a slot behind each block.

A block is causal self-attention and an MLP, each behind a layer norm and added to the residual stream
(Radford et al., "Language models are unsupervised multitask learners", 2019). Layer norms have no parameters
and nothing has a bias: a linear layer follows each norm and takes the scale in (Groeneveld et al., "OLMo",
2024). Text is a map of T rows and one column: the stream is [B, n*C, T, 1] between blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.stacked_ops import (
    Init,
    Parameters,
    causal_attention,
    from_matrices,
    layer_norm,
    to_matrices,
)

EMBEDDINGS = ("embed.token", "embed.position")


@dataclass(frozen=True)
class TransformerBlock:
    """One block and the slot behind it."""

    channels: int
    size: tuple[int, int]
    """T, 1."""


class Transformer:
    """The architecture; parameters are passed in, stacked over n hosts.

    Args:
        width: C, of the residual stream.
        depth: blocks.
        heads: of the attention; they divide the width; 0 = it has none, and no block looks back.
        mlp: hidden width of a block's MLP; 0 = it has none.
        context: T, positions.
        classes: V, tokens there are.
        is_tied: the head is the matrix of the token embeddings (Press and Wolf, "Using the output embedding
            to improve language models", 2017), which then begin as small as a head does.
        dropout: share that is dropped in training of the embeddings and of what attention and MLP add to the
            stream; what stays is divided by the share that stays (Srivastava et al., "Dropout", 2014).
    """

    def __init__(
        self,
        width: int,
        depth: int,
        heads: int,
        mlp: int,
        context: int,
        classes: int,
        *,
        is_tied: bool = False,
        dropout: float = 0.0,
    ) -> None:
        self.causal, self.rows = True, 1
        self._width, self._heads, self._mlp = width, heads, mlp
        self._context, self._classes = context, classes
        self.blocks = [TransformerBlock(width, (context, 1)) for _ in range(depth)]
        self._is_tied, self._dropout = is_tied, dropout
        self.head_names: tuple[str, ...] = ("embed.token" if is_tied else "head.weight",)
        self.widest = context * max(3 * width, mlp, classes)
        """Numbers in the largest activation of one host and window."""
        attending = 4 * width**2 + 2 * context * width if heads else 0
        self.products = context * (depth * (attending + 2 * width * mlp) + classes * width)
        """Multiplications of a forward pass of one host and window."""

    def specs(self) -> dict[str, Init]:
        c = self._width
        embedded = c if self._is_tied else 1
        specs = {
            "embed.token": Init((self._classes, c), fan_in=embedded),
            "embed.position": Init((self._context, c), fan_in=embedded),
        }
        for i in range(len(self.blocks)):
            if self._heads:
                specs[f"block{i}.attention.in"] = Init((3 * c, c), fan_in=c)
                specs[f"block{i}.attention.out"] = Init((c, c), fan_in=c)
            if self._mlp:
                specs[f"block{i}.mlp.in"] = Init((self._mlp, c), fan_in=c)
                specs[f"block{i}.mlp.out"] = Init((c, self._mlp), fan_in=self._mlp)
        if not self._is_tied:
            specs["head.weight"] = Init((self._classes, c), fan_in=c)
        return specs

    def block_names(self, i: int) -> tuple[str, ...]:
        """Trainable tensors that block i uses, in the order of their use."""
        return (*(EMBEDDINGS if i == 0 else ()), *self._names(i))

    def buffer_specs(self) -> dict[str, Init]:
        """None: nothing is measured."""
        return {}

    def train_block(
        self, i: int, x: Tensor, weights: Parameters, dropout_keys: Tensor | None = None
    ) -> Tensor:
        """Block i: [B, n*C, T, 1] from the same; block 0 from tokens [B, n, T, 1] or [B, 1, T, 1]."""
        return self._block(i, x, self.folded(i, weights, {}), dropout_keys)

    def measure_block(
        self,
        i: int,
        x: Tensor,
        weights: Parameters,
        buffers: Parameters,  # noqa: ARG002
        batches: int,  # noqa: ARG002
    ) -> Tensor:
        """`train_block`: there is nothing to measure."""
        return self.train_block(i, x, weights)

    def folded(self, i: int, weights: Parameters, buffers: Parameters) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Tensors [n, ...] of block i."""
        return tuple(weights[name] for name in self.block_names(i))

    def eval_block(self, i: int, x: Tensor, *tensors: Tensor) -> Tensor:
        """Block i with tensors as `folded` gives them; nothing is dropped."""
        return self._block(i, x, tensors, None)

    def _block(self, i: int, x: Tensor, tensors: tuple[Tensor, ...], keys: Tensor | None) -> Tensor:
        n, left = tensors[0].shape[0], iter(tensors)
        if i == 0:
            x = embed(x, next(left), next(left))
        h = to_matrices(x, n)
        if i == 0:
            h = self._drop(h, keys, 0)
        if self._heads:
            seen = causal_attention(layer_norm(h), next(left), self._heads, self._context) @ next(left).mT
            h = h + self._drop(seen, keys, 2 * i + 1)
        if self._mlp:
            made = F.gelu(layer_norm(h) @ next(left).mT, approximate="tanh") @ next(left).mT
            h = h + self._drop(made, keys, 2 * i + 2)
        return from_matrices(h, x.shape)

    def _drop(self, h: Tensor, keys: Tensor | None, place: int) -> Tensor:
        """[n, B*T, C] with zeros drawn from the keys [n] of this step and a place in the network."""
        if keys is None or not self._dropout:
            return h
        drawn = rng.uniform(rng.fold(keys, place), h.shape[1] * h.shape[2]).view(h.shape)
        return h * ((drawn >= self._dropout).to(h.dtype) / (1.0 - self._dropout))

    def head(self, x: Tensor, weights: Parameters) -> Tensor:
        """Logits [n, B*T, V] from the last slot's output [B, n*C, T, 1]."""
        weight = weights[self.head_names[0]]
        return layer_norm(to_matrices(x, weight.shape[0])) @ weight.mT

    def _names(self, i: int) -> list[str]:
        """Tensors of block i, in the order of their use."""
        parts = (["attention.in", "attention.out"] if self._heads else []) + (
            ["mlp.in", "mlp.out"] if self._mlp else []
        )
        return [f"block{i}.{part}" for part in parts]


def embed(tokens: Tensor, token: Tensor, position: Tensor) -> Tensor:
    """The stream [B, n*C, T, 1] that n hosts begin with.

    Args:
        tokens: int64 [B, n, T, 1], or [B, 1, T, 1] where all see the same.
        token: [n, V, C].
        position: [n, T, C].
    """
    n, classes, _ = token.shape
    first = classes * torch.arange(n, device=tokens.device)
    rows_BTn = tokens.squeeze(3).transpose(1, 2) + first
    stream_BTnC = F.embedding(rows_BTn, token.flatten(0, 1)) + position.transpose(0, 1)
    return stream_BTnC.flatten(2).transpose(1, 2).unsqueeze(3)

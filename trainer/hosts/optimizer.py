"""SGD with momentum over stacked parameters: one fused call for all hosts of a group and their seeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from trainer.compute.stacked_ops import Parameters, expand_rows
from trainer.compute.torch_private import copy_each_

from .gradients import row_norms

EPSILON = 1e-6
"""Keeps the clip of a gradient of 0 finite; torch.nn.utils.clip_grad_norm_ has the same."""

REGISTER_WIDTH = 16
"""float32 numbers in the widest register of a CPU. The fused kernel rounds once where a register is full and
twice in the rest of a tensor; so that a row's result does not depend on where it lies, tensors that leave a
rest are handed to it with the zeros behind them, see `padded_zeros`."""


def padded_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Zeros whose memory goes on, with more of them, until the last register is full."""
    count = torch.Size(shape).numel()
    return torch.zeros(-(-count // REGISTER_WIDTH) * REGISTER_WIDTH, dtype=dtype, device=device)[:count].view(
        *shape
    )


def _padded_view(tensor: Tensor) -> Tensor:
    """The numbers of a tensor made by `padded_zeros`, and its room; torch raises where there is none."""
    return tensor.detach().as_strided((-(-tensor.numel() // REGISTER_WIDTH) * REGISTER_WIDTH,), (1,))


class StackedSGD:
    """Momentum is a tensor beside each weight, so that a row (one host or one seed) can be reset alone.

    Args:
        weights: leaf tensors [n, ...] by name, made by `padded_zeros`.
        learning_rate: of all of them.
        momentum: of all of them.
        clipped: names of the weights whose gradient is clipped, each row [P] by its own norm.
        max_grad_norm: to this L2 norm; 0 = never.
    """

    def __init__(
        self,
        weights: Parameters,
        learning_rate: float,
        momentum: float,
        *,
        clipped: Collection[str] = (),
        max_grad_norm: float = 0.0,
    ) -> None:
        self.momentum = {name: padded_zeros(w.shape, w.dtype, w.device) for name, w in weights.items()}
        self._weights = weights
        self.learning_rate = learning_rate
        self._decay = momentum
        self._clipped = frozenset(clipped) if max_grad_norm else frozenset()
        self._max_grad_norm = max_grad_norm
        self._padded = {
            name: padded_zeros(w.shape, w.dtype, w.device)
            for name, w in weights.items()
            if w.numel() % REGISTER_WIDTH
        }
        """Where the gradients of tensors that leave a rest are copied to."""
        self._padded_view = {
            name: (_padded_view(weights[name]), _padded_view(gradient), _padded_view(self.momentum[name]))
            for name, gradient in self._padded.items()
        }
        """Of those tensors weight, gradient and momentum, with their room."""

    @torch.no_grad()
    def step(self, gradients: Parameters, rows: Tensor | None = None) -> None:
        """Update the weights that have a gradient; the others, and their momentum, stay as they are.

        Args:
            rows: bool [n], which are updated; None = all.

        torch 2.13's fused kernel for CPUs reads a gradient in the memory order of its weight, and a grouped
        convolution returns its own in another.
        """
        gradients = gradients | self._clipped_gradients(gradients)
        changing = [t for name in gradients for t in (self._weights[name], self.momentum[name])]
        before = [] if rows is None else [t.clone() for t in changing]
        self._fused(gradients)
        if rows is not None:
            for now, then in zip(changing, before, strict=True):
                now.copy_(torch.where(expand_rows(rows, now), now, then))

    def _fused(self, gradients: Parameters) -> None:
        padded = [name for name in gradients if name in self._padded]
        if padded:
            copy_each_([self._padded[name] for name in padded], [gradients[name] for name in padded])
        weights, rows, momentum = zip(
            *(
                self._padded_view.get(name)
                or (self._weights[name], gradient.contiguous(), self.momentum[name])
                for name, gradient in gradients.items()
            ),
            strict=True,
        )
        sgd(
            list(weights),
            list(rows),
            list(momentum),
            fused=True,
            weight_decay=0.0,
            momentum=self._decay,
            lr=self.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _clipped_gradients(self, gradients: Parameters) -> Parameters:
        """Copies of the gradients to be clipped, no row longer than allowed; the originals stay as measured.

        The formula is that of torch.nn.utils.clip_grad_norm_, row by row.
        """
        names = [name for name in gradients if name in self._clipped]
        if not names:
            return {}
        norms = row_norms([gradients[name] for name in names])
        factor_TN = norms.add_(EPSILON).reciprocal_().mul_(self._max_grad_norm).clamp_(max=1.0)
        factor_TN1 = factor_TN.to(gradients[names[0]].dtype).unsqueeze(2)
        return {name: gradients[name] * factor for name, factor in zip(names, factor_TN1, strict=True)}

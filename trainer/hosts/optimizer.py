"""SGD with momentum over stacked parameters: one fused call for all hosts of a group and their seeds."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from ..stacked import Parameters
from .gradients import row_norms

EPSILON = 1e-6
"""Keeps the clip of a gradient of 0 finite; torch.nn.utils.clip_grad_norm_ has the same."""

LANES = 16
"""float32 numbers in the widest register of a CPU. The fused kernel rounds once where a register is full and
twice in the rest of a tensor; so that a row's result does not depend on where it lies, tensors whose rows
leave a rest are updated by separate operations."""


class StackedSGD:
    """Momentum is a tensor beside each weight, so that a row (one host or one seed) can be reset alone.

    Args:
        weights: leaf tensors [n, ...] by name.
        learning_rate: of all of them.
        momentum: of all of them.
        clipped: names of the weights whose gradient is clipped, each row [P] by its own norm.
        max_grad_norm: to this L2 norm; 0 = never.
    """

    def __init__(
        self, weights: Parameters, learning_rate: float, momentum: float, *,
        clipped: Collection[str] = (), max_grad_norm: float = 0.0,
    ) -> None:  # fmt: skip
        self.momentum = {name: torch.zeros_like(w, requires_grad=False) for name, w in weights.items()}
        self._weights = weights
        self.learning_rate = learning_rate
        self._decay = momentum
        self._clipped = frozenset(clipped) if max_grad_norm else frozenset()
        self._max_grad_norm = max_grad_norm
        self._even = frozenset(
            name for name, w in weights.items() if w.device.type != "cpu" or w[0].numel() % LANES == 0
        )

    @torch.no_grad()
    def step(self, gradients: Parameters, taken: Tensor | None = None) -> None:
        """Update the weights that have a gradient; the others, and their momentum, stay as they are.

        Args:
            taken: bool [n], rows that are updated; None = all.

        torch 2.13's fused kernel for CPUs reads a gradient in the memory order of its weight, and a grouped
        convolution returns its own in another.
        """
        gradients = gradients | self._shortened(gradients)
        changing = [t for name in gradients for t in (self._weights[name], self.momentum[name])]
        before = [] if taken is None else [t.clone() for t in changing]
        self._fused({name: g for name, g in gradients.items() if name in self._even})
        self._exact({name: g for name, g in gradients.items() if name not in self._even})
        if taken is not None:
            for now, then in zip(changing, before, strict=True):
                now.copy_(torch.where(taken.view(-1, *[1] * (now.dim() - 1)), now, then))

    def _fused(self, gradients: Parameters) -> None:
        if not gradients:
            return
        sgd(
            [self._weights[name] for name in gradients],
            [gradient.contiguous() for gradient in gradients.values()],
            [self.momentum[name] for name in gradients],
            fused=True,
            weight_decay=0.0,
            momentum=self._decay,
            lr=self.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _exact(self, gradients: Parameters) -> None:
        if not gradients:
            return
        momentum = [self.momentum[name] for name in gradients]
        torch._foreach_mul_(momentum, self._decay)
        torch._foreach_add_(momentum, list(gradients.values()))
        torch._foreach_sub_(
            [self._weights[name] for name in gradients], torch._foreach_mul(momentum, self.learning_rate)
        )

    def _shortened(self, gradients: Parameters) -> Parameters:
        """Copies of the gradients to be clipped, no row longer than allowed; the originals stay as measured.

        The formula is that of torch.nn.utils.clip_grad_norm_, row by row.
        """
        names = [name for name in gradients if name in self._clipped]
        if not names:
            return {}
        norms = row_norms([gradients[name] for name in names])
        factor_TN: Tensor = (self._max_grad_norm / (norms + EPSILON)).clamp(max=1.0)
        factor_TN1 = factor_TN.to(gradients[names[0]].dtype).unsqueeze(2)
        return {name: gradients[name] * factor for name, factor in zip(names, factor_TN1, strict=True)}

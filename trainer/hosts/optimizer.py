"""SGD with momentum over stacked parameters: one fused call for all hosts of a group and their seeds."""

from __future__ import annotations

import torch
from torch.optim.sgd import sgd

from ..stacked import Parameters


class StackedSGD:
    """Momentum is a tensor beside each weight, so that a row (one host or one seed) can be reset alone.

    Args:
        weights: leaf tensors [n, ...] by name.
        learning_rate: of all of them.
        momentum: of all of them.
    """

    def __init__(self, weights: Parameters, learning_rate: float, momentum: float) -> None:
        self.momentum = {name: torch.zeros_like(w, requires_grad=False) for name, w in weights.items()}
        self._weights = weights
        self._learning_rate, self._decay = learning_rate, momentum

    @torch.no_grad()
    def step(self, gradients: Parameters) -> None:
        """Update the weights that have a gradient; the others, and their momentum, stay as they are.

        torch 2.13's fused kernel for CPUs reads a gradient in the memory order of its weight, and a grouped
        convolution returns its own in another.
        """
        sgd(
            [self._weights[name] for name in gradients],
            [gradient.contiguous() for gradient in gradients.values()],
            [self.momentum[name] for name in gradients],
            fused=True,
            weight_decay=0.0,
            momentum=self._decay,
            lr=self._learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

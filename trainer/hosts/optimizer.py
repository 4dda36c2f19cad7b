"""SGD with momentum over stacked parameters: one fused call for all hosts of a group and their seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from esper_overwatch.trainer.compute.joined_rows import copy_rows_
from esper_overwatch.trainer.compute.stacked_ops import Parameters
from esper_overwatch.trainer.compute.torch_private import copy_each_
from esper_overwatch.trainer.config.schema import Config

from .gradients import row_norms, scaled_rows
from .model import HostModel
from .seed_pool import SeedPool

HOSTS, SEEDS = 0, 1
"""Places of their parameter groups in the optimizer."""
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


@dataclass
class ParameterGroup:
    """Weights that learn alike, as a parameter group of torch.optim has them.

    Attributes:
        names: of the weights.
        learning_rate: before the schedule's share of it.
        max_grad_norm: L2 norm to which the gradient of each row is clipped; 0 = never.
        clips_jointly: whether a row's norm is that over all weights of the group, or each weight's own.
        decay: by name, weight decay coefficients that broadcast to the weight; those left out have none.
    """

    names: Collection[str]
    learning_rate: float
    max_grad_norm: float = 0.0
    clips_jointly: bool = False
    decay: Mapping[str, float | Tensor] = field(default_factory=dict)


class StackedSGD:
    """Momentum is a tensor beside each weight, so that a row (one host or one seed) can be reset alone.

    The formula is that of torch.optim.SGD: the gradient is clipped, then `decay * weight` is added to it,
    then it enters the momentum, and the weight moves by the rate times that.

    Args:
        weights: leaf tensors [n, ...] by name, made by `padded_zeros`.
        groups: each weight is in one of them.
        momentum: of all of them.

    Attributes:
        groups: as given; their rates, limits and decay may be changed between two steps.
        schedule_share: what all learning rates are multiplied by, see `set_schedule_share`.
    """

    def __init__(self, weights: Parameters, groups: Sequence[ParameterGroup], momentum: float) -> None:
        self.momentum = {name: padded_zeros(w.shape, w.dtype, w.device) for name, w in weights.items()}
        self.groups = list(groups)
        self.schedule_share = 1.0
        device = next(iter(weights.values())).device
        self._rates = [torch.zeros((), device=device) for _ in self.groups] if device.type == "cuda" else None
        """Rates of the groups as tensors where steps are captured: there a number of the host would be a
        constant."""
        self.set_schedule_share(1.0)
        self._group_of = {name: group for group in self.groups for name in group.names}
        self._weights = weights
        self._coefficient = momentum
        self._padded = {
            name: padded_zeros(w.shape, w.dtype, w.device)
            for name, w in weights.items()
            if w.numel() % REGISTER_WIDTH
        }
        """Buffers for the gradients of tensors that leave a rest."""
        self._padded_view = {
            name: (_padded_view(weights[name]), _padded_view(gradient), _padded_view(self.momentum[name]))
            for name, gradient in self._padded.items()
        }
        """Weight, gradient and momentum of those tensors, with their padding."""

    def set_schedule_share(self, share: float) -> None:
        """Set what learning rates are multiplied by from now on; they are read here."""
        self.schedule_share = share
        for group, rate in zip(self.groups, self._rates or (), strict=False):
            rate.fill_(group.learning_rate * share)

    @torch.no_grad()
    def step(self, gradients: Parameters, rows: Tensor | None = None) -> None:
        """Update the weights that have a gradient; the others, and their momentum, stay as they are.

        Args:
            rows: bool [n], which are updated; None = all.

        torch 2.13's fused kernel for CPUs reads a gradient in the memory order of its weight, and a grouped
        convolution returns its own in another.
        """
        for group in self.groups:
            gradients = gradients | self._clipped(group, gradients)
            gradients = gradients | self._decayed(group, gradients)
        changing = [t for name in gradients for t in (self._weights[name], self.momentum[name])]
        before = [] if rows is None else [t.clone() for t in changing]
        for rate, names in self._names_by_rate(gradients):
            self._fused({name: gradients[name] for name in names}, rate)
        if rows is not None:
            copy_rows_(changing, before, ~rows)

    def _names_by_rate(self, gradients: Parameters) -> list[tuple[float | Tensor, list[str]]]:
        """One fused call for each learning rate: for all weights where hosts and seeds have the same."""
        if self._rates is not None:
            parts = [[name for name in gradients if name in group.names] for group in self.groups]
            return [(rate, part) for rate, part in zip(self._rates, parts, strict=True) if part]
        names: dict[float, list[str]] = {}
        for name in gradients:
            names.setdefault(self._group_of[name].learning_rate * self.schedule_share, []).append(name)
        return list(names.items())

    def _fused(self, gradients: Parameters, rate: float | Tensor) -> None:
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
            momentum=self._coefficient,
            lr=rate,  # type: ignore[arg-type]  # a tensor on the device, too
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    @staticmethod
    def _clipped(group: ParameterGroup, gradients: Parameters) -> Parameters:
        """Copies of a group's gradients, no row longer than allowed; the originals stay as measured.

        The formula is that of torch.nn.utils.clip_grad_norm_, row by row.
        """
        names = [name for name in gradients if name in group.names] if group.max_grad_norm else []
        if not names:
            return {}
        mine = [gradients[name] for name in names]
        norms = row_norms(mine)
        if group.clips_jointly:
            norms = torch.linalg.vector_norm(norms, dim=0, keepdim=True).repeat(len(names), 1)
        factor_TN = norms.add_(EPSILON).reciprocal_().mul_(group.max_grad_norm).clamp_(max=1.0)
        clipped = scaled_rows(mine, factor_TN.to(mine[0].dtype, memory_format=torch.contiguous_format))
        return dict(zip(names, clipped, strict=True))

    def _decayed(self, group: ParameterGroup, gradients: Parameters) -> Parameters:
        """Copies of a group's gradients with the weight decay added.

        A product and a sum of their own: a kernel that does both rounds twice where a register is full and
        may round once in the rest, so that a row's result would depend on where it lies.
        """
        return {
            name: gradients[name] + self._weights[name] * decay
            for name, decay in group.decay.items()
            if name in gradients
        }


def make_optimizer(config: Config, weights: Parameters, model: HostModel, pool: SeedPool) -> StackedSGD:
    """Make an optimizer with a group for hosts and one for seeds, in the order of `HOSTS` and `SEEDS`.

    Weight decay is for kernels and matrices: what has two dimensions or more. Biases, the gains of norms and
    of seeds, and gates have none, as is usual (He et al., "Bag of tricks for image classification", 2019).
    The decay of seeds depends on who learns, so that it is set for each epoch.
    """
    host, seeds = config.host, config.seeds
    matrices = [name for name, spec in model.specs().items() if len(spec.shape) > 1]
    groups = [
        ParameterGroup(
            model.specs(),
            host.learning_rate,
            host.max_grad_norm,
            clips_jointly=True,
            decay=dict.fromkeys(matrices, host.weight_decay) if host.weight_decay else {},
        ),
        ParameterGroup(pool.specs(), seeds.learning_rate or host.learning_rate, seeds.max_grad_norm),
    ]
    return StackedSGD(weights, groups, host.momentum)

"""Mixed precision: what forward passes of hosts compute in, and with fp16 a loss scale for each host.

Autocast is decided once per run and wraps forward passes only; backward passes follow their forward ones.
Losses, norms and statistics, weights and momentum are float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esper_overwatch.trainer.compute.execution_plan import Amp
from esper_overwatch.trainer.compute.stacked_ops import Parameters, expand_rows

DTYPES: dict[Amp, torch.dtype | None] = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}
INITIAL_SCALE, MIN_SCALE, MAX_SCALE = 2.0**16, 2.0**-14, 2.0**24
"""Loss scale at the start and its limits."""
GROWTH_INTERVAL_STEPS = 2000
"""Good steps in a row after which the scale doubles, as torch.amp.GradScaler has it."""


def has_bf16(device: torch.device) -> bool:
    """True for a GPU that computes in bf16; on CPUs bf16 convolutions are not faster."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def autocast(amp: Amp, device: torch.device) -> torch.autocast:
    """The context of a forward pass."""
    dtype = DTYPES[amp]
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


class LossScale:
    """torch.amp.GradScaler's rule for each of n hosts alone: one host's overflow skips its own step only.

    Args:
        n: hosts.
    """

    def __init__(self, n: int, device: torch.device) -> None:
        self.scale_N = torch.full((n,), INITIAL_SCALE, device=device)
        self.good_N = torch.zeros(n, dtype=torch.int64, device=device)
        """Good steps since the scale changed."""

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Gradients of scaled losses, [n, ...] each, become those of the losses; in place."""
        inverse = 1.0 / self.scale_N
        for gradient in gradients:
            gradient.mul_(expand_rows(inverse.to(gradient.dtype), gradient))

    def update(self, gradients: Parameters) -> Tensor:
        """Adapt the scales; bool [n]: whose gradients are all finite, so that they may take the step."""
        finite = [g.isfinite().reshape(g.shape[0], -1).all(1) for g in gradients.values()]
        applied = torch.stack(finite).all(0)
        self.good_N.copy_(torch.where(applied, self.good_N + 1, 0))
        grown = self.good_N >= GROWTH_INTERVAL_STEPS
        scale = torch.where(applied, self.scale_N, self.scale_N / 2)
        self.scale_N.copy_(torch.where(grown, scale * 2, scale).clamp(MIN_SCALE, MAX_SCALE))
        self.good_N.masked_fill_(grown, 0)
        return applied

    def state(self) -> Parameters:
        return {"scale": self.scale_N, "good": self.good_N}


def scaled_sum(loss: Tensor, scale: LossScale | None) -> Tensor:
    """The sum of the hosts' losses [n], each times its scale: its gradients are theirs.

    `torch.autograd.grad` would take the scales as gradients of the losses, too; it then imports a second's
    worth of modules to check their shapes.
    """
    return loss.sum() if scale is None else (loss * scale.scale_N.to(loss.dtype)).sum()

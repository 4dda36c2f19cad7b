"""Mixed precision: what forward passes of hosts compute in, and with fp16 a loss scale for each host.

Autocast is decided once per run and wraps forward passes only; backward passes follow their forward ones.
Losses, norms and statistics, weights and momentum are float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import Config
from ..execution import Amp
from ..stacked import Parameters

DTYPES: dict[Amp, torch.dtype | None] = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}
FIRST, LEAST, MOST = 2.0**16, 2.0**-14, 2.0**24
"""Loss scale at the start and its limits."""
GROW_AFTER = 2000
"""Good steps in a row after which the scale doubles, as torch.amp.GradScaler has it."""


def resolve(config: Config, device: torch.device) -> Amp:
    """`auto` is bf16 on a GPU that computes in it, else off: on CPUs bf16 convolutions are no faster."""
    if config.amp.dtype != "auto":
        return config.amp.dtype
    if device.type != "cuda":
        return "off"
    with torch.cuda.device(device):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "off"


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
        self.scale_N = torch.full((n,), FIRST, device=device)
        self.good_N = torch.zeros(n, dtype=torch.int64, device=device)
        """Good steps since the scale changed."""

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Gradients of scaled losses, [n, ...] each, become those of the losses; in place."""
        inverse = 1.0 / self.scale_N
        for gradient in gradients:
            gradient.mul_(inverse.to(gradient.dtype).view(-1, *[1] * (gradient.dim() - 1)))

    def judge(self, gradients: Parameters) -> Tensor:
        """bool [n]: whose gradients are all finite and may be taken; the scales follow from it."""
        finite = [g.isfinite().reshape(g.shape[0], -1).all(1) for g in gradients.values()]
        taken = torch.stack(finite).all(0)
        self.good_N.copy_(torch.where(taken, self.good_N + 1, 0))
        grown = self.good_N >= GROW_AFTER
        scale = torch.where(taken, self.scale_N, self.scale_N / 2)
        self.scale_N.copy_(torch.where(grown, scale * 2, scale).clamp(LEAST, MOST))
        self.good_N.masked_fill_(grown, 0)
        return taken

    def state(self) -> Parameters:
        return {"scale": self.scale_N, "good": self.good_N}

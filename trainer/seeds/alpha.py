"""Alpha schedules: curves from 0 to 1, and ramps of some epochs over a slot table."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Curve

from .table import SlotTable

STEEPNESS: dict[Curve, float] = {
    Curve.SIGMOID_GENTLE: 6.0,
    Curve.SIGMOID: 12.0,
    Curve.SIGMOID_SHARP: 24.0,
}
"""k of the logistic 1 / (1 + exp(-k (t - 1/2))), which is then stretched to run from 0 to 1."""


def shape(curve: Tensor, t: Tensor) -> Tensor:
    """Share of a ramp that is done, [..] in 0..1, at time t in 0..1; monotone, 0 at 0 and 1 at 1.

    Args:
        curve: int64, `Curve` codes, same shape as `t`.
    """
    out = torch.where(curve == Curve.COSINE, 0.5 - 0.5 * torch.cos(math.pi * t), t)
    for code, steepness in STEEPNESS.items():
        edge = math.tanh(steepness / 4.0)
        logistic = 0.5 + 0.5 * torch.tanh((t - 0.5) * (steepness / 2.0)) / edge
        out = torch.where(curve == code, logistic, out)
    return out.clamp(0.0, 1.0)


def moving(table: SlotTable) -> Tensor:
    """bool [N, S]: alpha is on its way, or landed and not yet noticed by `Lifecycle.advance`."""
    return table.ramp_epochs > 0


def landed(table: SlotTable) -> Tensor:
    """bool [N, S]: the ramp has run its length."""
    return moving(table) & (table.ramp_done >= table.ramp_epochs)


def start(table: SlotTable, where: Tensor, target: Tensor, epochs: Tensor, curve: Tensor) -> None:
    """Begin a ramp from the present alpha; with 0 epochs, or nothing to do, alpha is there at once.

    Args:
        where: bool [N, S], the slots concerned.
        target: float, epochs: int64, curve: int64; all broadcast to [N, S].
    """
    target = target.to(table.alpha.dtype)
    at_once = (epochs == 0) | (target == table.alpha)
    torch.where(where, table.alpha, table.alpha_from, out=table.alpha_from)
    torch.where(where, target, table.alpha_target, out=table.alpha_target)
    torch.where(where, curve, table.curve, out=table.curve)
    torch.where(where, epochs.masked_fill(at_once, 0), table.ramp_epochs, out=table.ramp_epochs)
    table.ramp_done.masked_fill_(where, 0)
    torch.where(where & at_once, target, table.alpha, out=table.alpha)


def halt(table: SlotTable, where: Tensor) -> None:
    """Stop ramps that are under way, bool [N, S], where they stand; a fade-out ends and the seed stays."""
    stopped = where & moving(table) & ~landed(table)
    torch.where(stopped, table.alpha, table.alpha_target, out=table.alpha_target)
    for progress in (table.ramp_epochs, table.ramp_done):
        progress.masked_fill_(stopped, 0)
    table.pruning &= ~stopped


def step(table: SlotTable) -> None:
    """Move every ramp by one epoch; the last step lands exactly on the target."""
    on = moving(table) & ~landed(table)
    table.ramp_done.add_(on.to(table.ramp_done.dtype))
    t = table.ramp_done / table.ramp_epochs.clamp_min(1)
    low = torch.minimum(table.alpha_from, table.alpha_target)
    high = torch.maximum(table.alpha_from, table.alpha_target)
    between = torch.lerp(table.alpha_from, table.alpha_target, shape(table.curve, t))
    alpha = torch.where(landed(table), table.alpha_target, between.clamp(low, high))
    torch.where(on, alpha, table.alpha, out=table.alpha)

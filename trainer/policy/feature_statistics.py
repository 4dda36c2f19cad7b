"""Statistics of the policy's inputs in a round, by groups of features, to show which ones moved.

Measured features are taken as the policy saw them, normalised by all earlier rounds and clipped; plain ones
as they are. A group's drift is the root mean square, over its measured columns, of the mean of each column:
how many of its standard deviations it now lies away from what it was.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Curve, Op, Stage, Style

from .observation import BASE_COLUMNS, NUM_HISTORY_EPOCHS, SLOT_COLUMNS, FeatureColumns, Observation
from .running_norm import MAX_DEVIATIONS, RunningNorm

OUTLIER_DEVIATIONS = 3.0
"""Size from which a feature counts as an outlier, in standard deviations; plain ones are hardly above 1."""
STATISTICS = ("mean", "std", "outliers", "clipped", "missing", "drift")
"""Statistics of each group; the middle three are shares."""

_AGO = range(2, NUM_HISTORY_EPOCHS + 2)
BASE_GROUPS: dict[str, tuple[str, ...]] = {
    "loss": ("train_loss", "val_loss", *(f"val_loss_{k}_ago" for k in _AGO)),
    "accuracy": (
        "train_accuracy",
        "val_accuracy",
        "val_accuracy_best",
        *(f"val_accuracy_{k}_ago" for k in _AGO),
    ),
    "host_gradient": ("host_grad_norm_log10", "host_health"),
    "progress": ("epoch", "growth_log"),
    "stage_shares": tuple(f"share_{stage.name.lower()}" for stage in Stage),
    "last_op": tuple(f"last_{op.name.lower()}" for op in Op),
}
"""Columns of the host by group; none has both measured and plain ones."""
SLOT_GROUPS: dict[str, tuple[str, ...]] = {
    "contribution": ("contribution", "contribution_velocity", "accuracy_since_stage"),
    "interaction": ("interaction", "interaction_best"),
    "seed_gradient": ("grad_norm_log10", "health"),
    "growth": (
        *("new_weights_norm_log10", "new_weights_agreement"),
        *("new_kernel_norm_log10", "new_kernel_agreement"),
    ),
    "stage": tuple(stage.name.lower() for stage in Stage),
    "durations": ("contribution_age", "epochs_in_stage", "age", "embargo", "tempo", "ramp_left"),
    "blend": (
        *(f"style_{style.name.lower()}" for style in Style),
        *(f"curve_{curve.name.lower()}" for curve in Curve),
        *("alpha", "alpha_target", "moving", "pruning"),
    ),
    "seed": ("parameters_log", "last_action"),
}
"""Columns of a slot, likewise."""
FEATURE_GROUPS = (*BASE_GROUPS, *SLOT_GROUPS)


def feature_statistics(seen: Observation, base_norm: RunningNorm, slot_norm: RunningNorm) -> Tensor:
    """Statistics of a round's observations [T, N, ...] before the normalisers learn from them.

    Returns:
        float64 [groups, statistics] in the order of `FEATURE_GROUPS` and `STATISTICS`; NaN where there is
        nothing, and for the drift of plain features and of what no earlier round has measured.
    """
    rows = [
        *_statistics(seen.base, base_norm, BASE_COLUMNS, BASE_GROUPS),
        *_statistics(seen.slot, slot_norm, SLOT_COLUMNS, SLOT_GROUPS),
    ]
    return torch.stack(rows)


@cache
def _places(columns: tuple[str, ...], names: tuple[str, ...], device: torch.device) -> Tensor:
    """int64 [names]: the places of columns; copied to the device once, as each copy waits for it."""
    return torch.tensor([columns.index(name) for name in names]).to(device, non_blocking=True)


def _statistics(
    features: Tensor, norm: RunningNorm, columns: FeatureColumns, groups: dict[str, tuple[str, ...]]
) -> list[Tensor]:
    flat = features.reshape(-1, features.shape[-1]).double()
    measured = len(columns.measured)
    values = torch.cat([norm(flat[:, :measured]), flat[:, measured:]], 1)
    unknown = torch.full((len(columns.names) - measured,), 0.0, dtype=norm.count.dtype, device=flat.device)
    has_past = torch.cat([norm.count, unknown]) > 0
    rows = []
    for names in groups.values():
        place = _places(columns.names, names, flat.device)
        x, is_plain = values[:, place], columns.names.index(names[0]) >= measured
        known = ~x.isnan()
        size = x.abs().where(known, 0.0)
        count = known.sum()
        mean = x.nanmean()
        column_means = x.nanmean(0).where(has_past[place], torch.nan)
        clipped = torch.zeros_like(size) if is_plain else size >= MAX_DEVIATIONS
        rows.append(
            torch.stack(
                [
                    mean,
                    (x - mean).square().nanmean().sqrt(),
                    (size > OUTLIER_DEVIATIONS).sum() / count,
                    clipped.sum() / count,
                    1.0 - known.double().mean(),
                    column_means.square().nanmean().sqrt(),
                ]
            )
        )
    return rows

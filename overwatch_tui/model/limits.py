"""Limits for the signals of the policy in this run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from esper_overwatch.protocol.messages.events import PPOUpdate
from esper_overwatch.protocol.messages.thresholds import Threshold, kl_limits, value_collapse_limits

LIMIT_SUFFIX = "_limit"
"""A kind with this ending: a signal of the policy is beyond the limit that is shown beside it."""


class PolicyLimit(NamedTuple):
    """The limit of a field of `PPOUpdate`."""

    threshold: str
    """Row in the table of thresholds."""
    twins: tuple[tuple[str, str], ...]
    """(source, kind) of the daemon's own checks of the same signal."""


POLICY_LIMITS = {
    "approx_kl": PolicyLimit("kl", (("policy", "kl_spike"),)),
    "entropy": PolicyLimit("entropy", (("policy", "entropy_collapse"),)),
    "clip_fraction": PolicyLimit("clip_fraction", (("policy", "clip_fraction"),)),
    "explained_variance": PolicyLimit("value_collapse", (("critic", "value_collapse"),)),
    "ratio_max": PolicyLimit("ratio_max", (("policy", "ratio_explosion"),)),
    "grad_norm": PolicyLimit("total_grad_norm", (("policy", "gradient_exploding"),)),
    "lstm_h_rms": PolicyLimit("lstm_rms", (("policy", "lstm_saturated"),)),
}
"""Limits by the field of `PPOUpdate`."""


def policy_limit(
    thresholds: Mapping[str, Threshold], update: PPOUpdate | None, signal: str, rounds: tuple[int, int]
) -> Threshold | None:
    """The limit of a field of `PPOUpdate`; None where there is none.

    Args:
        update: the newest: KL's limits follow its `target_kl`; if all returns are equal, EV has none.
        rounds: (finished, asked for): the limits of the explained variance move with the run.
    """
    known = POLICY_LIMITS.get(signal)
    threshold = None if known is None else thresholds.get(known.threshold)
    if threshold is None:
        return None
    if signal == "approx_kl" and update is not None and update.target_kl:
        warning, critical = kl_limits(update.target_kl)
        return replace(threshold, warning=warning, critical=critical)
    if signal == "explained_variance":
        if update is not None and update.return_std is not None:
            flat = thresholds.get("return_std")
            if flat is not None and flat.severity(update.return_std) is not None:
                return None
        warning, critical = value_collapse_limits(*rounds)
        return replace(threshold, warning=warning, critical=critical)
    return threshold


def kind_of_daemon(kind: str) -> str:
    """The daemon's name for an anomaly that a viewer found by a limit of the policy's signals."""
    known = POLICY_LIMITS.get(kind.removesuffix(LIMIT_SUFFIX))
    return kind if known is None or not kind.endswith(LIMIT_SUFFIX) else known.twins[0][1]

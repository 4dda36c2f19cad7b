"""The one table of thresholds: the trainer's detectors read it, hello carries it, the TUI colours by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .vocabulary import Severity


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Limits of one signal. `low` marks signals where small values are the bad ones."""

    signal: str
    warning: float
    critical: float
    low: bool = False
    raise_after: int = 1
    """Consecutive breaches before it is raised."""
    clear_after: int = 1
    """Consecutive values inside `clear_ratio` of the warning before it clears."""
    clear_ratio: float = 1.0
    hint: str = ""

    def severity(self, value: float) -> Severity | None:
        """`critical`, `warning` or None; a NaN is critical."""
        if value != value:
            return "critical"
        sign = -1.0 if self.low else 1.0
        if sign * value >= sign * self.critical:
            return "critical"
        if sign * value >= sign * self.warning:
            return "warning"
        return None


THRESHOLDS: dict[str, Threshold] = {
    t.signal: t
    for t in (
        Threshold(signal="link_age", warning=2.0, critical=5.0, hint="seconds since the last heartbeat"),
        Threshold(
            signal="norm_drift",
            warning=0.5,
            critical=1.0,
            raise_after=2,
            clear_after=5,
            clear_ratio=0.8,
            hint="gradient norm left its average: escalate (T), look at the layers",
        ),
        Threshold(
            signal="health_drift",
            warning=0.5,
            critical=1.0,
            raise_after=2,
            clear_after=5,
            clear_ratio=0.8,
            hint="gradient health left its average: dead or exploding layers?",
        ),
        Threshold(
            signal="gradient_health",
            warning=0.8,
            critical=0.3,
            low=True,
            raise_after=2,
            hint="share of layers with a usable gradient is low",
        ),
        Threshold(
            signal="gradient_exploding",
            warning=5.0,
            critical=10.0,
            raise_after=2,
            hint="lower the learning rate or clip",
        ),
        Threshold(
            signal="seed_exploding",
            warning=100.0,
            critical=1000.0,
            raise_after=3,
            hint="a seed's gradient, unclipped: lower host.learning_rate or seeds.max_grad_norm",
        ),
        Threshold(
            signal="seed_health",
            warning=0.2,
            critical=0.1,
            low=True,
            raise_after=3,
            clear_ratio=1.1,
            hint="few of a seed's tensors have a usable gradient: prune it or wait",
        ),
        Threshold(
            signal="gradient_vanishing",
            warning=1e-6,
            critical=1e-8,
            low=True,
            raise_after=2,
            hint="hardly any gradient arrives: look for dead units or a saturated blend",
        ),
        Threshold(signal="nonfinite", warning=1.0, critical=1.0, hint="NaN or infinite values"),
        Threshold(signal="lstm_rms", warning=5.0, critical=10.0, hint="the recurrent state saturates"),
        Threshold(
            signal="lstm_rms_low", warning=1e-4, critical=1e-6, low=True, hint="the recurrent state has died"
        ),
        # Of the default `ppo.target_kl`; `kl_limits` has those of others.
        Threshold(signal="kl", warning=0.03, critical=0.06, hint="the policy moves too far per update"),
        Threshold(signal="clip_fraction", warning=0.25, critical=0.30, hint="many samples are clipped"),
        Threshold(
            signal="entropy",
            warning=0.30,
            critical=0.10,
            low=True,
            raise_after=2,
            clear_after=3,
            clear_ratio=1.1,
            hint="the policy has nearly stopped exploring",
        ),
        Threshold(
            signal="explained_variance",
            warning=0.3,
            critical=0.0,
            low=True,
            hint="the critic does not predict the returns",
        ),
        Threshold(
            signal="value_collapse",
            warning=0.1,
            critical=-0.4,
            low=True,
            raise_after=3,
            hint="the critic predicts worse than it should by now; limits move with the run",
        ),
        Threshold(
            signal="value_nrmse",
            warning=2.0,
            critical=4.0,
            raise_after=3,
            hint="the critic's error exceeds the spread of the returns",
        ),
        Threshold(
            signal="return_std",
            warning=1e-3,
            critical=1e-6,
            low=True,
            hint="all returns are equal: the policy has nothing to learn from",
        ),
        Threshold(
            signal="return_agreement",
            warning=0.3,
            critical=0.0,
            low=True,
            raise_after=3,
            clear_ratio=1.2,
            hint="high returns no longer go with good networks: what does the reward pay for?",
        ),
        Threshold(signal="ratio_max", warning=1.5, critical=2.0, hint="probability ratios are wide"),
        Threshold(signal="ratio_explosion", warning=5.0, critical=5.0, hint="a probability ratio exploded"),
        Threshold(
            signal="ratio_collapse", warning=0.1, critical=0.1, low=True, hint="a probability ratio collapsed"
        ),
        Threshold(
            signal="total_grad_norm",
            warning=5.0,
            critical=10.0,
            raise_after=4,
            hint="policy gradient, unclipped",
        ),
        Threshold(signal="memory", warning=0.75, critical=0.90, hint="share of memory in use"),
        Threshold(
            signal="update_pace",
            warning=3.0,
            critical=10.0,
            raise_after=2,
            hint="a step of the PPO update takes this many times its usual time: look at the machine (g)",
        ),
        Threshold(
            signal="skipped_steps",
            warning=0.25,
            critical=0.75,
            raise_after=2,
            clear_after=2,
            hint="share of steps that overflow fp16: use amp.dtype=bf16, or lower host.learning_rate",
        ),
        Threshold(
            signal="telemetry_share",
            warning=0.03,
            critical=0.05,
            raise_after=3,
            clear_after=3,
            hint="lower telemetry.level, or raise telemetry.stride",
        ),
        Threshold(
            signal="stalled_epochs",
            warning=10.0,
            critical=30.0,
            raise_after=3,
            hint="no better accuracy for this many epochs",
        ),
        Threshold(
            signal="accuracy_lost",
            warning=0.15,
            critical=0.30,
            raise_after=2,
            clear_ratio=0.7,
            hint="validation accuracy fell this far below the episode's best",
        ),
        Threshold(
            signal="credit",
            warning=5.0,
            critical=10.0,
            raise_after=3,
            hint="a seed is credited with far more than its env has gained: look at the reward",
        ),
        Threshold(
            signal="pace",
            warning=3.0,
            critical=10.0,
            raise_after=5,
            clear_after=3,
            hint="epochs take this many times their usual time: look at the machine (g)",
        ),
        Threshold(signal="queue_drops", warning=1.0, critical=1000.0, hint="telemetry was refused"),
    )
}


def with_limits(limits: Mapping[str, Sequence[float]]) -> dict[str, Threshold]:
    """The table with other limits.

    Args:
        limits: (warning, critical) by signal; those left out, or unknown, stay as they are.
    """
    return {
        signal: replace(threshold, warning=limits[signal][0], critical=limits[signal][1])
        if signal in limits
        else threshold
        for signal, threshold in THRESHOLDS.items()
    }


KL_LIMITS_IN_TARGETS = (3.0, 6.0)
"""A step beyond `ppo.target_kl` ends the passes: healthy updates end at up to twice that."""


def kl_limits(target_kl: float | None) -> tuple[float, float]:
    """(warning, critical) KL divergence of an update.

    Args:
        target_kl: `ppo.target_kl`; with 0 or None no step ends the passes, and the table's limits hold.
    """
    if not target_kl:
        return THRESHOLDS["kl"].warning, THRESHOLDS["kl"].critical
    warning, critical = KL_LIMITS_IN_TARGETS
    return warning * target_kl, critical * target_kl


VALUE_COLLAPSE_PHASES: tuple[tuple[float, float], ...] = ((0.10, -0.5), (0.25, -0.2), (0.75, 0.0), (1.0, 0.1))
"""(up to this share of the run, explained variance below which the critic has collapsed)."""
ENDLESS_ROUNDS = 100
"""Taken for the length of a run without an end."""


def value_collapse_limits(rounds_done: int, rounds: int) -> tuple[float, float]:
    """(warning, critical) explained variance at this point of the run.

    Args:
        rounds_done: rounds finished.
        rounds: rounds asked for; 0 = without an end.
    """
    share = min(rounds_done / (rounds or ENDLESS_ROUNDS), 1.0)
    limit = next(limit for until, limit in VALUE_COLLAPSE_PHASES if share <= until)
    return limit, limit - 0.5

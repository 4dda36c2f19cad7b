"""The one table of thresholds: the trainer's detectors read it, hello carries it, the TUI colours by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .vocabulary import Severity


def severity_of(value: float, limits: Sequence[float | None], *, low: bool) -> Severity | None:
    """Which of (warning, critical) limits a value reaches; a NaN reaches the worst that there is.

    Args:
        low: small values are the bad ones.
    """
    sign = -1.0 if low else 1.0
    warning, critical = limits
    if critical is not None and not sign * value < sign * critical:
        return "critical"
    return "warning" if warning is not None and not sign * value < sign * warning else None


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Limits of one signal. `low` marks signals where small values are the bad ones."""

    signal: str
    warning: float
    critical: float | None = None
    """None = it asks for nobody at once, however far it goes: nothing is lost by looking later."""
    low: bool = False
    is_note: bool = False
    """A breach is only noted, as information: one of many sources shows it now and then."""
    warm_up: int = 0
    """Readings of a source, since it began, that are not judged."""
    raise_after: int = 1
    """Consecutive breaches before it is raised."""
    clear_after: int = 1
    """Consecutive values inside `clear_ratio` of the warning before it clears."""
    clear_ratio: float = 1.0
    hint: str = ""

    def severity(self, value: float) -> Severity | None:
        """`critical`, `warning` or, of what is only noted, `info`; None within the limits."""
        found = severity_of(value, (self.warning, self.critical), low=self.low)
        return "info" if found == "warning" and self.is_note else found


THRESHOLDS: dict[str, Threshold] = {
    t.signal: t
    for t in (
        Threshold(signal="link_age", warning=2.0, critical=5.0, hint="seconds since the last heartbeat"),
        Threshold(
            signal="norm_drift",
            warning=0.5,
            warm_up=3,
            raise_after=4,
            clear_after=5,
            clear_ratio=0.8,
            is_note=True,
            hint="gradient norm left its average: escalate (T), look at the layers",
        ),
        Threshold(
            signal="health_drift",
            warning=0.5,
            warm_up=3,
            raise_after=4,
            clear_after=5,
            clear_ratio=0.8,
            is_note=True,
            hint="gradient health fell below its average: dead or exploding layers?",
        ),
        Threshold(
            signal="gradient_health",
            warning=0.5,
            low=True,
            warm_up=2,
            raise_after=3,
            hint="share of layers with a usable gradient is low",
        ),
        Threshold(
            signal="gradient_exploding",
            warning=10.0,
            warm_up=2,
            raise_after=3,
            hint="lower the learning rate or clip",
        ),
        Threshold(
            signal="seed_exploding",
            warning=1000.0,
            warm_up=3,
            raise_after=3,
            is_note=True,
            hint="a seed's gradient, unclipped: lower host.learning_rate or seeds.max_grad_norm",
        ),
        Threshold(
            signal="seed_health",
            warning=0.2,
            low=True,
            warm_up=6,
            raise_after=4,
            clear_ratio=1.1,
            is_note=True,
            hint="few of a seed's tensors have a usable gradient: prune it or wait",
        ),
        Threshold(
            signal="gradient_vanishing",
            warning=1e-8,
            low=True,
            warm_up=2,
            raise_after=3,
            hint="hardly any gradient arrives: look for dead units or a saturated blend",
        ),
        Threshold(
            signal="seed_vanishing",
            warning=1e-9,
            low=True,
            warm_up=6,
            raise_after=4,
            is_note=True,
            hint="hardly any gradient arrives at a seed: dead units, or a blend that lets nothing through",
        ),
        Threshold(signal="nonfinite", warning=1.0, critical=1.0, hint="NaN or infinite values in the policy"),
        Threshold(signal="host_nonfinite", warning=1.0, hint="NaN or infinite values in a host or a seed"),
        Threshold(signal="lstm_rms", warning=5.0, raise_after=2, hint="the recurrent state saturates"),
        Threshold(
            signal="lstm_rms_low",
            warning=1e-4,
            low=True,
            raise_after=2,
            hint="the recurrent state has died",
        ),
        # Of the default `ppo.target_kl`; `kl_limits` has those of others.
        Threshold(signal="kl", warning=0.03, raise_after=2, hint="the policy moves too far per update"),
        Threshold(signal="clip_fraction", warning=0.25, raise_after=2, hint="many samples are clipped"),
        Threshold(
            signal="entropy",
            warning=0.10,
            low=True,
            warm_up=2,
            raise_after=3,
            clear_after=3,
            clear_ratio=1.1,
            hint="the policy has nearly stopped exploring, and its returns do not rise",
        ),
        Threshold(
            signal="value_collapse",
            warning=0.1,
            low=True,
            warm_up=5,
            raise_after=4,
            hint="the critic predicts worse than it should by now; limits move with the run",
        ),
        Threshold(
            signal="value_nrmse",
            warning=2.0,
            warm_up=5,
            raise_after=4,
            hint="the critic's error exceeds the spread of the returns",
        ),
        Threshold(
            signal="return_std",
            warning=1e-3,
            low=True,
            raise_after=2,
            hint="all returns are equal: the policy has nothing to learn from",
        ),
        Threshold(
            signal="return_agreement",
            warning=0.1,
            low=True,
            raise_after=3,
            clear_ratio=1.2,
            hint="high returns no longer go with good networks: what does the reward pay for?",
        ),
        Threshold(signal="ratio_explosion", warning=5.0, raise_after=2, hint="a probability ratio exploded"),
        Threshold(
            signal="ratio_collapse",
            warning=0.1,
            low=True,
            raise_after=2,
            hint="a probability ratio collapsed",
        ),
        Threshold(
            signal="total_grad_norm",
            warning=10.0,
            warm_up=5,
            raise_after=4,
            hint="policy gradient, unclipped",
        ),
        Threshold(signal="memory", warning=0.85, critical=0.95, raise_after=2, hint="share of memory in use"),
        Threshold(
            signal="update_pace",
            warning=4.0,
            raise_after=3,
            hint="a step of the PPO update takes this many times its usual time: look at view Machine (5)",
        ),
        Threshold(
            signal="skipped_steps",
            warning=0.25,
            warm_up=2,
            raise_after=2,
            clear_after=2,
            hint="share of steps that overflow fp16: use amp.dtype=bf16, or lower host.learning_rate",
        ),
        Threshold(
            signal="telemetry_share",
            warning=0.03,
            raise_after=5,
            clear_after=3,
            hint="lower telemetry.level, or raise telemetry.stride",
        ),
        Threshold(
            signal="stalled_epochs",
            warning=18.0,
            is_note=True,
            hint="no better accuracy for this many epochs",
        ),
        Threshold(
            signal="accuracy_lost",
            warning=0.25,
            raise_after=3,
            clear_ratio=0.7,
            is_note=True,
            hint="validation accuracy fell this far below the episode's best",
        ),
        Threshold(
            signal="credit",
            warning=5.0,
            raise_after=4,
            is_note=True,
            hint="a seed is credited with far more than its env has gained: look at the reward",
        ),
        Threshold(
            signal="pace",
            warning=4.0,
            raise_after=8,
            clear_after=3,
            hint="epochs take this many times their usual time: look at view Machine (5)",
        ),
        Threshold(signal="queue_drops", warning=1.0, critical=1000.0, hint="telemetry was refused"),
        Threshold(
            signal="rollbacks",
            warning=3.0,
            is_note=True,
            hint="the governor puts this env back again and again",
        ),
        Threshold(
            signal="rollback_share",
            warning=0.34,
            critical=0.67,
            clear_after=3,
            hint="many envs are put back at once: what changed for all of them?",
        ),
    )
}


UPDATE_SIGNALS = {
    "approx_kl": "kl",
    "clip_fraction": "clip_fraction",
    "entropy": "entropy",
    "explained_variance": "value_collapse",
    "grad_norm": "total_grad_norm",
    "lstm_h_rms": "lstm_rms",
    "ratio_max": "ratio_explosion",
    "ratio_min": "ratio_collapse",
    "return_std": "return_std",
    "value_nrmse": "value_nrmse",
}
"""Rows of the table by the field of `ppo.update` that they are for."""


def with_limits(limits: Mapping[str, Sequence[float]]) -> dict[str, Threshold]:
    """The table with other limits.

    Args:
        limits: (warning, critical) or (warning,) by signal; those left out, or unknown, stay as they are.
    """
    return {
        signal: replace(threshold, warning=limits[signal][0], critical=[*limits[signal], None][1])
        if signal in limits
        else threshold
        for signal, threshold in THRESHOLDS.items()
    }


KL_LIMIT_IN_TARGETS = 3.0
"""A step beyond `ppo.target_kl` ends the passes: healthy updates end at up to twice that."""


def kl_limits(target_kl: float | None) -> tuple[float, float | None]:
    """(warning, critical) KL divergence of an update.

    Args:
        target_kl: `ppo.target_kl`; with 0 or None no step ends the passes, and the table's limits hold.
    """
    table = THRESHOLDS["kl"]
    return (KL_LIMIT_IN_TARGETS * target_kl if target_kl else table.warning), table.critical


VALUE_COLLAPSE_PHASES: tuple[tuple[float, float], ...] = ((0.10, -0.5), (0.25, -0.2), (0.75, 0.0), (1.0, 0.1))
"""(up to this share of the run, explained variance below which the critic has collapsed)."""
ENDLESS_ROUNDS = 100
"""Taken for the length of a run without an end."""


def value_collapse_limits(rounds_done: int, rounds: int) -> tuple[float, float | None]:
    """(warning, critical) explained variance at this point of the run.

    Args:
        rounds_done: rounds finished.
        rounds: rounds asked for; 0 = without an end.
    """
    share = min(rounds_done / (rounds or ENDLESS_ROUNDS), 1.0)
    limit = next(limit for until, limit in VALUE_COLLAPSE_PHASES if share <= until)
    return limit, None

"""What the checks look at, made from what was measured: one value per source, NaN where there is none."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.events import PPOUpdate, SystemSample
from protocol.thresholds import THRESHOLDS, VALUE_COLLAPSE_PHASES

from .transfer import Frame

Floats = NDArray[np.float64]
LEAST_CREDIT, LEAST_GAIN = 0.1, 0.02
"""Accuracy: contributions below the first are nobody's concern; gains below the second count as that much."""
PACE_EPOCHS, PACE_WARM = 240, 20
"""Epochs that the usual time is taken from, at most and at least."""
ENDLESS_ROUNDS = 100
"""Length that a run without an end counts as where limits depend on how far it is."""


class AccuracyRecord:
    """[N] each env's validation accuracies of the episode: the first, the best, how long that has stood."""

    def __init__(self, envs: int) -> None:
        self._first = np.full(envs, np.nan)
        self._best = np.full(envs, -np.inf)
        self._epochs = np.zeros(envs)

    def restart(self) -> None:
        """Fresh hosts: nothing is known of them."""
        self._first[:] = np.nan
        self.forgive(np.ones(len(self._best), dtype=np.bool_))

    def forgive(self, envs: NDArray[np.bool_]) -> None:
        """Accuracy of these may fall by right, since a seed is taken out: their best counts no more."""
        self._best[envs] = -np.inf
        self._epochs[envs] = 0.0

    def update(self, accuracy: Floats) -> dict[str, Floats]:
        """Take in one epoch; readings of envs that do not get better, or get worse."""
        self._first = np.where(np.isnan(self._first), accuracy, self._first)
        better = accuracy > self._best
        self._epochs = np.where(better, 0.0, self._epochs + 1.0)
        self._best = np.where(better, accuracy, self._best)
        return {"env.stalled": self._epochs, "env.degraded": self._best - accuracy}

    def credit(self, accuracy: Floats, contribution: Floats, blended: NDArray[np.bool_]) -> dict[str, Floats]:
        """How many times an env's gain since the episode's first epoch its best seed is credited with.

        Args:
            accuracy: [N].
            contribution: [N, S]; NaN where not measured.
            blended: [N, S], seeds that have one.
        """
        measured = ~np.isnan(contribution)
        largest = np.where(measured, contribution, 0.0).max(1)
        ratio = largest / np.maximum(accuracy - self._first, LEAST_GAIN)
        told = np.where(largest >= LEAST_CREDIT, ratio, 0.0)
        return {"env.reward_hacking": np.where(measured.any(1) | ~blended.any(1), told, np.nan)}

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, f"_{name}").tolist() for name in ("first", "best", "epochs")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            setattr(self, f"_{name}", np.array(values))


class Pace:
    """How an epoch's time compares with the usual one of this boot."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=PACE_EPOCHS)

    def update(self, seconds: float) -> dict[str, float]:
        """Take in one epoch: how many times the median of those before it took; NaN while those are few."""
        usual = float(np.median(self._seconds)) if len(self._seconds) >= PACE_WARM else math.nan
        self._seconds.append(seconds)
        return {"system.slow_epochs": seconds / usual}


def loss_readings(frame: Frame) -> dict[str, Floats]:
    """How many of an env's two losses are NaN or infinite."""
    bad = ~np.isfinite(frame["train_loss"]) + ~np.isfinite(frame["val_loss"])
    return {"env.loss_nonfinite": bad.astype(np.float64)}


def gradient_readings(scope: str, norm: Floats, health: Floats) -> dict[str, Floats]:
    """Readings of sources whose gradients were measured: those with a health.

    Args:
        scope: `env` or `seed`.
        norm: [K] gradient norms.
        health: [K]; NaN where not measured.
    """
    measured = ~np.isnan(health)
    finite = np.isfinite(norm)
    usable = np.where(measured & finite, norm, np.nan)
    return {
        f"{scope}.gradient_nonfinite": np.where(measured, ~finite, np.nan),
        f"{scope}.gradient_exploding": usable,
        f"{scope}.gradient_vanishing": usable,
        f"{scope}.gradient_health": health,
    }


def update_readings(update: PPOUpdate, heads: Sequence[str]) -> dict[str, Floats | float]:
    """Readings of one PPO update; what it did not measure is NaN."""

    def number(value: float | None) -> float:
        return math.nan if value is None else value

    states = (update.lstm_h_rms, update.lstm_c_rms)
    watched = (update.policy_loss, update.value_loss, update.approx_kl, update.grad_norm, *states)
    nonfinite = sum(value is not None and not math.isfinite(value) for value in watched)
    rms = [value for value in states if value is not None and math.isfinite(value)]
    flat_returns = number(update.return_std) <= THRESHOLDS["return_std"].warning
    return {
        "policy.nonfinite": float(update.skipped_nonfinite + nonfinite),
        "policy.kl_spike": update.approx_kl,
        "policy.clip_fraction": update.clip_fraction,
        "policy.ratio_explosion": update.ratio_max,
        "policy.ratio_collapse": update.ratio_min,
        "policy.entropy_collapse": update.entropy,
        "policy.gradient_exploding": update.grad_norm,
        "policy.lstm_saturated": max(rms, default=math.nan),
        "policy.lstm_dead": min(rms, default=math.nan),
        "policy.low_return_variance": number(update.return_std),
        "policy.slow_update": update.seconds,
        "head.entropy_collapse": np.array([number(update.head_entropy.get(head)) for head in heads]),
        # Explained variance is a ratio to the returns' own variance: where that is nothing, so is it.
        "critic.value_collapse": math.nan if flat_returns else number(update.explained_variance),
        "critic.value_error": math.nan if flat_returns else number(update.value_nrmse),
    }


def value_collapse_limits(rounds_done: int, rounds: int) -> tuple[float, float]:
    """(warning, critical) explained variance at this point of the run.

    Args:
        rounds_done: rounds finished.
        rounds: rounds asked for; 0 = without an end.
    """
    share = min(rounds_done / (rounds or ENDLESS_ROUNDS), 1.0)
    limit = next(limit for until, limit in VALUE_COLLAPSE_PHASES if share <= until)
    return limit, limit - 0.5


def system_readings(sample: SystemSample) -> dict[str, float]:
    """The fuller of the machine's memory and the GPU's."""
    shares = [sample.memory_used / sample.memory_total]
    if sample.gpu_memory is not None and sample.gpu_memory_total:
        shares.append(sample.gpu_memory / sample.gpu_memory_total)
    return {"system.memory": max(shares)}

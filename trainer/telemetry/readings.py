"""What the checks look at, made from what was measured: one value per source, NaN where there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.events import PPOUpdate, SystemSample
from protocol.thresholds import THRESHOLDS, VALUE_COLLAPSE_PHASES

from .transfer import Frame

Floats = NDArray[np.float64]
ENDLESS_ROUNDS = 100
"""Length that a run without an end counts as where limits depend on how far it is."""


class AccuracyRecord:
    """[N] each env's best validation accuracy of the episode, and for how long it has stood."""

    def __init__(self, envs: int) -> None:
        self._best = np.full(envs, -np.inf)
        self._epochs = np.zeros(envs)

    def restart(self) -> None:
        """Fresh hosts: nothing is known of them."""
        self._best[:] = -np.inf
        self._epochs[:] = 0.0

    def update(self, accuracy: Floats) -> tuple[Floats, Floats]:
        """Take in one epoch.

        Returns:
            [N] epochs since the best was reached, and [N] how far below it the env is now.
        """
        better = accuracy > self._best
        self._epochs = np.where(better, 0.0, self._epochs + 1.0)
        self._best = np.where(better, accuracy, self._best)
        return self._epochs, self._best - accuracy

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best.tolist(), "epochs": self._epochs.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best = np.array(state["best"])
        self._epochs = np.array(state["epochs"])


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

"""The readings of the checks, from what was measured: one value per source, NaN where there is none."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import SystemSample
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS, Threshold
from esper_overwatch.protocol.messages.vocabulary import BLENDED
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics

from .columns import EpochGradients
from .timer import PhaseTimes
from .transfer import HostFrame

Floats = NDArray[np.float64]
MIN_CONTRIBUTION, MIN_ACCURACY_GAIN = 0.1, 0.02
"""Accuracies: smaller contributions are not checked; smaller gains count as the second value."""
MAX_EPOCH_TIMES, MIN_EPOCH_TIMES = 240, 20
"""Epochs that the usual time is taken from, at most and at least."""
MAX_UPDATE_TIMES, MIN_UPDATE_TIMES = 40, 5
"""Likewise of PPO updates."""

AT_ONCE_EPOCHS, MIN_ROLLBACKS_AT_ONCE, MAX_ROLLBACK_AGE = 3, 3, 1000
"""Rollbacks of this many epochs count as at once, where they are of that many envs."""
MAX_EPISODES, MIN_EPISODES = 64, 32
"""Episodes whose returns are compared with what is reported of them, at most and at least."""
RISING_ROUNDS = 4
"""Rounds whose mean return is compared with that of as many before them."""
BUSY_SHARE = 0.25
"""Share of the machine from which on its other processes are taken for the cause of what is slow."""
MIN_RETURN_SPREAD = 0.02
"""Standard deviation of either below which they are not."""


class AccuracyRecord:
    """[N] each env's validation accuracies of the episode: the first, the best, epochs since the best."""

    def __init__(self, envs: int) -> None:
        self._first = np.full(envs, np.nan)
        self._best = np.full(envs, -np.inf)
        self._epochs = np.zeros(envs)

    def restart(self) -> None:
        """Fresh hosts: nothing is known of them."""
        self._first[:] = np.nan
        self.reset_best(np.ones(len(self._best), dtype=np.bool_))

    def reset_best(self, envs: NDArray[np.bool_]) -> None:
        """Forget the best of these envs: a seed is removed or left out, so accuracies fall."""
        self._best[envs] = -np.inf
        self._epochs[envs] = 0.0

    def update(self, accuracy: Floats) -> dict[str, Floats]:
        """Take in one epoch; readings of envs that do not get better, or get worse."""
        self._first = np.where(np.isnan(self._first), accuracy, self._first)
        better = accuracy > self._best
        self._epochs = np.where(better, 0.0, self._epochs + 1.0)
        self._best = np.where(better, accuracy, self._best)
        return {"env.stalled": self._epochs, "env.degraded": self._best - accuracy}

    def contribution_ratio(
        self, accuracy: Floats, contribution: Floats, blended: NDArray[np.bool_]
    ) -> dict[str, Floats]:
        """[N * S] how many times its env's gain since the episode's first epoch a seed is credited with.

        Args:
            accuracy: [N].
            contribution: [N, S]; NaN where not measured.
            blended: [N, S], seeds that have one; others are credited with nothing.
        """
        gain = np.maximum(accuracy - self._first, MIN_ACCURACY_GAIN)[:, None]
        ratio = np.where(contribution < MIN_CONTRIBUTION, 0.0, contribution / gain)
        ratio[np.isnan(contribution) & ~blended] = 0.0
        return {"seed.reward_hacking": ratio.reshape(-1)}

    def credit_patterns(self, accuracy: Floats, slots: int) -> dict[str, NDArray[np.str_]]:
        """[N * S] the pattern of a seed that is credited with too much: whether its env has gained at all."""
        pattern = np.where(accuracy > self._first, "credit_beyond_gain", "credit_without_gain")
        return {"seed.reward_hacking": np.repeat(pattern, slots)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "first": self._first.tolist(),
            "best": self._best.tolist(),
            "epochs": self._epochs.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._first = np.array(state["first"])
        self._best = np.array(state["best"])
        self._epochs = np.array(state["epochs"])


class ReturnRecord:
    """Correlation of returns with the quality of networks, over the newest episodes.

    The quality is the accuracy on the test images less the rent of the parameters added.
    """

    def __init__(self) -> None:
        self._rounds: deque[tuple[Floats, Floats]] = deque()
        self.means: dict[int, float] = {}
        """Mean return by round, of the newest."""

    def are_rising(self, round: int, returns: Floats) -> bool:
        """Take in a round's returns [N]; True if the newest rounds pay more than those before them."""
        self.means[round] = float(returns.mean())
        kept = list(self.means.values())[-2 * RISING_ROUNDS :]
        self.means = dict(zip(list(self.means)[-len(kept) :], kept, strict=True))
        newest, before = kept[-RISING_ROUNDS:], kept[:-RISING_ROUNDS]
        return bool(before) and float(np.mean(newest)) > float(np.mean(before))

    def update(self, returns: Floats, test_accuracy: Floats, rent: Floats) -> dict[str, float]:
        """Take in a round, [N] each: the correlation over the newest `MAX_EPISODES`.

        NaN while there are fewer than `MIN_EPISODES`, or where all are about the same: then it is noise.
        """
        self._rounds.append((returns.copy(), test_accuracy - rent))
        while sum(len(each) for each, _ in self._rounds) - len(self._rounds[0][0]) >= MAX_EPISODES:
            self._rounds.popleft()
        paid, reported = (np.concatenate(column) for column in zip(*self._rounds, strict=True))
        known = np.isfinite(paid) & np.isfinite(reported)
        paid, reported = paid[known], reported[known]
        reading = math.nan
        if len(paid) >= MIN_EPISODES and min(paid.std(), reported.std()) >= MIN_RETURN_SPREAD:
            reading = float(np.corrcoef(paid, reported)[0, 1])
        return {"policy.return_divergence": reading}

    def state_dict(self) -> list[list[list[float]]]:
        return [[paid.tolist(), reported.tolist()] for paid, reported in self._rounds]

    def load_state_dict(self, state: list[list[list[float]]]) -> None:
        self._rounds = deque((np.array(paid), np.array(reported)) for paid, reported in state)


class RollbackCounts:
    """Rollbacks of each env in this episode, and of how many envs lately."""

    def __init__(self, envs: int) -> None:
        self._count = np.zeros(envs, dtype=np.int64)
        self._ago = np.full(envs, MAX_ROLLBACK_AGE)
        """Epochs since the env's last."""

    def restart(self) -> None:
        """Fresh hosts."""
        self._count[:] = 0
        self._ago[:] = MAX_ROLLBACK_AGE

    def update(self, ill: NDArray[np.bool_]) -> dict[str, Any]:
        """Take in the envs [N] that were put back after an epoch.

        The share of those that were put back lately is 0 while they are few: one of two envs says nothing of
        the others.
        """
        self._count += ill
        self._ago = np.where(ill, 0, np.minimum(self._ago + 1, MAX_ROLLBACK_AGE))
        lately = int((self._ago < AT_ONCE_EPOCHS).sum())
        share = lately / len(ill) if lately == 0 or lately >= MIN_ROLLBACKS_AT_ONCE else 0.0
        return {"env.rollback": self._count.astype(np.float64), "hosts.rollback": share}

    def state_dict(self) -> list[list[int]]:
        return [self._count.tolist(), self._ago.tolist()]

    def load_state_dict(self, state: list[list[int]]) -> None:
        if state:  # older checkpoints have none
            self._count, self._ago = (np.array(column, dtype=np.int64) for column in state)


class Pace:
    """Ratio of a duration to the usual one of this boot.

    Args:
        most: durations that the usual one is taken from, the newest.
        least: fewer than this are not enough.
    """

    def __init__(self, most: int, least: int) -> None:
        self._seconds: deque[float] = deque(maxlen=most)
        self._least = least

    def update(self, seconds: float) -> float:
        """Take in one: how many times the median of those before it took; NaN while those are few."""
        usual = float(np.median(self._seconds)) if len(self._seconds) >= self._least else math.nan
        self._seconds.append(seconds)
        return seconds / usual


class EpochSignals:
    """Makes the readings of an epoch: here a new check of what an epoch measures gets its values.

    Args:
        steps: of an epoch.

    Attributes:
        accuracy: each env's record in the episode.
        rollbacks: each env's in the episode.
    """

    def __init__(self, envs: int, steps: int) -> None:
        self._steps = steps
        self.accuracy = AccuracyRecord(envs)
        self.rollbacks = RollbackCounts(envs)
        self._pace = Pace(MAX_EPOCH_TIMES, MIN_EPOCH_TIMES)
        self._cpu_pace = Pace(MAX_EPOCH_TIMES, MIN_EPOCH_TIMES)
        self._dropped = 0
        self.is_shared = False
        """True while others take much of the machine, as the newest sample has it."""

    def epoch_readings(
        self,
        frame: HostFrame,
        decision: HostFrame,
        gradients: EpochGradients,
        times: PhaseTimes,
        *,
        sample: SystemSample | None,
        dropped: int,
    ) -> dict[str, Any]:
        """One value per source and reading; NaN, or no reading at all, where it was not measured.

        Args:
            frame: the columns of `outcome_columns`.
            decision: the columns of `decision_columns` that the epoch was trained by.
            gradients: of the frame.
            times: of the epoch.
            sample: the newest one of the machine, if there is a new one.
            dropped: events refused for want of room, since the boot.
        """
        accuracy, contribution = frame["val_accuracy"], frame["contribution"]
        blended = np.isin(decision["stage"], BLENDED)
        newly_dropped, self._dropped = dropped - self._dropped, dropped
        readings: dict[str, Any] = {
            "telemetry.queue_drops": newly_dropped,
            "telemetry.share": telemetry_share(times),
        }
        if sample is not None:
            readings |= system_readings(sample)
            self.is_shared = others_share(sample) >= BUSY_SHARE
        if gradients.measured:
            seed_norm, seed_health = gradients.seed_norm.reshape(-1), gradients.seed_health.reshape(-1)
            readings |= gradient_readings("env", gradients.host_norm, gradients.host_health)
            readings |= gradient_readings("seed", seed_norm, seed_health)
        readings |= loss_readings(frame)
        readings |= self.rollbacks.update(frame.get("governor.ill", np.zeros(len(accuracy))) > 0)
        readings |= self.accuracy.update(accuracy)
        readings |= self.accuracy.contribution_ratio(accuracy, contribution, blended)
        by_clock = self._pace.update(times.seconds)
        by_cpu = self._cpu_pace.update(sum(times.cpu_phases.values()) or times.seconds)
        # Beside busy neighbours the clock says nothing of this run: then its own work is compared.
        readings["system.slow_epochs"] = min(by_clock, by_cpu) if self.is_shared else by_clock
        if "amp.skipped_steps" in frame:
            readings["env.fp16_overflow"] = frame["amp.skipped_steps"] / self._steps
        return readings


FREE_TELEMETRY_SECONDS = 0.005
"""Of an epoch: what nobody needs to be told of."""


def others_share(sample: SystemSample) -> float:
    """Share of the machine's cores that other processes keep busy; 0 where it was not measured."""
    if sample.machine_cpu_percent is None:
        return 0.0
    return (sample.machine_cpu_percent - sample.cpu_percent / (sample.machine_cores or sample.cores)) / 100


def telemetry_share(times: PhaseTimes) -> float:
    """Share of an epoch's time that telemetry took, by the clock, or of its CPU time where that is less.

    On a machine that others use too the clock also counts while the process waits for its turn. Not counted
    are `FREE_TELEMETRY_SECONDS`: a report costs some milliseconds, however short the epoch is.
    """
    share = max(0.0, times.phases.get("telemetry", 0.0) - FREE_TELEMETRY_SECONDS) / times.seconds
    if "telemetry" not in times.cpu_phases:
        return share
    whole = sum(times.cpu_phases.values())
    by_cpu = max(0.0, times.cpu_phases["telemetry"] - FREE_TELEMETRY_SECONDS)
    return min(share, by_cpu / whole) if whole else share


def loss_readings(frame: HostFrame) -> dict[str, Floats]:
    """Count an env's losses, out of two, that are NaN or infinite."""
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


def update_readings(
    update: UpdateStatistics, thresholds: Mapping[str, Threshold] = THRESHOLDS
) -> dict[str, Floats | float]:
    """Readings of one PPO update; what it did not measure is NaN."""
    states = (update.lstm_h_rms, update.lstm_c_rms)
    watched = [update.policy_loss, update.value_loss, update.approx_kl, *states]
    if update.minibatches:  # an update that only observes has no gradient
        watched.append(update.grad_norm)
    nonfinite = sum(not math.isfinite(value) for value in watched)
    rms = [value for value in states if math.isfinite(value)]
    flat_returns = update.return_std <= thresholds["return_std"].warning
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
        "policy.low_return_variance": update.return_std,
        "head.entropy_collapse": update.head_entropy,
        # Explained variance is a ratio to the returns' own variance: where that is nothing, so is it.
        "critic.value_collapse": math.nan if flat_returns else update.explained_variance,
        "critic.value_error": math.nan if flat_returns else update.value_nrmse,
    }


def seconds_per_step(update: UpdateStatistics) -> float:
    """Seconds per step of an update; how many steps it takes depends on where it stops."""
    return update.seconds / max(1, update.minibatches)


def system_readings(sample: SystemSample) -> dict[str, float]:
    """The fuller of the machine's memory and the GPU's, of which the allocator tells where NVML does not."""
    shares = [sample.memory_used / sample.memory_total]
    used = [held for held in (sample.gpu_memory, sample.gpu_reserved) if held is not None]
    if used and sample.gpu_memory_total:
        shares.append(max(used) / sample.gpu_memory_total)
    return {"system.memory": max(shares)}

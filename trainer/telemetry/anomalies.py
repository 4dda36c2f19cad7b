"""Checks of measurements while a run trains: one table, all of it evaluated by one call.

A check compares a reading with its row of `protocol.messages.thresholds`. The first readings of a source that
has just begun are not judged. It is raised after a number of breaches in a row, follows its severity, and is
cleared only after a number of calm readings in a row; in between it stays raised, and no event is emitted. A
reading that is absent (NaN) changes nothing: what is not measured can neither be raised nor cleared, but for
what would stay raised for ever, since its source is gone or the level of telemetry no longer measures it.
Runs on the host, on the columns of the one transfer. What the I/O thread sees of disk and loop it judges.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS, Threshold
from esper_overwatch.protocol.messages.vocabulary import Level, Severity
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.checkpoint_files import CheckpointError

from .collection.levels import LevelCode

Scope = Literal["env", "seed", "hosts", "policy", "head", "critic", "system", "telemetry"]
Readings = Mapping[str, NDArray[Any] | float]
"""Values by the `reading` of checks: one per source of the scope; NaN where not measured."""
Patterns = Mapping[str, NDArray[np.str_]]
"""Name patterns by reading, one for each source."""
Limits = dict[str, tuple[float, float | None]]
"""(warning, critical) by reading; None = it has no such severity."""
PATTERNS = ("", "credit_without_gain", "credit_beyond_gain")
"""Names of patterns by their codes in checkpoints: a new one is appended."""


@dataclass(frozen=True)
class AnomalyCheck:
    """One thing that can go wrong with each source of a scope."""

    scope: Scope
    kind: str
    threshold: str
    level: Level = "OFF"
    """The lowest at which it is measured."""

    @property
    def reading(self) -> str:
        """The name of the reading that it compares."""
        return f"{self.scope}.{self.kind}"


CHECKS: tuple[AnomalyCheck, ...] = (
    AnomalyCheck("env", "loss_nonfinite", "host_nonfinite"),
    AnomalyCheck("env", "gradient_nonfinite", "host_nonfinite", "NORMAL"),
    AnomalyCheck("env", "gradient_exploding", "gradient_exploding", "NORMAL"),
    AnomalyCheck("env", "gradient_vanishing", "gradient_vanishing", "NORMAL"),
    AnomalyCheck("env", "gradient_health", "gradient_health", "NORMAL"),
    AnomalyCheck("env", "norm_drift", "norm_drift", "NORMAL"),
    AnomalyCheck("env", "health_drift", "health_drift", "NORMAL"),
    AnomalyCheck("env", "stalled", "stalled_epochs"),
    AnomalyCheck("env", "degraded", "accuracy_lost"),
    AnomalyCheck("seed", "gradient_nonfinite", "host_nonfinite", "NORMAL"),
    AnomalyCheck("seed", "gradient_exploding", "seed_exploding", "NORMAL"),
    AnomalyCheck("seed", "gradient_vanishing", "seed_vanishing", "NORMAL"),
    AnomalyCheck("seed", "gradient_health", "seed_health", "NORMAL"),
    AnomalyCheck("seed", "norm_drift", "norm_drift", "NORMAL"),
    AnomalyCheck("seed", "health_drift", "health_drift", "NORMAL"),
    AnomalyCheck("policy", "nonfinite", "nonfinite"),
    AnomalyCheck("policy", "kl_spike", "kl"),
    AnomalyCheck("policy", "clip_fraction", "clip_fraction"),
    AnomalyCheck("policy", "ratio_explosion", "ratio_explosion"),
    AnomalyCheck("policy", "ratio_collapse", "ratio_collapse"),
    AnomalyCheck("policy", "entropy_collapse", "entropy"),
    AnomalyCheck("policy", "gradient_exploding", "total_grad_norm"),
    AnomalyCheck("policy", "norm_drift", "norm_drift", "NORMAL"),
    AnomalyCheck("policy", "lstm_saturated", "lstm_rms"),
    AnomalyCheck("policy", "lstm_dead", "lstm_rms_low"),
    AnomalyCheck("policy", "low_return_variance", "return_std"),
    AnomalyCheck("system", "slow_update", "update_pace"),
    AnomalyCheck("head", "entropy_collapse", "entropy"),
    AnomalyCheck("head", "norm_drift", "norm_drift", "NORMAL"),
    AnomalyCheck("critic", "value_collapse", "value_collapse"),
    AnomalyCheck("critic", "value_error", "value_nrmse"),
    AnomalyCheck("critic", "norm_drift", "norm_drift", "NORMAL"),
    AnomalyCheck("system", "memory", "memory"),
    AnomalyCheck("system", "slow_epochs", "pace"),
    AnomalyCheck("telemetry", "queue_drops", "queue_drops"),
    AnomalyCheck("telemetry", "share", "telemetry_share"),
    AnomalyCheck("env", "fp16_overflow", "skipped_steps"),
    AnomalyCheck("seed", "reward_hacking", "credit"),
    AnomalyCheck("policy", "return_divergence", "return_agreement"),
    AnomalyCheck("env", "rollback", "rollbacks"),
    AnomalyCheck("hosts", "rollback", "rollback_share"),
)
"""Checks in the order of their rows in checkpoints: a new one is appended."""
LAYOUT = 2
"""Version of those rows; raised where one is removed."""


def _checks_by_scope() -> dict[str, list[AnomalyCheck]]:
    scopes: dict[str, list[AnomalyCheck]] = {}
    for check in CHECKS:
        scopes.setdefault(check.scope, []).append(check)
    return scopes


class AnomalyDetector:
    """Runs the checks and emits what was raised, changed and cleared.

    Args:
        emitter: where `anomaly` events go.
        sources: the names of each scope's sources; a scope that is left out has one, named as itself.
        env_of: for scopes whose sources belong to envs, the env of each source.
        thresholds: the table of limits.
    """

    def __init__(
        self,
        emitter: Emitter,
        sources: Mapping[Scope, Sequence[str]],
        env_of: Mapping[Scope, Sequence[int]],
        thresholds: Mapping[str, Threshold] = THRESHOLDS,
    ) -> None:
        self._emitter = emitter
        self._rows: dict[str, slice] = {}
        self._subjects: list[tuple[AnomalyCheck, str, int | None]] = []
        for check in CHECKS:
            names = sources.get(check.scope, [check.scope])
            envs = env_of.get(check.scope, [None] * len(names))
            begin = len(self._subjects)
            self._subjects += [(check, name, env) for name, env in zip(names, envs, strict=True)]
            self._rows[check.reading] = slice(begin, len(self._subjects))
        self._rows_of_scope: dict[str, NDArray[np.intp]] = {
            scope: np.stack([np.arange(len(self._subjects))[self._rows[c.reading]] for c in checks])
            for scope, checks in _checks_by_scope().items()
        }
        """[checks, sources] rows of each scope."""
        self._level = np.array([LevelCode[check.level] for check, _, _ in self._subjects])
        """[K] codes of the levels from which on they are measured."""
        rows = [thresholds[check.threshold] for check, _, _ in self._subjects]
        # Everything is compared as "sign * value >= sign * limit", so that low limits need no case.
        self._sign = np.array([-1.0 if t.low else 1.0 for t in rows])
        self._warm_up = np.array([t.warm_up for t in rows])
        self._severities: list[tuple[Severity, ...]] = [
            ("info", "info" if t.is_note else "warning", "critical") for t in rows
        ]
        """By the code in force; what has ended is told with the last."""
        self._raise_after = np.array([t.raise_after for t in rows])
        self._clear_after = np.array([t.clear_after for t in rows])
        self._clear_ratio = np.array([t.clear_ratio for t in rows])
        self._fixed_limits = np.array([[t.warning, t.critical] for t in rows], dtype=np.float64).T
        """[2, K]; NaN where there is no such severity, which no value reaches."""
        k = len(rows)
        self._moved_limits = np.full((2, k), np.nan)
        """[2, K] those that were set since; NaN where none were."""
        self._set_limits()
        self._age = np.zeros(k, dtype=np.int64)
        """[K] readings since the source began."""
        self._active = np.zeros(k, dtype=np.int8)
        """[K] severity in force; 0 = quiet."""
        self._breaches = np.zeros(k, dtype=np.int64)
        """[K] in a row."""
        self._calm = np.zeros(k, dtype=np.int64)
        """[K] readings in a row that speak for a lower severity."""
        self._count = np.zeros(k, dtype=np.int64)
        """[K] breaches since it was raised, those that raised it included."""
        self._since = np.zeros(k, dtype=np.int64)
        self._peak = np.full(k, np.nan)
        """[K] worst value, times the sign, of the breaches in a row and of those since it was raised."""
        self._pattern = np.zeros(k, dtype=np.int8)
        """[K] codes of `PATTERNS`, as of the newest reading."""
        self._raised: list[tuple[Anomaly, int | None]] = []

    def check_all(
        self, readings: Readings, *, limits: Limits | None = None, patterns: Patterns | None = None
    ) -> None:
        """Run every check on what was measured.

        Args:
            readings: by name; a reading without a check is an error, a check without a reading is passed.
            limits: of readings whose limits move; they hold until set again.
            patterns: of kinds that have several, which one of `PATTERNS` each source would show.
        """
        for name, names in (patterns or {}).items():
            self._pattern[self._rows[name]] = sum(
                (names == pattern) * code for code, pattern in enumerate(PATTERNS)
            )
        if limits:
            for name, pair in limits.items():
                self._moved_limits[:, self._rows[name]] = np.array(pair, dtype=np.float64).reshape(2, 1)
            self._set_limits()
        value = np.full(len(self._subjects), np.nan)
        for name, reading in readings.items():
            value[self._rows[name]] = reading
        self._age += ~np.isnan(value)
        value[self._age <= self._warm_up] = np.nan
        present = ~np.isnan(value)
        severity = self._severity(value, self._raise_at)
        if not severity.any() and not self._active.any():
            self._breaches[present] = 0
            return
        self._step(value, present, severity)

    def remove_sources(self, scope: Scope, gone: NDArray[np.bool_]) -> None:
        """Forget the sources where `gone` is true, and clear what they had raised."""
        rows = self._rows_of_scope[scope][:, gone.reshape(-1)].reshape(-1)
        self._age[rows] = 0
        self._forget(rows)

    def restart_warm_up(self, scope: Scope, changed: NDArray[np.bool_]) -> None:
        """Judge the sources where `changed` is true only after their warm-up; what they raised stays."""
        self._age[self._rows_of_scope[scope][:, changed.reshape(-1)]] = 0

    def remove_unmeasured(self, scope: Scope, level: NDArray[np.int8] | np.int8) -> None:
        """Forget, and clear, what the level of a source does not measure.

        Args:
            level: codes of `LevelCode`, one for each source, or one for all.
        """
        rows = self._rows_of_scope[scope]
        self._forget(rows[self._level[rows] > level])

    def _forget(self, rows: NDArray[np.intp]) -> None:
        self._breaches[rows] = 0
        self._calm[rows] = 0
        for i in rows[self._active[rows] > 0]:
            severity = int(self._active[i])
            self._active[i] = 0
            self._emit(i, severity, None)

    def limits_of(self, reading: str) -> list[float]:
        """The limits in force of the first source: of a warning, and of a critical value where there is one.

        Empty while the check is in its warm-up.
        """
        row = self._rows[reading].start
        found = self._limits[:, row]
        return found[~np.isnan(found)].tolist() if self._age[row] > self._warm_up[row] else []

    @property
    def has_raised(self) -> bool:
        """True if `take_raised` has something to return."""
        return bool(self._raised)

    def take_raised(self) -> list[tuple[Anomaly, int | None]]:
        """Take the anomalies raised, or become worse, since the last call; each with its env, where it has
        one."""
        raised, self._raised = self._raised, []
        return raised

    def emit_active(self) -> None:
        """Emit anomalies still active after a resume, each without a value."""
        for i in np.flatnonzero(self._active):
            self._emit(i, int(self._active[i]), None)

    @property
    def active(self) -> int:
        """Number of raised anomalies."""
        return int(np.count_nonzero(self._active))

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: torch.from_numpy(array.copy()) for name, array in self._state().items()}
        return {"layout": torch.tensor(LAYOUT), **arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with saved checks; raises CheckpointError where their rows mean others."""
        if (layout := int(state["layout"])) != LAYOUT:
            raise CheckpointError(
                f"the checkpoint's anomalies have layout {layout}, this version reads {LAYOUT}: "
                "start a new run, or resume this one with the version that made it"
            )
        for name, array in self._state().items():
            if name in state:  # older checkpoints have no ages
                saved = state[name].numpy()  # may lack the checks that have been appended since
                array[: len(saved)] = saved
        self._set_limits()

    def _state(self) -> dict[str, NDArray[Any]]:
        return {
            "age": self._age,
            "active": self._active,
            "breaches": self._breaches,
            "calm": self._calm,
            "count": self._count,
            "since": self._since,
            "peak": self._peak,
            "warning": self._moved_limits[0],
            "critical": self._moved_limits[1],
            "pattern": self._pattern,
        }

    def _set_limits(self) -> None:
        """Put [2, K] warning and critical limits in force: the fixed ones, or those that have moved."""
        self._limits = np.where(np.isnan(self._moved_limits), self._fixed_limits, self._moved_limits)
        self._raise_at = self._sign * self._limits
        self._hold_at = self._raise_at * self._clear_ratio

    def _severity(self, value: NDArray[Any], signed_limits: NDArray[np.float64]) -> NDArray[np.int8]:
        """[K] 0, 1 or 2: how many of the two limits are reached; an absent value is 0."""
        warning, critical = (self._sign * value >= signed_limits).astype(np.int8)
        severity: NDArray[np.int8] = warning + critical
        return severity

    def _step(self, value: NDArray[Any], present: NDArray[np.bool_], severity: NDArray[np.int8]) -> None:
        breach = severity > 0
        self._breaches[breach] += 1
        self._breaches[present & ~breach] = 0
        before = self._active.copy()
        begins = breach & (before == 0) & (self._breaches == 1)
        self._peak[begins] = np.nan
        self._peak[breach] = np.fmax(self._peak[breach], (self._sign * value)[breach])

        raised = breach & (before == 0) & (self._breaches >= self._raise_after)
        self._count[raised] = self._breaches[raised] - 1
        self._since[raised] = time.time_ns() // 1000
        worse = (before > 0) & (severity > before)
        up = raised | worse
        self._active[up] = severity[up]

        held = self._severity(value, self._hold_at)
        calmer = present & (before > 0) & (held < before)
        self._calm[calmer] += 1
        self._calm[present & ~calmer] = 0
        down = calmer & (self._calm >= self._clear_after)
        self._active[down] = held[down]
        self._calm[down] = 0

        self._count[breach & (self._active > 0)] += 1
        for i in np.flatnonzero(self._active != before):
            severity_shown = max(int(self._active[i]), int(before[i]) if self._active[i] == 0 else 0)
            anomaly = self._emit(i, severity_shown, value[i])
            if up[i]:
                self._raised.append((anomaly, self._subjects[i][2]))

    def _emit(self, i: int | np.intp, severity: int, value: float | None) -> Anomaly:
        check, source, env = self._subjects[i]
        limit = self._limits[max(int(self._active[i]) - 1, 0), i]
        anomaly = Anomaly(
            kind=check.kind,
            source=source,
            severity=self._severities[i][severity],
            active=bool(self._active[i]),
            value=None if value is None else float(value),
            threshold=float(limit),
            count=int(self._count[i]),
            since=int(self._since[i]),
            hint=THRESHOLDS[check.threshold].hint,
            pattern=PATTERNS[self._pattern[i]],
            peak=None if np.isnan(self._peak[i]) else float(self._sign[i] * self._peak[i]),
        )
        self._emitter.emit(anomaly, env=env)
        return anomaly

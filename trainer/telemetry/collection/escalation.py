"""Escalations that nobody asked for: by anomalies, and by the calendar that the configuration sets.

An anomaly has the layers of its env (of all envs where it is the policy's) collected for some epochs, so that
what it led to can be looked at. The cost is bounded: a subject that was looked at is left alone for a while,
and of a round's epochs only a share is ever spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from protocol.events import Anomaly, TelemetryLevel

from ..config import TelemetryConfig
from .levels import Levels

REST = 4
"""So many times as long as it was looked at is a subject left alone."""
_OF_THE_MACHINE = ("system", "telemetry")
"""Sources whose anomalies no layer explains, and that collecting would make worse."""
_RANK = {"info": 0, "warning": 1, "critical": 2}


class Escalations:
    """Raises `levels` to DEBUG; to be asked between two epochs.

    Args:
        levels: what is in force.
        config: when, how long, and how much at most.
        episode_epochs: epochs of a round.
        envs: how many there are.
    """

    def __init__(self, levels: Levels, config: TelemetryConfig, episode_epochs: int, envs: int) -> None:
        self._levels, self._config = levels, config
        self._allowed = int(config.escalate_share * episode_epochs)
        self._granted = 0
        """Epochs of this round that anomalies have been given."""
        self._left = 0
        """Epochs until the last escalation by an anomaly ends."""
        self._rest = np.zeros(envs + 1, dtype=np.int64)
        """Epochs for which each env is left alone; the last one is the run as a whole."""

    def round_begins(self, round: int) -> list[TelemetryLevel]:
        """The epochs of the round that the configuration wants to see in detail."""
        self._granted = self._left
        every = self._config.debug_every
        if not every or (round - 1) % every or self._levels.default == "DEBUG":
            return []
        return self._levels.escalate("DEBUG", self._config.debug_epochs, reason="telemetry.debug_every")

    def epoch_finished(self) -> None:
        """Time passes."""
        self._left = max(0, self._left - 1)
        np.maximum(self._rest - 1, 0, out=self._rest)

    def raised(self, anomalies: Sequence[tuple[Anomaly, int | None]]) -> list[TelemetryLevel]:
        """Anomalies were raised, or became worse; each with its env, where it has one."""
        told: list[TelemetryLevel] = []
        if self._config.escalate_on == "off" or self._levels.default == "DEBUG":
            return told
        for anomaly, env in anomalies:
            if anomaly.source in _OF_THE_MACHINE:
                continue
            if _RANK[anomaly.severity] >= _RANK[self._config.escalate_on]:
                told += self._escalate(anomaly, env)
        return told

    def _escalate(self, anomaly: Anomaly, env: int | None) -> list[TelemetryLevel]:
        place = len(self._rest) - 1 if env is None else env
        longer = min(max(0, self._config.escalate_epochs - self._left), self._allowed - self._granted)
        epochs = min(self._config.escalate_epochs, self._left + max(0, longer))
        if self._rest[place] or epochs <= self._levels.lasts("DEBUG", env):
            return []
        self._granted += max(0, epochs - self._left)
        self._left = max(self._left, epochs)
        self._rest[place] = (1 + REST) * epochs
        reason = f"{anomaly.kind} of {anomaly.source}"
        return self._levels.escalate("DEBUG", epochs, env=env, reason=reason)

    def state_dict(self) -> dict[str, Any]:
        return {"granted": self._granted, "left": self._left, "rest": self._rest.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._granted, self._left = state["granted"], state["left"]
        self._rest[:] = state["rest"]

"""Automatic escalations: by anomalies, and by the calendar that the configuration sets.

An anomaly has the layers of its env (of all envs where it is the policy's) collected for some epochs, so that
what it led to can be looked at. The cost is bounded: a subject that was looked at is left alone for a while,
and of a round's epochs only a share is ever spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK
from esper_overwatch.trainer.config.service_options import TelemetryConfig

from .levels import Levels

COOLDOWN_FACTOR = 4
"""Cooldown of a subject after its escalation, in lengths of the escalation."""
_OF_THE_MACHINE = ("system", "telemetry")
"""Sources that do not escalate: layers do not explain them, and collecting would make them worse."""


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
        self._cooldown = np.zeros(envs + 1, dtype=np.int64)
        """Epochs for which each env is left alone; the last one is the complete run."""

    def on_round_begin(self, round: int) -> None:
        """The epochs of the round that the configuration wants to see in detail."""
        self._granted = self._left
        every = self._config.debug_every
        if every and (round - 1) % every == 0 and self._levels.default != "DEBUG":
            self._levels.escalate("DEBUG", self._config.debug_epochs, reason="telemetry.debug_every")

    def on_epoch_end(self) -> None:
        """Count one epoch off the budget and off every subject's cooldown."""
        self._left = max(0, self._left - 1)
        np.maximum(self._cooldown - 1, 0, out=self._cooldown)

    def on_anomalies(self, anomalies: Sequence[tuple[Anomaly, int | None]]) -> None:
        """Anomalies were raised, or became worse; each with its env, where it has one."""
        if self._config.escalate_on == "off" or self._levels.default == "DEBUG":
            return
        for anomaly, env in anomalies:
            if anomaly.source in _OF_THE_MACHINE:
                continue
            if SEVERITY_RANK[anomaly.severity] >= SEVERITY_RANK[self._config.escalate_on]:
                self._escalate(anomaly, env)

    def _escalate(self, anomaly: Anomaly, env: int | None) -> None:
        place = len(self._cooldown) - 1 if env is None else env
        longer = min(max(0, self._config.escalate_epochs - self._left), self._allowed - self._granted)
        epochs = min(self._config.escalate_epochs, self._left + max(0, longer))
        if self._cooldown[place] or epochs <= self._levels.lasts("DEBUG", env):
            return
        self._granted += max(0, epochs - self._left)
        self._left = max(self._left, epochs)
        self._cooldown[place] = (1 + COOLDOWN_FACTOR) * epochs
        reason = f"{anomaly.kind} of {anomaly.source}"
        self._levels.escalate("DEBUG", epochs, env=env, reason=reason)

    def state_dict(self) -> dict[str, Any]:
        return {"granted": self._granted, "left": self._left, "rest": self._cooldown.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._granted, self._left = state["granted"], state["left"]
        self._cooldown[:] = state["rest"]

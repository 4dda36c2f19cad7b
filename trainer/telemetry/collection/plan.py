"""Plan of collection: what is collected in the next epoch, for which envs, until when, at whose request.

Levels say how much, escalations by anomalies and by the calendar raise them, the interval thins out what is
costly. The plan reports every change as an event; it is asked and changed between two epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.config.service_options import TelemetryConfig

from .escalation import Escalations
from .interval import CollectionInterval
from .levels import LevelCode, Levels


class CollectionPlan(Levels):
    """The levels in force, who raises them beside commands, and which epochs are collected.

    Args:
        emitter: takes `telemetry.level` and `telemetry.stride` events.
        config: default level, budget, and when to escalate.
        envs: how many there are in the run, N.
        episode_epochs: epochs of a round.
    """

    def __init__(self, emitter: Emitter, config: TelemetryConfig, *, envs: int, episode_epochs: int) -> None:
        super().__init__(emitter, config.level, envs)
        self._escalations = Escalations(self, config, episode_epochs, envs)
        self._interval = CollectionInterval(config.stride, config.budget)

    @property
    def is_due(self) -> bool:
        """The costly part, drift and layers, is collected."""
        return self._interval.due or self.is_escalated

    @property
    def layer_envs(self) -> NDArray[np.bool_]:
        """[N] envs that give layer statistics in the coming epoch."""
        wanted = self.level_by_env >= LevelCode.DEBUG
        return wanted if self.is_due else np.zeros_like(wanted)

    def begin_round(self, round: int) -> None:
        """Escalate the rounds that the configuration wants to see in detail."""
        self._escalations.on_round_begin(round)

    def record_cost(self, seconds: float, drift: float | None, layers: float) -> None:
        """Adapt the interval to what collecting cost in the epoch.

        Args:
            seconds: wall time of the epoch.
            drift: part of it for drift; None where nothing was collected.
            layers: part of it for layer statistics; those of escalated epochs do not count.
        """
        cost = drift if drift is None or self.is_escalated else drift + layers
        event = self._interval.record_epoch(seconds, cost)
        if event is not None:
            self._emitter.emit(event)

    def end_epoch(self, anomalies: Sequence[tuple[Anomaly, int | None]]) -> None:
        """Count the epoch off every escalation, then escalate what the epoch's anomalies ask for."""
        self.tick()
        self._escalations.on_epoch_end()
        self.escalate_anomalies(anomalies)

    def escalate_anomalies(self, anomalies: Sequence[tuple[Anomaly, int | None]]) -> None:
        """Escalate the envs of anomalies that were raised or became worse; None = of no env."""
        self._escalations.on_anomalies(anomalies)

    def state_dict(self) -> dict[str, Any]:
        return {
            "levels": super().state_dict(),
            "stride": self._interval.state_dict(),
            "escalations": self._escalations.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["levels"])
        self._interval.load_state_dict(state["stride"])
        self._escalations.load_state_dict(state["escalations"])

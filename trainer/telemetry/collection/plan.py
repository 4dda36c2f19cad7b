"""Plan of collection: what is collected in the next epoch, for which envs, until when, at whose request.

Levels say how much, escalations by anomalies and by the calendar raise them, the interval thins out what is
costly. The plan reports every change as an event; it is asked and changed between two epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import Anomaly, TelemetryLevel
from esper_overwatch.protocol.messages.vocabulary import Level
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.config.service_options import TelemetryConfig

from .escalation import Escalations
from .interval import CollectionInterval
from .levels import Levels


class CollectionPlan:
    """Owns the levels in force and the complete life of every escalation.

    Args:
        emitter: takes `telemetry.level` and `telemetry.stride` events.
        config: default level, budget, and when to escalate.
        envs: how many there are in the run, N.
        episode_epochs: epochs of a round.
    """

    def __init__(self, emitter: Emitter, config: TelemetryConfig, *, envs: int, episode_epochs: int) -> None:
        self._emitter = emitter
        self._levels = Levels(config.level, envs)
        self._escalations = Escalations(self._levels, config, episode_epochs, envs)
        self._interval = CollectionInterval(config.stride, config.budget)
        self._ended: dict[str, Level] = {}

    # What holds for the coming epoch.

    @property
    def level(self) -> Level:
        """The highest level in force in any env; what the context of events carries."""
        return self._levels.level

    @property
    def level_by_env(self) -> NDArray[np.int8]:
        """[N] codes of `LevelCode`; not to be written to."""
        return self._levels.by_env

    @property
    def is_due(self) -> bool:
        """The costly part, drift and layers, is collected."""
        return self._interval.due or self._levels.escalated

    @property
    def layer_envs(self) -> NDArray[np.bool_]:
        """[N] envs that give layer statistics."""
        wanted = self._levels.debug_envs
        return wanted if self.is_due else np.zeros_like(wanted)

    # Escalations on request.

    def escalate(
        self, level: Level, epochs: int, *, env: int | None = None, reason: str, command: str | None = None
    ) -> None:
        """Raise the level for the next `epochs` epochs; see `Levels.escalate`.

        Raises:
            ValueError: no such env, or the run collects as much already.
        """
        self._report(self._levels.escalate(level, epochs, env=env, reason=reason, command=command))

    def cancel(self, command: str, reason: str) -> None:
        """End the escalation that this command asked for, now."""
        self._report(self._levels.cancel(command, reason))

    def epochs_left(self, command: str) -> int | None:
        """Epochs left of the escalation that this command asked for; None where it is over."""
        return self._levels.left(command)

    def take_ended(self) -> dict[str, Level]:
        """Take the escalations, by command id, that have ended since the last call, and the level then."""
        ended, self._ended = self._ended, {}
        return ended

    def report_in_force(self) -> None:
        """Tell of those that a resumed boot begins with: whoever follows a boot begins with none."""
        self._report(self._levels.in_force("in force at the checkpoint"))

    # The boundaries.

    def begin_round(self, round: int) -> None:
        """Escalate the rounds that the configuration wants to see in detail."""
        self._report(self._escalations.on_round_begin(round))

    def record_cost(self, seconds: float, drift: float | None, layers: float) -> None:
        """Adapt the interval to what collecting cost in the epoch.

        Args:
            seconds: wall time of the epoch.
            drift: part of it for drift; None where nothing was collected.
            layers: part of it for layer statistics; those of escalated epochs do not count.
        """
        cost = drift if drift is None or self._levels.escalated else drift + layers
        event = self._interval.record_epoch(seconds, cost)
        if event is not None:
            self._emitter.emit(event)

    def end_epoch(self, anomalies: Sequence[tuple[Anomaly, int | None]]) -> None:
        """Count the epoch off every escalation, then escalate what the epoch's anomalies ask for."""
        ended = self._levels.tick()
        self._ended |= {event.command: event.level for event in ended if event.command is not None}
        self._report(ended)
        self._escalations.on_epoch_end()
        self.escalate_anomalies(anomalies)

    def escalate_anomalies(self, anomalies: Sequence[tuple[Anomaly, int | None]]) -> None:
        """Escalate the envs of anomalies that were raised or became worse; None = of no env."""
        self._report(self._escalations.on_anomalies(anomalies))

    def _report(self, changes: list[TelemetryLevel]) -> None:
        for change in changes:
            self._emitter.emit(change)

    def state_dict(self) -> dict[str, Any]:
        return {
            "levels": self._levels.state_dict(),
            "stride": self._interval.state_dict(),
            "escalations": self._escalations.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._levels.load_state_dict(state["levels"])
        self._interval.load_state_dict(state["stride"])
        self._escalations.load_state_dict(state["escalations"])

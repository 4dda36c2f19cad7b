"""Escalations of telemetry in force: several may overlap, and each one ends on its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from esper_overwatch.protocol.messages.events import TelemetryLevel

_Key = tuple[str | None, int | None, str]
"""(id of the command, env, reason); one by an anomaly or by the calendar has no command."""


@dataclass
class OpenEscalations:
    """Escalations of a boot, folded from `telemetry.level`; clocks are epochs since the run began."""

    _until: dict[_Key, tuple[int, str]] = field(default_factory=dict)
    """The clock at which each falls back, and its level."""

    def copy(self) -> OpenEscalations:
        return OpenEscalations(dict(self._until))

    def fold(self, data: TelemetryLevel, clock: int) -> None:
        """Take in the begin or the end of an escalation."""
        # One that a command asked for may be ended before its time.
        ended = (data.command, data.env) if data.epochs is None and data.command is not None else None
        self._until = {key: at for key, at in self._until.items() if at[0] > clock and key[:2] != ended}
        if data.epochs is not None:
            self._until[data.command, data.env, data.reason] = clock + data.epochs, data.level

    def left(self, clock: int, command: str | None = None) -> int | None:
        """Epochs until the last one falls back, or the one of a command's id; None where none is in force."""
        found = [at[0] for key, at in self._until.items() if command is None or key[0] == command]
        left = max(found, default=clock) - clock
        return left if left > 0 else None

    @property
    def level(self) -> str:
        """Level of the one that lasts longest; empty where there was none."""
        return max(self._until.values(), default=(0, ""))[1]

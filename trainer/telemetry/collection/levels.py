"""Levels of collection: a default level, and escalations that end automatically.

An escalation counts epochs: made between two epochs, it is in force for exactly as many as asked for, then
falls back. Escalations may overlap; the highest wins and each one ends on its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import TelemetryLevel
from esper_overwatch.protocol.messages.vocabulary import LEVELS, Level
from esper_overwatch.protocol.server.emitter import Emitter


class LevelCode(IntEnum):
    """Levels of collection; each one adds to those below it."""

    OFF = 0
    """Events of the stream `life`."""
    MINIMAL = 1
    """Epochs without gradients, PPO updates, the machine."""
    NORMAL = 2
    """Gradient norms, health and drift."""
    DEBUG = 3
    """Statistics of every layer."""


@dataclass
class Escalation:
    """A level asked for, and how many epochs of it are left."""

    level: Level
    left: int
    env: int | None
    command: str | None


class Levels:
    """Levels in force, for the run and for each env; every change is an event.

    Args:
        emitter: takes the `telemetry.level` events.
        default: the level outside escalations.
        envs: how many envs there are.
    """

    def __init__(self, emitter: Emitter, default: Level, envs: int) -> None:
        self.default = default
        self._emitter, self._envs = emitter, envs
        self._asked: list[Escalation] = []
        self._by_env = self._resolve()
        self._ended: dict[str, Level] = {}

    @property
    def level(self) -> Level:
        """The highest level in force in any env; what the context of events carries."""
        return LEVELS[int(self._by_env.max())]

    @property
    def level_by_env(self) -> NDArray[np.int8]:
        """[N] codes of `LevelCode`; not to be written to."""
        return self._by_env

    @property
    def is_escalated(self) -> bool:
        """True while an escalation is in force."""
        return bool(self._asked)

    @property
    def num_of_commands(self) -> int:
        """Escalations in force that commands have asked for."""
        return sum(e.command is not None for e in self._asked)

    def check(self, level: Level, env: int | None) -> None:
        """Check that `escalate` may be asked for this, whatever is in force.

        Raises:
            ValueError: no such env, or the run collects as much already.
        """
        if env is not None and not 0 <= env < self._envs:
            raise ValueError(f"env {env}: this run has envs 0 to {self._envs - 1}")
        if LevelCode[level] <= LevelCode[self.default]:
            raise ValueError(f"level {level}: the run collects {self.default} all the time; ask for more")

    def escalate(
        self,
        level: Level,
        epochs: int,
        *,
        env: int | None = None,
        reason: str,
        command: str | None = None,
    ) -> None:
        """Raise the level for the next `epochs` epochs. To be called between two epochs.

        Args:
            level: above the default.
            epochs: at least 1.
            env: only this env; None for all.
            reason: who or what asked, for the event.
            command: id of the command, if one asked; the event at the end carries it too.

        Raises:
            ValueError: no such env, or the run collects as much already.
        """
        self.check(level, env)
        if epochs < 1:
            raise ValueError(f"epochs {epochs}: must be at least 1")
        previous = self._scope(env)
        asked = Escalation(level, epochs, env, command)
        self._asked.append(asked)
        self._by_env = self._resolve()
        self._report(asked, previous, reason, epochs)

    def tick(self) -> None:
        """An epoch is finished: count down; the event of an escalation that ends has no `epochs`."""
        for escalation in self._asked:
            escalation.left -= 1
        over = [e for e in self._asked if e.left <= 0]
        self._end(over, "its epochs are over")
        self._ended |= {e.command: self._scope(e.env) for e in over if e.command is not None}

    def epochs_left(self, command: str) -> int | None:
        """Epochs left of the escalation that this command asked for; None where it is over."""
        return next((e.left for e in self._asked if e.command == command), None)

    def take_ended(self) -> dict[str, Level]:
        """Take the escalations, by command id, that have ended since the last call, and the level then."""
        ended, self._ended = self._ended, {}
        return ended

    def lasts(self, level: Level, env: int | None) -> int:
        """Epochs for which escalations keep this env (None: every env) at `level` or above."""
        enough = [e for e in self._asked if LevelCode[e.level] >= LevelCode[level]]
        return max((e.left for e in enough if e.env in (None, env)), default=0)

    def cancel(self, command: str, reason: str) -> None:
        """End the escalation that this command asked for, now."""
        self._end([e for e in self._asked if e.command == command], reason)

    def report_in_force(self) -> None:
        """Tell of those that a resumed boot begins with: whoever follows a boot begins with none."""
        for one in sorted(self._asked, key=lambda e: e.left):  # the longest last
            self._report(one, self.default, "in force at the checkpoint", one.left)

    def _end(self, ended: list[Escalation], reason: str) -> None:
        before = [self._scope(e.env) for e in ended]
        self._asked = [e for e in self._asked if e not in ended]
        self._by_env = self._resolve()
        for one, previous in zip(ended, before, strict=True):
            self._report(one, previous, reason)

    def _report(self, one: Escalation, previous: Level, reason: str, epochs: int | None = None) -> None:
        self._emitter.emit(
            TelemetryLevel(
                level=self._scope(one.env),
                previous=previous,
                reason=reason,
                epochs=epochs,
                env=one.env,
                command=one.command,
            )
        )

    def state_dict(self) -> dict[str, Any]:
        return {"escalations": [asdict(e) for e in self._asked]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._asked = [Escalation(**e) for e in state["escalations"]]
        self._by_env = self._resolve()

    def _scope(self, env: int | None) -> Level:
        """The level of one env, or the one all envs have at least."""
        code = self._by_env.min() if env is None else self._by_env[env]
        return LEVELS[int(code)]

    def _resolve(self) -> NDArray[np.int8]:
        levels = np.full(self._envs, LevelCode[self.default], dtype=np.int8)
        for escalation in self._asked:
            rows = slice(None) if escalation.env is None else escalation.env
            levels[rows] = np.maximum(levels[rows], LevelCode[escalation.level])
        return levels

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
    """Levels in force, for the run and for each env.

    Args:
        default: the level outside escalations.
        envs: how many envs there are.
    """

    def __init__(self, default: Level, envs: int) -> None:
        self.default = default
        self._envs = envs
        self._escalations: list[Escalation] = []
        self._by_env = self._resolve()

    @property
    def level(self) -> Level:
        """The highest level in force in any env; what the context of events carries."""
        return LEVELS[int(self._by_env.max())]

    @property
    def by_env(self) -> NDArray[np.int8]:
        """[N] codes of `LevelCode`; not to be written to."""
        return self._by_env

    @property
    def escalated(self) -> bool:
        """True while an escalation is in force."""
        return bool(self._escalations)

    @property
    def debug_envs(self) -> NDArray[np.bool_]:
        """[N] envs whose layers are collected in the coming epoch."""
        return self._by_env >= LevelCode.DEBUG

    def escalate(
        self,
        level: Level,
        epochs: int,
        *,
        env: int | None = None,
        reason: str,
        command: str | None = None,
    ) -> list[TelemetryLevel]:
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
        if env is not None and not 0 <= env < self._envs:
            raise ValueError(f"env {env}: this run has envs 0 to {self._envs - 1}")
        if epochs < 1:
            raise ValueError(f"epochs {epochs}: must be at least 1")
        if LevelCode[level] <= LevelCode[self.default]:
            raise ValueError(f"level {level}: the run collects {self.default} all the time; ask for more")
        previous = self._scope(env)
        self._escalations.append(Escalation(level, epochs, env, command))
        self._by_env = self._resolve()
        return [
            TelemetryLevel(
                level=self._scope(env),
                previous=previous,
                reason=reason,
                epochs=epochs,
                env=env,
                command=command,
            )
        ]

    def tick(self) -> list[TelemetryLevel]:
        """An epoch is finished: count down; returns the escalations that ended (their `epochs` is None)."""
        if not self._escalations:
            return []
        for escalation in self._escalations:
            escalation.left -= 1
        return self._end([e for e in self._escalations if e.left <= 0], "its epochs are over")

    def left(self, command: str) -> int | None:
        """Epochs left of the escalation that this command asked for; None where it is over."""
        return next((e.left for e in self._escalations if e.command == command), None)

    def lasts(self, level: Level, env: int | None) -> int:
        """Epochs for which escalations keep this env (None: every env) at `level` or above."""
        enough = [e for e in self._escalations if LevelCode[e.level] >= LevelCode[level]]
        return max((e.left for e in enough if e.env in (None, env)), default=0)

    def cancel(self, command: str, reason: str) -> list[TelemetryLevel]:
        """End the escalation that this command asked for, now."""
        return self._end([e for e in self._escalations if e.command == command], reason)

    def _end(self, ended: list[Escalation], reason: str) -> list[TelemetryLevel]:
        before = [self._scope(e.env) for e in ended]
        self._escalations = [e for e in self._escalations if e not in ended]
        self._by_env = self._resolve()
        return [
            TelemetryLevel(
                level=self._scope(e.env),
                previous=previous,
                reason=reason,
                env=e.env,
                command=e.command,
            )
            for e, previous in zip(ended, before, strict=True)
        ]

    def in_force(self, reason: str) -> list[TelemetryLevel]:
        """The escalations, each with the epochs that are left of it; the longest last."""
        return [
            TelemetryLevel(
                level=self._scope(e.env),
                previous=self.default,
                reason=reason,
                epochs=e.left,
                env=e.env,
                command=e.command,
            )
            for e in sorted(self._escalations, key=lambda e: e.left)
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"escalations": [asdict(e) for e in self._escalations]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._escalations = [Escalation(**e) for e in state["escalations"]]
        self._by_env = self._resolve()

    def _scope(self, env: int | None) -> Level:
        """The level of one env, or the one all envs have at least."""
        code = self._by_env.min() if env is None else self._by_env[env]
        return LEVELS[int(code)]

    def _resolve(self) -> NDArray[np.int8]:
        levels = np.full(self._envs, LevelCode[self.default], dtype=np.int8)
        for escalation in self._escalations:
            rows = slice(None) if escalation.env is None else escalation.env
            levels[rows] = np.maximum(levels[rows], LevelCode[escalation.level])
        return levels

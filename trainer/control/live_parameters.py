"""Parameters that can be changed while a run trains, and where each value is used.

Host learning rate: from the next epoch on. PPO's: from the next update on. Weights of the reward: from the
next round on, for the potentials of an episode telescope only under one set of weights.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.trainer.config.load import OPTIONS, ConfigError, convert
from esper_overwatch.trainer.loop import Trainer

When = Literal["epoch", "update", "round"]

PARAMETERS: dict[str, When] = {
    "host.learning_rate": "epoch",
    "ppo.learning_rate": "update",
    "ppo.entropy_coefficient": "update",
    "ppo.entropy_final": "update",
    "reward.rent": "round",
    "reward.contribution": "round",
    "reward.stage": "round",
}
"""Boundary from which a new value is in force, by key."""


class LiveParameters:
    """The values in force. Changed by the trainer; read by any thread.

    Args:
        trainer: whose parts use them.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._configured = {
            key: float(getattr(getattr(trainer.cfg, section), name))
            for key in PARAMETERS
            for section, name in [key.split(".")]
            if section != "ppo" or trainer.agent.ppo is not None
        }
        self._changed: dict[str, float] = {}

    def describe(self) -> dict[str, Any]:
        """Describe each parameter by key: value, configured, allowed, description, and when a change takes
        effect."""
        return {
            key: {
                "value": self._changed.get(key, configured),
                "configured": configured,
                "allowed": OPTIONS[key].allowed,
                "description": OPTIONS[key].description,
                "takes_effect": PARAMETERS[key],
            }
            for key, configured in self._configured.items()
        }

    def check(self, key: str, value: float) -> None:
        """Check a change that a client asks for.

        Raises:
            RequestError: the run has no such parameter, or the value is out of its bounds.
        """
        if key not in self._configured:
            known = ", ".join(self._configured)
            raise RequestError(
                "invalid_params",
                f"param.set: {key!r} cannot be changed while the run trains; these can: {known}",
                {"path": "$.key"},
            )
        try:
            convert(key, value, "param.set")
        except ConfigError as error:
            raise RequestError("invalid_params", str(error), {"path": "$.value"}) from None
        if not math.isfinite(value):
            raise RequestError("invalid_params", f"param.set: {key} must be finite", {"path": "$.value"})

    def set(self, key: str, value: float) -> float:
        """Put a checked value in force; returns the one before it."""
        old = self._changed.get(key, self._configured[key])
        section, name = key.split(".")
        trainer = self._trainer
        if section == "reward":
            cfg = msgspec.structs.replace(trainer.reward.run.cfg, **{name: value})
            trainer.reward.run = dataclasses.replace(trainer.reward.run, cfg=cfg)
        elif section == "host":
            trainer.population.set_learning_rate(value)
        else:
            assert trainer.agent.ppo is not None
            trainer.agent.ppo.configure(**{name: value})
        self._changed[key] = value
        return old

    def enforce(self, keys: Iterable[str]) -> None:
        """Put configured values in force where a checkpoint has brought others."""
        for key in keys:
            if key in self._configured:
                self.set(key, self._configured[key])
                del self._changed[key]

    @property
    def changed(self) -> dict[str, tuple[float, float]]:
        """(configured, in force) of what has been changed."""
        return {key: (self._configured[key], value) for key, value in self._changed.items()}

    def state_dict(self) -> dict[str, float]:
        return dict(self._changed)

    def load_state_dict(self, state: dict[str, float]) -> None:
        for key, value in state.items():
            self.set(key, value)

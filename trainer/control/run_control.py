"""State of a run that commands read and change, on all its ranks; also the content of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.commands import (
    EscalateParams,
    Params,
    ParamSetParams,
    ProfilerStartParams,
    SeedGerminateParams,
    SeedPruneParams,
)
from esper_overwatch.protocol.messages.vocabulary import RunState
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.telemetry.collection.plan import CollectionPlan
from esper_overwatch.trainer.telemetry.recorder import Recorder
from esper_overwatch.trainer.telemetry.transfer import HostFrame

from .live_parameters import PARAMETERS, LiveParameters
from .seed_control import SeedAction, SeedControl

MAX_ESCALATIONS = 64
"""Of commands, that have not ended."""


class OtherRanks(Protocol):
    """Makes the other ranks follow; implemented by `ranks.RankZero`, which commands may not import."""

    def merge_frames(self, frame: HostFrame) -> tuple[HostFrame, Sequence[str]]:
        """The columns of all envs from those of this rank."""
        ...

    def gather_states(self) -> list[bytes]:
        """Gather the other ranks' part of a checkpoint."""
        ...

    def broadcast_parameter(self, key: str, value: float) -> None:
        """Have the ranks put a value in force."""
        ...

    def broadcast_action(self, action: SeedAction) -> None:
        """Have the ranks execute an operator's action."""
        ...

    def keep_waiting(self) -> None:
        """Keep the ranks at this boundary."""
        ...


def needs_epochs(params: Params) -> bool:
    """True if a command takes effect only after more epochs, which a paused run does not train."""
    if isinstance(params, ParamSetParams):
        return PARAMETERS[params.key] == "round"
    return isinstance(params, EscalateParams | ProfilerStartParams)


class RunControl:
    """A run as its commands see it.

    Args:
        trainer: rank 0's.
        other_ranks: follow what is done here.
        recorder: records what commands do to seeds.
        plan: what is collected; part of a checkpoint.

    Attributes:
        parameters: the values in force.
    """

    def __init__(
        self,
        config: Config,
        trainer: Trainer,
        other_ranks: OtherRanks,
        recorder: Recorder,
        plan: CollectionPlan,
    ) -> None:
        self.parameters = LiveParameters(trainer)
        self._config = config
        self._trainer = trainer
        self._other_ranks = other_ranks
        self._recorder = recorder
        self._plan = plan
        self._seeds = SeedControl(trainer, trainer.process_group)

    @property
    def round(self) -> int:
        """The round that is trained, from 1."""
        return self._trainer.round

    @property
    def epoch(self) -> int:
        """Epochs finished in the round; 0 also at a round's end."""
        return self._trainer.epoch

    @property
    def episode_epochs(self) -> int:
        """Epochs of a round."""
        return self._config.episode_epochs

    @property
    def accuracy_mean(self) -> float | None:
        """Mean accuracy of the hosts after the newest epoch; None before the first."""
        return self._recorder.accuracy_mean

    @property
    def can_intervene(self) -> bool:
        """The policy has decided on an epoch that has not begun."""
        return self._seeds.is_possible

    def check(self, params: Params, state: RunState) -> str | None:
        """Look at an asked command's parameters; called in the I/O thread.

        Returns:
            Why the command will wait, where it will.

        Raises:
            RequestError: what it asks for does not exist in this run.
        """
        if isinstance(params, ParamSetParams):
            self.parameters.check(params.key, params.value)
        elif isinstance(params, SeedGerminateParams | SeedPruneParams):
            self._seeds.check(params)
        elif isinstance(params, EscalateParams):
            try:
                self._plan.check(params.level, params.env)
            except ValueError as error:
                raise RequestError("invalid_params", str(error)) from None
            if self._plan.num_of_commands >= MAX_ESCALATIONS:
                is_full = (
                    f"{MAX_ESCALATIONS} escalations are open, as many as may be: cancel one, or let it end"
                )
                raise RequestError("busy", is_full)
        if state != "PAUSED" or not needs_epochs(params):
            return None
        return "the run is paused, and this is done only when it has trained on: resume it"

    def intervene(self, params: SeedGerminateParams | SeedPruneParams, command: str) -> dict[str, Any]:
        """Germinate or prune, between the policy's decision and its epoch.

        Args:
            params: what.
            command: id of the command, for the events.

        Returns:
            The command's result.

        Raises:
            RequestError: a gate forbids it; nothing has changed.
        """
        action = self._seeds.action_of(params)
        self._other_ranks.broadcast_action(action)
        stage, frame = self._seeds.execute(action)
        merged, _ = self._other_ranks.merge_frames(frame)
        self._recorder.record_decision(merged, by="operator", command=command)
        return {"env": params.env, "slot": params.slot, "stage": stage.name}

    def set_parameter(self, key: str, value: float) -> float:
        """Put a checked value in force on all ranks; returns the one before it."""
        self._other_ranks.broadcast_parameter(key, value)
        return self.parameters.set(key, value)

    def keep_waiting(self) -> None:
        """Keep the other ranks at this boundary; to be called now and then while the run is paused."""
        self._other_ranks.keep_waiting()

    def state_dict(self) -> dict[str, Any]:
        """Content of a checkpoint, of all ranks."""
        others = self._other_ranks.gather_states()
        collection = self._plan.state_dict()
        escalations = collection.pop("escalations")
        return {
            "config": msgspec.json.encode(self._config).decode(),
            "execution": self._trainer.population.execution.to_dict(),
            "trainer": self._trainer.state_dict(),
            "other_ranks": [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in others],
            "observer": {
                "recorder": self._recorder.state_dict() | collection,
                "escalations": escalations,
                "best_return": self._trainer.best_return,
            },
            "parameters": self.parameters.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`, on this rank."""
        telemetry = state["observer"]
        self._trainer.load_state_dict(state["trainer"])
        self._trainer.best_return = telemetry["best_return"]
        self._recorder.load_state_dict(telemetry["recorder"])
        self._plan.load_state_dict(telemetry["recorder"] | {"escalations": telemetry["escalations"]})
        self.parameters.load_state_dict(state.get("parameters", {}))

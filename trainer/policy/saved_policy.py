"""A policy in a file of its own: its network, and what it was trained on; read without running code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from esper_overwatch.protocol.errors import EsperError, first_line
from esper_overwatch.protocol.storage.folders import replace_file
from esper_overwatch.trainer.checkpoint import read_archive, to_archive
from esper_overwatch.trainer.checkpoint_files import CheckpointError
from esper_overwatch.trainer.config.load import SourcedConfig
from esper_overwatch.trainer.config.schema import Config

from .network import ActorCritic
from .observation import LAYOUT_VERSION

FORMAT = "esper-policy-1"
NOT_OF_NETWORK = frozenset({"kind", "constant", "file", "learn", "greedy", "temperature"})
"""Options of `policy` that do not shape the network."""


class PolicyMismatch(EsperError):
    """A policy cannot be read, or does not fit the run's configuration or this version."""

    exit_code = 9


class PolicyDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a policy, and its results."""

    run: str
    version: str
    """Version of this package that exported it."""
    rounds: int
    """Rounds of training."""
    episodes: int
    tasks: tuple[str, ...]
    slots: int
    blueprints: tuple[str, ...]
    """Whose seeds it plants, in its order."""
    layout: int
    """Version of the observation layout that it decides by."""
    host: dict[str, Any]
    episode_epochs: int
    policy: dict[str, Any]
    """Options of the section `policy`."""
    reward: dict[str, Any]
    evaluation: dict[str, Any] | None = None
    """The newest on held-out hosts; None where there was none."""


@dataclass(frozen=True)
class SavedPolicy:
    """A policy and its description.

    Attributes:
        origin: the file that it was read from, for messages.
    """

    about: PolicyDescription
    network: dict[str, Tensor]
    origin: str

    @classmethod
    def of_checkpoint(cls, state: dict[str, Any], run: str, version: str, origin: str) -> SavedPolicy:
        """The policy of a run's checkpoint.

        Args:
            state: as `checkpoint.load` gives it.
            version: of this package.
            origin: the file, for messages.

        Raises:
            PolicyMismatch: it is a rule, which needs no file, or lacks a part of what a training has.
        """
        try:
            return cls._of_training(state["trainer"], json.loads(state["config"]), run, version, origin)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise PolicyMismatch(f"{origin}: its training lacks a part: {first_line(error)}") from None

    @classmethod
    def _of_training(
        cls, trainer: dict[str, Any], config: dict[str, Any], run: str, version: str, origin: str
    ) -> SavedPolicy:
        agent = trainer["agent"]
        if "network" not in agent:
            kind = agent["kind"]
            raise PolicyMismatch(
                f"{origin}: its policy is the rule {kind}, which policy.kind={kind} gives anywhere"
            )
        rounds = trainer["round"] - (trainer["epoch"] > 0)
        task, evaluation = config["task"], trainer.get("evaluation")
        about = PolicyDescription(
            run=run,
            version=version,
            rounds=rounds,
            episodes=rounds * config["envs"]["count"],
            tasks=tuple(task.get("mixture") or [task["dataset"]]),
            slots=len(agent["network"]["place"]),
            blueprints=tuple(config["seeds"]["blueprints"]),
            layout=agent["layout"],
            host=config["host"],
            episode_epochs=config["episode_epochs"],
            policy=config["policy"],
            reward=config["reward"],
            evaluation=evaluation.get("newest") if evaluation else None,
        )
        return cls(about, agent["network"], origin)

    def write(self, path: Path) -> int:
        """Write the file, completely or not at all; returns its bytes.

        Raises:
            OSError: the disk refused.
        """
        about = msgspec.json.encode(self.about).decode()
        archive = to_archive({"format": FORMAT, "about": about, "network": self.network}).getbuffer()
        replace_file(path, archive)
        return archive.nbytes

    @classmethod
    def read(cls, path: Path) -> SavedPolicy:
        """Read what `write` has written.

        Raises:
            PolicyMismatch: it is missing, damaged or something else.
        """
        try:
            state = read_archive(path, "policy")
        except CheckpointError as error:
            raise PolicyMismatch(str(error)) from None
        if state.get("format") != FORMAT:
            what = "a checkpoint, see esper-daemon policy export" if "trainer" in state else "something else"
            raise PolicyMismatch(f"{path} is not a policy, but {what}")
        try:
            about = msgspec.json.decode(state["about"], type=PolicyDescription)
            network = msgspec.convert(state["network"], dict[str, Tensor])
            broken = next((name for name, weight in network.items() if not weight.isfinite().all()), None)
        except (KeyError, TypeError, ValueError, RuntimeError, msgspec.DecodeError) as error:
            raise PolicyMismatch(f"policy {path} cannot be read: {first_line(error)}") from None
        if broken is not None:
            raise PolicyMismatch(f"policy {path} has numbers that are not finite, in {broken}")
        return cls(about, network, str(path))

    def check_fit(self, cfg: Config, slots: int) -> None:
        """Look whether this policy can decide for hosts, before any is built.

        Args:
            cfg: of the run whose hosts they are.
            slots: of those hosts.

        Raises:
            PolicyMismatch: slots, blueprints or observations differ.
        """
        about, mine = self.about, cfg.seeds.blueprints
        if about.layout != LAYOUT_VERSION:
            self._refuse(
                f"it decides by observations of layout {about.layout}, this version makes {LAYOUT_VERSION}: "
                f"it was exported by version {about.version}"
            )
        if about.blueprints != mine:
            self._refuse(
                f"it plants {', '.join(about.blueprints)}, and seeds.blueprints = {', '.join(mine)}; "
                f"set seeds.blueprints={','.join(about.blueprints)}"
            )
        if about.slots != slots:
            self._refuse(f"it grows hosts with {about.slots} slots, and these have {slots}")

    def load_into(self, network: ActorCritic, cfg: Config, slots: int) -> None:
        """Give a network these weights.

        Args:
            cfg: of the run whose hosts it is to decide for.
            slots: of those hosts.

        Raises:
            PolicyMismatch: slots, blueprints, observations or sizes differ.
        """
        self.check_fit(cfg, slots)
        try:
            network.load_state_dict(self.network)
        except RuntimeError as error:
            self._refuse(f"its network does not fit: {str(error).strip().splitlines()[-1].strip()}")

    def _refuse(self, reason: str) -> None:
        raise PolicyMismatch(f"policy {self.origin} cannot be used here: {reason}")


def with_policy_options(sourced: SourcedConfig) -> SourcedConfig:
    """The configuration with the sizes of the network in `policy.file`, where there is one.

    Raises:
        PolicyMismatch: the file cannot be read, or another size or no PPO was chosen.
    """
    options = sourced.config.policy
    if not options.file:
        return sourced
    if options.kind != "ppo":
        raise PolicyMismatch(
            f"policy.file = {options.file}: policy.kind = {options.kind} is a rule; leave it out"
        )
    saved = SavedPolicy.read(Path(options.file))
    for name, told in saved.about.policy.items():
        key, value = f"policy.{name}", tuple(told) if isinstance(told, list) else told
        if name in NOT_OF_NETWORK or key not in sourced.sources or sourced.value(key) == value:
            continue
        if not sourced.is_open(key):
            raise PolicyMismatch(
                f"{key} = {sourced.value(key)}: the policy {options.file} was made with {value}; leave it out"
            )
        sourced = sourced.with_value(key, value, f"policy {options.file}")
    epochs, last = sourced.config.policy.decision_epochs, sourced.config.episode_epochs - 1
    if epochs and epochs[-1] > last:
        raise PolicyMismatch(
            f"policy {options.file} decides at epoch {epochs[-1]}, and an episode's last is {last}; "
            f"set episode_epochs to {epochs[-1] + 1} or more"
        )
    return sourced

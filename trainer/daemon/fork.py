"""A new run that goes on from another one's checkpoint, under other options."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from esper_overwatch.protocol.catalogue.about import edit_about
from esper_overwatch.protocol.errors import BadName, RunNotFound
from esper_overwatch.protocol.runs import RunFolder, find_run
from esper_overwatch.protocol.storage.folders import write_atomically
from esper_overwatch.trainer.checkpoint_files import CheckpointError, find_checkpoint, list_checkpoints
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.control.live_parameters import PARAMETERS
from esper_overwatch.trainer.daemon.resume import ResumeRequest

FORK_OPTIONS = (
    "host.learning_rate",
    "ppo.",
    "reward.",
    "gates.",
    "governor.",
    "validation.",
    "anomalies.",
    "policy.learn",
    "policy.greedy",
    "policy.temperature",
)
"""Options that a fork may be given beside those of a resumed run: nothing that a checkpoint holds is shaped
by them."""
_ROUND = re.compile(r"r?(\d+)")


@dataclass(frozen=True)
class Fork:
    """Where a new run begins.

    Attributes:
        source: name of the other run.
        checkpoint: the file.
        given: options that are given for it.
    """

    source: str
    checkpoint: Path
    given: frozenset[str] = frozenset()

    @classmethod
    def find(cls, text: str, sets: Iterable[str] = ()) -> Fork:
        """Find it by `RUN`, for the newest checkpoint, or `RUN@WHICH`: a round, `best`, a tag or a file.

        Raises:
            BadName: the text is neither.
            RunNotFound: there is no such run, or it is a published one.
            CheckpointError: it has no such checkpoint.
        """
        name, at, which = text.partition("@")
        if not name or (at and not which):
            raise BadName(f"--fork {text}: write RUN or RUN@WHICH: a round, best, a tag or a file")
        run = find_run(name)
        if run.kind == "published":
            raise RunNotFound(f"run {run.name} is published by a loop of its own, which alone has its state")
        given = frozenset(item.partition("=")[0].strip() for item in sets)
        return cls(run.name, _checkpoint_of(run.path / "checkpoints", run.name, which), given)

    def begin(self, run: RunFolder, config: Config) -> ResumeRequest:
        """Copy the checkpoint into the new run, so that it outlives the other one; how to go on from it.

        Raises:
            CheckpointError: it cannot be read.
            FolderError: it cannot be written.
        """
        run.checkpoints.mkdir(mode=0o700, exist_ok=True)
        try:
            content = self.checkpoint.read_bytes()
        except OSError as error:
            raise CheckpointError(f"checkpoint {self.checkpoint} cannot be read: {error.strerror}") from None
        write_atomically(run.checkpoints / self.checkpoint.name, content)
        parent = f"{self.source}@{self.checkpoint.stem}"
        edit_about(run.path, lambda about: msgspec.structs.replace(about, parent=parent))
        options = msgspec.to_builtins(config)
        return ResumeRequest(changeable=FORK_OPTIONS, prepare=lambda state: self._prepare(state, options))

    def _prepare(self, state: dict[str, Any], options: dict[str, Any]) -> tuple[str, ...]:
        """Let what is given win over what the checkpoint holds; the options to set anew once it is loaded.

        Raises:
            CheckpointError: an option can change between two rounds alone.
        """
        saved = json.loads(state["config"])
        differing = [key for key in PARAMETERS if _value(saved, key) != _value(options, key)]
        live = tuple(key for key in PARAMETERS if key in self.given or key in differing)
        of_reward = [key for key in live if key.startswith("reward.")]
        if of_reward and state["trainer"]["epoch"]:
            raise CheckpointError(
                f"{of_reward[0]} can change between two rounds only, and {self.checkpoint.name} is within "
                f"one; fork from the end of a round: esper-daemon checkpoints {self.source}"
            )
        changed: Mapping[str, float] = state.get("parameters", {})
        state["parameters"] = {key: value for key, value in changed.items() if key not in live}
        return live


def _value(options: Mapping[str, Any], key: str) -> Any:
    section, name = key.split(".")
    return options.get(section, {}).get(name)


def _checkpoint_of(folder: Path, run: str, which: str) -> Path:
    files = [file for file in list_checkpoints(folder) if not file.abandoned]
    match = _ROUND.fullmatch(which)
    if match is not None:
        ends = [file.path for file in files if file.epoch is None and file.round == int(match[1])]
        if ends:
            return ends[-1]
    if which:
        return find_checkpoint(folder, which)
    if not files:
        raise CheckpointError(f"run {run} has no checkpoint yet; esper-daemon checkpoint {run} makes one")
    return files[-1].path

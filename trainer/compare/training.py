"""A training of a comparison: a run like any other, in a process of its own, as the trials of a sweep."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.events import PPOUpdate, RoundFinished
from esper_overwatch.protocol.storage.folders import esper_home, write_atomically
from esper_overwatch.trainer.checkpoint import load as load_checkpoint
from esper_overwatch.trainer.checkpoint_files import list_checkpoints
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.sweep.trial_run import TrialRun, read_stream


class TrainingFailed(EsperError):
    """A run of a comparison has not trained its rounds."""

    exit_code = 11


@dataclass(frozen=True)
class Training:
    """A run that trains PPO; the policy after its last round is the result, no round is picked.

    Attributes:
        run: its name.
        cfg: of it.
        folder: for its configuration, and for what it prints.
    """

    run: str
    cfg: Config
    folder: Path

    def train(self, rounds: int, report: Callable[[int], None]) -> None:
        """Train until so many rounds are finished, on from where it was.

        Args:
            report: called with the rounds that are finished.

        Raises:
            TrainingFailed: it ended before; the message says why.
            NameTaken: another process trains it.
        """
        finished = self.finished
        if finished >= rounds:
            return
        file = self.folder.resolve() / f"{self.run}.toml"
        write_atomically(file, settings.to_toml(replace(self.cfg, rounds=rounds)).encode())
        of_options = (
            settings.variables() - settings.NOT_OPTIONS
        )  # they would overrule the file, which has them
        environ = {name: text for name, text in os.environ.items() if name not in of_options}
        trial = TrialRun(
            self.run, ["--config", str(file)], file.with_suffix(".log"), file.parent.name, environ
        )
        try:
            for event in trial.events():
                if isinstance(event.data, RoundFinished) and (event.ctx.round or 0) > finished:
                    finished = event.ctx.round or 0
                    report(finished)
        finally:
            trial.stop()
        if reason := trial.failure(rounds):
            raise TrainingFailed(f"run {self.run}: {reason}; the same command goes on with it")

    @property
    def finished(self) -> int:
        """Rounds that its newest checkpoint has finished; 0 where there is none."""
        files = list_checkpoints(self._path / "checkpoints")
        return (files[-1].round or 0) - (files[-1].epoch is not None) if files else 0

    def learnt(self) -> dict[str, Any]:
        """The network of its newest checkpoint, as tensors by name.

        Raises:
            CheckpointError: it cannot be read.
        """
        newest = list_checkpoints(self._path / "checkpoints")[-1].path
        network: dict[str, Any] = load_checkpoint(newest)["trainer"]["agent"]["network"]
        return network

    def figures(self) -> dict[str, Any]:
        """Seconds of all rounds, and of each update the explained variance within epochs, by the journal."""
        seconds: dict[int | None, float] = {}
        within: dict[int | None, float | None] = {}
        for event in (*read_stream(self.run), *read_stream(self.run, "metric")):
            if isinstance(event.data, RoundFinished):
                seconds[event.ctx.round] = event.data.seconds
            elif isinstance(event.data, PPOUpdate):
                within[event.ctx.round] = event.data.explained_variance_within
        return {"seconds": sum(seconds.values()), "explained_variance_within": list(within.values())}

    @property
    def _path(self) -> Path:
        return esper_home() / "runs" / self.run


def configure_training(cfg: Config, seed: int, rounds: int) -> Config:
    """For a training that does not look at held-out hosts."""
    return replace(
        cfg,
        seed=seed,
        rounds=rounds,
        policy=replace(cfg.policy, kind="ppo"),
        evaluation=replace(cfg.evaluation, rounds=0),
    )

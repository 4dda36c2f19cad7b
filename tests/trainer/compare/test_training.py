"""Trainings of a comparison: what their runs are started with, and what is said where one fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from esper_overwatch.trainer.compare import training
from esper_overwatch.trainer.compare.steps import OF_TRAINING
from esper_overwatch.trainer.compare.training import Training, TrainingFailed, configure_training
from esper_overwatch.trainer.config import load as settings


class FailingRun:
    """Stands for the child process."""

    started: ClassVar[list[tuple[str, Sequence[str], Mapping[str, str]]]] = []

    def __init__(
        self, name: str, words: Sequence[str], log: Path, parent: str, environ: Mapping[str, str]
    ) -> None:
        assert parent == log.parent.name
        self.started.append((name, words, environ))

    def events(self) -> Iterator[Any]:
        return iter(())

    def stop(self) -> None: ...

    def failure(self, rounds: int) -> str:
        return f"stopped after round 1 of {rounds}"


def test_run_has_the_options_of_the_comparison(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "TrialRun", FailingRun)
    monkeypatch.setenv("ESPER_SEED", "7")
    chosen = settings.load(preset="mixture", sets=["policy.kind=random", "envs.count=8"])
    cfg = configure_training(chosen, seed=2, rounds=5)
    with pytest.raises(
        TrainingFailed, match="run mine: stopped after round 1 of 3; the same command goes on"
    ):
        Training("mine", cfg, tmp_path).train(3, lambda _: None)
    ((name, words, environ),) = FailingRun.started
    assert (name, words) == ("mine", ["--config", str(tmp_path / "mine.toml")])
    begun = settings.load(file=tmp_path / "mine.toml", environ=environ)
    assert (begun.seed, begun.rounds, begun.envs) == (2, 3, chosen.envs)
    assert all(getattr(begun, section) == getattr(cfg, section) for section in OF_TRAINING)
    assert begun.evaluation.rounds == 0
    assert environ["ESPER_HOME"] == str(home)

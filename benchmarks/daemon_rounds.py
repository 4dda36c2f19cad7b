"""Complete rounds by the real daemon: the seconds of an epoch by phase and peak memory, from its journal."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MANAGEMENT = ("decide", "act", "reward", "telemetry")
"""Phases of an epoch that neither train nor validate."""


@dataclass(frozen=True)
class EpochCosts:
    """Durations of a daemon's epochs, without those of the first round."""

    seconds: float
    """Median of an epoch."""
    phases: dict[str, float]
    """Medians, seconds."""
    rss: int
    """Largest of the samples, bytes; 0 where the run was too short for one."""

    @property
    def management(self) -> float:
        """Seconds of an epoch spent on decisions, actions, rewards and telemetry."""
        return sum(self.phases.get(name, 0.0) for name in MANAGEMENT)


@contextmanager
def trained(*words: str, before: Sequence[str] = (), **environment: str) -> Iterator[Path]:
    """Train a run by the daemon in a home of its own, and give its journal.

    Args:
        words: options of `start`.
        before: the words of a command that comes before it.
        environment: variables beside the benchmark's own.
    """
    with tempfile.TemporaryDirectory(prefix="esper-bench-") as folder:
        variables = {**os.environ, "ESPER_HOME": f"{folder}/home", "XDG_RUNTIME_DIR": folder, **environment}
        for command in filter(None, (before, ("start", "bench", *words))):
            subprocess.run(
                [sys.executable, "-m", "esper_overwatch.trainer", *command],
                env=variables,
                capture_output=True,
                text=True,
                check=True,
            )
        yield Path(folder, "home/runs/bench/events.jsonl")


def run(sets: dict[str, object], *, rounds: int = 2) -> EpochCosts:
    """Train some rounds in a process of their own.

    Args:
        sets: configuration keys and their values.
        rounds: at least 2, since the first one is not measured.
    """
    options = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    with trained("--rounds", str(rounds), *options) as journal:
        events = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    epochs = [e["data"] for e in events if e["type"] == "epoch" and e["ctx"]["round"] > 1]
    names = {name for epoch in epochs for name in epoch["phases"]}
    return EpochCosts(
        seconds=statistics.median(epoch["seconds"] for epoch in epochs),
        phases={n: statistics.median(epoch["phases"].get(n, 0.0) for epoch in epochs) for n in names},
        rss=max((event["data"]["rss"] for event in events if event["type"] == "system"), default=0),
    )

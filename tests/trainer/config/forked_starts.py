"""`esper-daemon start` many times, and what each has left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.e2e.conftest import Daemon, House

PATIENCE_SECONDS = 300.0
CLOCKED = ("seconds", "phases", "cpu_phases", "gpu_phases", "gpu_round", "gpu_epoch", "env_epochs_per_second")
"""Fields that a clock measures."""


@dataclass
class Start:
    """One start, and what it left."""

    folder: Path
    """Of the run."""
    exit_code: int = 0
    printed: str = ""
    """On its standard output and error."""
    seen: dict[str, Any] = field(default_factory=dict)
    """What a look at the live run found."""

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The lines of the journal, in order."""
        return read_events(self.folder)

    def column(self, name: str) -> list[Any]:
        """A field of all events of a type, in order.

        Args:
            name: `type:field`, with dots in the field for what it holds.
        """
        kind, _, path = name.partition(":")
        found = []
        for event in self.events:
            if event["type"] == kind:
                value = event["data"]
                for key in path.split("."):
                    value = value.get(key) if isinstance(value, dict) else None
                found.append(value)
        return found

    def count(self, kind: str) -> int:
        """How many events of a type there are."""
        return sum(event["type"] == kind for event in self.events)

    def files(self, pattern: str) -> list[str]:
        """Names of files in the run's folder."""
        return sorted(path.name for path in self.folder.glob(pattern))


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Complete lines of a run's hot segment."""
    path = folder / "events.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


class ForkedStarts:
    """Starts runs in a house, until that is closed."""

    def __init__(self, house: House) -> None:
        self._house = house
        assert house.daemon("keys", "new", "tester", "--role", "viewer").returncode == 0
        self._starts = 0

    def start(self, sets: Iterable[str], look: Callable[[Path, int], dict[str, Any]] | None = None) -> Start:
        """Train a run to its end.

        Args:
            sets: its options, `key=value`.
            look: called with the run's folder and process again and again while the run trains, until it
                finds something; then the run is stopped.
        """
        self._starts += 1
        name = f"run{self._starts}"
        process = self._house.start(name, *(word for item in sets for word in ("--set", item)), small=False)
        start = Start(self._house.run_folder(name))
        if look is not None:
            start.seen = self._look(start.folder, process, look)
        start.exit_code = process.wait(PATIENCE_SECONDS)
        start.printed = self._house.said(process)
        return start

    def _look(
        self, folder: Path, process: Daemon, look: Callable[[Path, int], dict[str, Any]]
    ) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_SECONDS
        found: dict[str, Any] = {}
        while not found and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
            if any(event["type"] == "round.finished" for event in read_events(folder)):
                found = look(folder, process.pid)
        process.terminate()
        return found

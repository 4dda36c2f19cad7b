"""`esper-daemon start` many times, each in a process that is forked from one where torch is loaded.

As a program it reads one JSON array of arguments per line, and answers with the process's id when it has
begun and with its exit code when it has ended. `ForkedStarts` is the side of the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.e2e.conftest import House

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
        pipe = subprocess.PIPE
        self._program = house.open("-m", __name__, stdin=pipe, stdout=pipe, bufsize=1)
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
        words = [word for item in sets for word in ("--set", item)]
        printed = self._house.runtime / name
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps([str(printed), "start", name, *words]) + "\n")
        pid = int(self._program.stdout.readline())
        start = Start(self._house.run_folder(name))
        if look is not None:
            start.seen = self._look(start.folder, pid, look)
        start.exit_code = int(self._program.stdout.readline())
        start.printed = printed.read_text(encoding="utf-8")
        return start

    def _look(self, folder: Path, pid: int, look: Callable[[Path, int], dict[str, Any]]) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_SECONDS
        found: dict[str, Any] = {}
        while not found and time.monotonic() < end and Path(f"/proc/{pid}/stat").exists():
            time.sleep(0.05)
            if any(event["type"] == "round.finished" for event in read_events(folder)):
                found = look(folder, pid)
        with contextlib.suppress(ProcessLookupError):  # a start that was refused
            os.kill(pid, signal.SIGTERM)
        return found


def main() -> None:
    """Load what a start loads, then fork one process per line of the standard input."""
    import torch.profiler

    import esper_overwatch.trainer.daemon.daemon  # noqa: F401
    from esper_overwatch.trainer.cli.main import main as cli
    from esper_overwatch.trainer.data.registry import load

    torch.set_num_threads(1)
    load("digits")
    for line in sys.stdin:
        printed, *words = json.loads(line)
        pid = os.fork()
        if pid == 0:
            output = os.open(printed, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code: Any = 70
            try:
                code = cli(words)
            except SystemExit as ended:
                code = ended.code
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code or 0)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()

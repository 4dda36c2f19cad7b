"""A viewer beside a training: it follows the run by the wire, asks for a checkpoint, then for the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import connect
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.storage.folders import esper_home
from tests.protocol.harness import Reader, until


def needs(package: str, extra: str) -> list[pytest.MarkDecorator]:
    """Marks of a module whose tests train with a framework."""
    reason = f"{package} is not installed: pip install 'esper-overwatch[{extra}]'"
    return [pytest.mark.slow, pytest.mark.skipif(find_spec(package) is None, reason=reason)]


@dataclass
class Seen:
    """All that the viewer received over the wire."""

    names: set[str]
    config: dict[str, Any]
    saved: dict[str, Any]
    """The result of `checkpoint`."""
    artifacts: dict[str, str]
    """Path by name."""


def _steer(name: str, wanted: set[str]) -> Seen:
    until(lambda: (esper_home() / "runs" / name / "connection.json").exists())
    reader = Reader(name)

    def received(kind: type) -> list[Any]:
        return [event.data for event in reader.events if type(event.data) is kind]

    try:
        reader.read(lambda: wanted <= {key for one in received(ev.Scalars) for key in one.values})
        with connect(name) as client:
            saved = client.command("checkpoint", {"tag": "asked"}, wait=True)
        reader.read(lambda: any(saved["path"] in one.path for one in received(ev.Artifact)))
        return Seen(
            names={key for one in received(ev.Scalars) for key in one.values},
            config=received(ev.RunStarted)[0].config,
            saved=saved,
            artifacts={one.name: one.path for one in received(ev.Artifact)},
        )
    finally:
        reader.subscriber.close()
        with connect(name) as client:
            client.command("stop", {"checkpoint": False})


def train_beside_viewer(train: Callable[[], object], name: str, wanted: set[str]) -> Seen:
    """Train until the viewer, which waits for these names, sends `stop`."""
    with ThreadPoolExecutor(1) as threads:
        seen: Future[Seen] = threads.submit(_steer, name, wanted)
        train()
        return seen.result()


def journal(name: str, kind: type) -> list[Any]:
    """Events of one class in the run's journal."""
    return [event.data for event in read(find_run(name).path / "events.jsonl") if type(event.data) is kind]


def run_program(program: str, folder: Path, *launcher: str) -> None:
    """Run it to its end, in a process of its own or by a launcher of several; it must succeed."""
    path = folder / "program.py"
    path.write_text(program)
    command = [sys.executable, *launcher, str(path), str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr


def check_stopped(name: str, seen: Seen) -> None:
    """The viewer ended the run, and its checkpoint is on disk."""
    (stopped,) = journal(name, ev.RunStopped)
    assert (stopped.exit_code, stopped.error) == (0, None)
    assert stopped.reason.startswith("stop by")
    assert seen.artifacts
    for path in seen.artifacts.values():
        assert Path(path).stat().st_size > 0
    assert seen.saved["bytes"] > 0

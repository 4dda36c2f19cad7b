"""A report that comes after the next epoch was issued tells what it would have told at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.config.load import load as configured
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.telemetry.transfer import HostFrame, Shipment

from .compute.test_process_group import Recording

torch.set_num_threads(1)
CPU = torch.device("cpu")
ALIKE = (
    "envs.count=4",
    "envs.threads=1",
    "envs.group_size=4",
    "envs.convolution=grouped",
    "episode_epochs=5",
    "task.batches_per_epoch=2",
    "task.batch_size=16",
    "policy.hidden=16",
    "ppo.minibatches=1",
)
LATE = """
from esper_overwatch.trainer import hooks
real = hooks.EpochReports.__init__
hooks.EpochReports.__init__ = lambda self, topology, *, may_be_late: real(self, topology, may_be_late=True)
"""
"""Has a run on a CPU report as one on a GPU does."""


class Boundaries(Recording):
    """Notes in which order the loop comes by.

    Args:
        refused: epochs whose end is not to pass.
    """

    def __init__(self, *refused: int) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._refused = refused

    def passes_epoch_end(self, round: int, epoch: int) -> bool:
        return epoch not in self._refused

    def phase(self, name: str) -> AbstractContextManager[None]:
        if name == "train":
            self.calls.append(name)
        return super().phase(name)

    def on_epoch_begin(self, epoch: int, epochs: int) -> None:
        self.calls.append(f"begin {epoch}")

    def on_frame(self, frame: HostFrame, layers: Any) -> None:
        super().on_frame(frame, layers)
        self.calls.append("frame")

    def on_epoch_passed(self) -> None: ...

    def on_epoch_end(self, round: int, epoch: int) -> None:
        self.calls.append(f"end {epoch}")


def play(hooks: Boundaries, *sets: str, may_be_late: bool, device: torch.device = CPU) -> Boundaries:
    config = configured(sets=[*ALIKE, *sets])
    trainer = Trainer(config, load("digits", device), device, Execution.as_configured(config))
    trainer.reports.may_be_late = may_be_late
    trainer.play(hooks)
    return hooks


def assert_late_frames_are_the_same(*sets: str, device: torch.device = CPU) -> None:
    late, at_once = (play(Boundaries(), *sets, may_be_late=late, device=device) for late in (True, False))
    assert late.calls != at_once.calls
    for found, expected in zip(late.frames, at_once.frames, strict=True):
        assert found.keys() == expected.keys()
        assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def test_late_frames_are_those_told_at_once() -> None:
    assert_late_frames_are_the_same()


def test_next_epoch_is_issued_before_one_that_passes_is_told() -> None:
    calls = play(Boundaries(2), may_be_late=True).calls
    assert calls == [
        *("frame", "begin 0", "train"),
        *("train", "frame", "begin 1"),
        *("frame", "end 2", "begin 2", "train"),
        *("train", "frame", "begin 3"),
        *("train", "frame", "begin 4"),
        *("frame", "end 5"),
    ]


@pytest.mark.parametrize("may_be_late", [False, True], ids=["at once", "late"])
def test_waiting_for_device_is_a_phase_of_its_own(may_be_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it was telemetry's time, and could raise the anomaly `telemetry_share`."""
    stack: list[str] = []
    waited_in: list[tuple[str, ...]] = []

    class Phases(Boundaries):
        @contextmanager
        def phase(self, name: str) -> Iterator[None]:
            stack.append(name)
            yield
            stack.pop()

    monkeypatch.setattr(Shipment, "has_arrived", lambda _: False)
    monkeypatch.setattr(Shipment, "wait", lambda _: waited_in.append(tuple(stack)))
    play(Phases(), may_be_late=may_be_late)
    assert set(waited_in) == {("telemetry", "wait")}


def fail(hooks: Boundaries, *, may_be_late: bool, epoch: int = 3) -> Boundaries:
    """Play until training that epoch fails."""
    config = configured(sets=[*ALIKE])
    trainer = Trainer(config, load("digits", CPU), CPU, Execution.as_configured(config))
    trainer.reports.may_be_late = may_be_late
    train = trainer.population.run_epoch

    def run_epoch(round_: int, number: int, **options: Any) -> Any:
        if number == epoch:
            raise RuntimeError("a bug")
        return train(round_, number, **options)

    trainer.population.run_epoch = run_epoch  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a bug"):
        trainer.play(hooks)
    return hooks


def test_epoch_before_a_failure_is_told() -> None:
    late, at_once = (fail(Boundaries(), may_be_late=late) for late in (True, False))
    assert len(late.frames) == len(at_once.frames) == 4
    assert late.frames[-1].keys() == at_once.frames[-1].keys()
    assert late.calls[-3:] == ["train", "frame", "begin 3"]


def test_failure_outweighs_one_to_tell_the_epoch_before() -> None:
    class Deaf(Boundaries):
        def on_frame(self, frame: HostFrame, layers: Any) -> None:
            if self.calls.count("train") == 4:
                raise ValueError("the device is gone, too")
            super().on_frame(frame, layers)

    assert len(fail(Deaf(), may_be_late=True).frames) == 3


def events_of(folder: Path, before: str) -> list[Any]:
    """Kind, clock and, of epochs, content of what a daemon tells in a round; `before` runs first."""
    words = [word for each in (*ALIKE, "device=cpu", "host.schedule=cosine") for word in ("--set", each)]
    program = f"{before}\nfrom trainer.cli.main import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program, "start", "it", "--rounds", "1", *words],
        env=os.environ | {"ESPER_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (folder / "runs" / "it" / "events.jsonl").read_text().splitlines()
    told = []
    for event in map(json.loads, lines):
        content = event["data"] if event["type"] == "epoch" else {}
        told.append((event["type"], event["ctx"], {k: v for k, v in content.items() if k not in VARYING}))
    return [row for row in told if row[0] not in BY_THREADS]


BY_THREADS = ("log", "system", "anomaly", "incident", "run.provenance")
"""Events whose place among the others the clock decides."""
VARYING = ("seconds", "phases", "cpu_phases", "gpu_phases", "gpu_round", "gpu_epoch")
"""Fields of an epoch that tell of time."""


@pytest.mark.slow
def test_daemon_tells_the_same_events_late(tmp_path: Path) -> None:
    folders = tmp_path / "late", tmp_path / "at_once"
    for folder in folders:
        folder.mkdir()
    late, at_once = (events_of(folder, before) for folder, before in zip(folders, (LATE, ""), strict=True))
    assert late == at_once

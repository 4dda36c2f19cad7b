"""At the safe point: what goes wrong with a command, a disk or the wire is told."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol import connect
from protocol.errors import RequestError
from protocol.journal import read
from protocol.runs import RunFolder
from protocol.server import Server
from trainer.checkpoint import Checkpoints
from trainer.operator import Operator, StopRun, WireFailed
from trainer.telemetry.levels import Levels


class Run:
    """The least that can be steered and saved."""

    round = 3
    epoch = 5
    can_intervene = True

    def intervene(self, params: Any) -> dict[str, Any]:
        return {"slot": params.slot}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": torch.ones(3)}

    def hold(self) -> None: ...


class Rig:
    def __init__(self, folder: Path) -> None:
        self.run = RunFolder.claim("rig", home=folder / "home")
        self.server = Server(self.run, hello={})
        self.server.start()
        self.server.set_state("TRAINING")
        self.checkpoints = Checkpoints(self.run.checkpoints, keep=2)
        self.levels = Levels("NORMAL", 4)
        self.trained = Run()
        self.operator = Operator(self.trained, self.server, self.checkpoints, self.levels, self.run.traces)

    def checkpoint(self, tag: str = "") -> dict[str, Any]:
        """Send the command and play epochs until its effect has been told."""
        told: list[Any] = []

        def client() -> None:
            with connect("rig", home=self.run.path.parents[1]) as client:
                try:
                    told.append(client.checkpoint(tag, wait=True))
                except RequestError as error:
                    told.append(error)

        thread = threading.Thread(target=client)
        thread.start()
        while thread.is_alive():
            self.operator.at_epoch_end()
            thread.join(0.02)
        if isinstance(told[0], RequestError):
            raise told[0]
        result: dict[str, Any] = told[0]
        return result

    def close(self) -> list[str]:
        """End it; the types of what was journalled."""
        self.server.close()
        self.run.release()
        return [event.type for event in read(self.run.events)]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    folder = Path(tempfile.mkdtemp(prefix="esper-"))
    (folder / "rt").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "rt"))
    made = Rig(folder)
    try:
        yield made
    finally:
        made.server.close()
        shutil.rmtree(folder)


def test_a_full_disk_is_told_and_the_run_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    old = rig.operator.save("round").path

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rig.checkpoints, "save", full)
    with pytest.raises(RequestError, match="No space left on device"):
        rig.checkpoint()
    rig.operator.save_or_say("round")
    rig.operator.at_epoch_end()
    assert old.exists()
    assert rig.close().count("checkpoint.failed") == 2


def test_a_checkpoint_on_command_says_where_it_is(rig: Rig) -> None:
    result = rig.checkpoint("mine")
    assert Path(result["path"]).name == "round-000003-epoch-00005-mine.pt"
    assert Path(result["path"]).stat().st_size == result["bytes"]


def test_a_dead_wire_ends_the_run(rig: Rig) -> None:
    rig.operator.at_epoch_end()
    rig.server.error = "RuntimeError: gone"
    with pytest.raises(WireFailed, match="gone"):
        rig.operator.at_epoch_end()


def test_a_signal_ends_a_paused_run(rig: Rig) -> None:
    """Pausing holds the loop inside `at_epoch_end`; a signal's request gets it out."""
    threading.Timer(0.5, lambda: rig.operator.request_stop("SIGTERM")).start()
    rig.operator._paused = True
    with pytest.raises(StopRun, match="SIGTERM"):
        rig.operator.at_epoch_end()


def test_what_is_open_at_the_end_is_answered(rig: Rig) -> None:
    told: list[Any] = []

    def client() -> None:
        with connect("rig", home=rig.run.path.parents[1]) as client:
            identity = client.escalate(epochs=50)["id"]
            try:
                client.wait_for(identity, timeout=60)
            except RequestError as error:
                told.append(error.kind)

    thread = threading.Thread(target=client)
    thread.start()
    while not rig.levels.debug_envs.any():
        rig.operator.at_epoch_end()
        thread.join(0.02)
    thread.join(0.5)
    rig.operator.close()
    thread.join(20)
    assert told == ["cancelled"]


def test_behind_an_episode_a_seed_waits_unless_the_run_is_paused(rig: Rig) -> None:
    """What waits for a new episode would wait for ever in a paused run, and nobody would know why."""
    rig.trained.can_intervene = False
    with connect("rig", home=rig.run.path.parents[1]) as client:
        waits = client.prune(0, "r0c0", wait=False)["id"]
        rig.operator.at_epoch_end()
        assert {op["op"]: op["state"] for op in client.ops()}[waits] == "waiting"
        rig.trained.can_intervene = True
        rig.operator.at_epoch_end()
        assert client.wait_for(waits, timeout=60)["slot"] == "r0c0"

        rig.trained.can_intervene = False
        client.pause(wait=False)
        refused = client.prune(0, "r0c0", wait=False)["id"]
        threading.Timer(0.5, lambda: rig.operator.request_stop("end")).start()
        with pytest.raises(StopRun):
            rig.operator.at_epoch_end()
        with pytest.raises(RequestError, match=r"paused behind the last epoch.*resume") as told:
            client.wait_for(refused, timeout=60)
    assert told.value.kind == "wrong_state"

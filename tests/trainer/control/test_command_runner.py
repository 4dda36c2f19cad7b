"""At the safe point: what goes wrong with a command, a disk or the wire is told."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from esper_overwatch import connect
from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages.commands import OpParams, Params, ParamSetParams
from esper_overwatch.protocol.messages.events import RoundStarted
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server import server as server_module
from esper_overwatch.protocol.server.mailbox import Command
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.trainer import checkpoint as checkpoint_module
from esper_overwatch.trainer.checkpoint import Checkpoints, load
from esper_overwatch.trainer.config.service_options import TelemetryConfig
from esper_overwatch.trainer.control import checkpoint_saver
from esper_overwatch.trainer.control.checkpoint_saver import CheckpointSaver
from esper_overwatch.trainer.control.command_runner import CommandRunner
from esper_overwatch.trainer.control.run_control import RunControl
from esper_overwatch.trainer.hooks import StopRun
from esper_overwatch.trainer.telemetry.collection.plan import CollectionPlan
from tests.protocol.harness import until


class Run:
    """The least that can be steered and saved."""

    round = 3
    epoch = 5
    accuracy_mean = 0.5
    can_intervene = True

    def intervene(self, params: Any, command: str) -> dict[str, Any]:
        return {"slot": params.slot, "command": command}

    def __init__(self) -> None:
        self.weights = torch.ones(3)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "parts": [{"weights": (self.weights[:1],)}]}

    def keep_waiting(self) -> None: ...


class Rig:
    def __init__(self, home: Path) -> None:
        self.run = RunFolder.claim("rig", home=home)
        self.server = Server(self.run, hello={})
        self.server.start()
        self.server.set_state("TRAINING")
        self.checkpoints = Checkpoints(self.run.checkpoints, keep=2)
        self.plan = CollectionPlan(self.server.emitter, TelemetryConfig(), envs=4, episode_epochs=12)
        self.trained = Run()
        control = cast("RunControl", self.trained)
        flush = partial(self.server.flush, synced=True)
        self.saver = CheckpointSaver(
            control, self.checkpoints, self.server.emitter, flush, self.run.find_displacement
        )
        self.commands = CommandRunner(control, self.server, self.saver, self.plan, self.run.traces)

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
            self.commands.at_epoch_end()
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
def rig(short_home: Path) -> Iterator[Rig]:
    made = Rig(short_home)
    try:
        yield made
    finally:
        made.server.close()


def test_a_full_disk_is_told_and_the_run_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    old = rig.saver.save("round").path

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rig.checkpoints, "save", full)
    with pytest.raises(RequestError, match="No space left on device"):
        rig.checkpoint()
    rig.saver.save_aside("round")
    rig.commands.at_epoch_end()
    rig.saver.wait()
    assert old.exists()
    assert rig.close().count("checkpoint.failed") == 2


def test_checkpoint_that_a_failed_gpu_prevents_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    old = rig.saver.save("round").path

    def failed(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore of it")

    monkeypatch.setattr(rig.checkpoints, "save", failed)
    with pytest.raises(RequestError, match="an illegal memory access"):
        rig.checkpoint()
    rig.saver.save_aside("round")
    rig.saver.wait()
    assert rig.saver.error == "CUDA error: an illegal memory access was encountered"
    assert old.exists()
    assert rig.close().count("checkpoint.failed") == 2


def test_training_goes_on_while_a_checkpoint_is_written(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, save = threading.Event(), rig.checkpoints.save

    def save_late(*args: Any, **how: Any) -> Any:
        disk.wait()
        return save(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(rig.checkpoints, "save", save_late)
        rig.server.emitter.set_clock(round=3, epoch=5)
        rig.saver.save_aside("round")
        rig.trained.weights.zero_()
        rig.trained.epoch = 6
        rig.server.emitter.set_clock(round=3, epoch=6)
        disk.set()
        second = rig.saver.save("command")
    first = load(rig.checkpoints.folder / "round-000003-epoch-00005.pt")
    assert torch.equal(first["weights"], torch.ones(3))
    assert torch.equal(first["parts"][0]["weights"][0], torch.ones(1))
    assert torch.equal(load(second.path)["weights"], torch.zeros(3))
    assert [path.name for path in rig.checkpoints.all()][-1] == second.path.name
    rig.close()
    told = [event for event in read(rig.run.events) if event.type == "checkpoint.saved"]
    assert [event.ctx.epoch for event in told] == [5, 6], "where the run was that they hold"


def test_a_checkpoint_is_not_on_the_disk_before_its_events(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, asked, sync = threading.Event(), threading.Event(), os.fdatasync

    def sync_late(fd: int) -> None:
        asked.set()
        disk.wait()
        sync(fd)

    monkeypatch.setattr(checkpoint_saver, "FLUSH_SECONDS", 600.0)
    assert rig.server.flush(60, synced=True)
    monkeypatch.setattr("esper_overwatch.protocol.journal.writer.os.fdatasync", sync_late)
    rig.server.set_state("PAUSED")
    rig.saver.save_aside("round")
    asked.wait()
    assert not list(rig.checkpoints.folder.iterdir())
    disk.set()
    rig.saver.wait()
    assert rig.checkpoints.all()


def test_moved_run_saves_nothing_in_the_folder_of_another(rig: Rig) -> None:
    place, other = rig.run.path, rig.run.path.with_name("other")
    place.rename(other)
    rig.run.checkpoints.mkdir(parents=True)
    with pytest.raises(OSError, match=r"was moved to .*/other: move it back"):
        rig.saver.save("round")
    assert not list(rig.run.checkpoints.iterdir())
    shutil.rmtree(place)
    other.rename(place)
    assert Path(rig.checkpoint()["path"]).exists()


def test_a_checkpoint_on_command_says_where_it_is(rig: Rig) -> None:
    result = rig.checkpoint("mine")
    assert Path(result["path"]).name == "round-000003-epoch-00005-mine.pt"
    assert Path(result["path"]).stat().st_size == result["bytes"]


def test_failing_wire_does_not_end_the_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise RuntimeError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(rig.server._publisher, "tick", fail)
        until(lambda: rig.server.error == "RuntimeError: gone")
        rig.commands.at_epoch_end()
    until(lambda: rig.server.error is None)
    assert rig.checkpoint("later")["bytes"] > 0


def fill_disk(rig: Rig, patch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(rig.checkpoints, "save", full)


def stop(rig: Rig, *, checkpoint: bool = True, mode: str = "after_epoch") -> str:
    with connect("rig", home=rig.run.path.parents[1]) as client:
        id_: str = client.stop(mode=mode, checkpoint=checkpoint, wait=False)["id"]
        return id_


def failure(rig: Rig, id_: str) -> str:
    assert rig.server.flush(60)
    (event,) = [e for e in read(rig.run.events) if e.type == "command.failed" and e.data.id == id_]
    message: str = event.data.message
    return message


@pytest.mark.parametrize("paused", [False, True])
def test_stop_that_cannot_save_fails_and_the_run_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    if paused:
        rig.commands._paused = True
        threading.Timer(0.3, lambda: setattr(rig.commands, "_paused", False)).start()
    with monkeypatch.context() as patch:
        fill_disk(rig, patch)
        first = stop(rig)
        rig.commands.at_epoch_end()
    assert "No space left on device), the run goes on" in failure(rig, first)
    assert rig.server.state == "TRAINING"
    stop(rig)
    with pytest.raises(StopRun) as ended:
        rig.commands.at_epoch_end()
    assert ended.value.failed is None
    assert rig.close().count("checkpoint.saved") == 1


def test_stop_without_checkpoint_ends_on_a_full_disk(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(rig, monkeypatch)
    stop(rig, checkpoint=False)
    with pytest.raises(StopRun) as ended:
        rig.commands.at_epoch_end()
    assert ended.value.failed is None


def test_signal_ends_the_run_and_tells_what_was_not_saved(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(rig, monkeypatch)
    rig.commands.request_stop("SIGTERM")
    with pytest.raises(StopRun) as ended:
        rig.commands.at_epoch_end()
    assert ended.value.failed == "No space left on device"


def test_stop_after_unsaved_round_fails(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rig.commands.goes_on_after_round()
    with monkeypatch.context() as patch:
        fill_disk(rig, patch)
        first = stop(rig, mode="after_round")
        rig.commands.at_epoch_end()
        rig.saver.save_aside("round")
        assert rig.commands.goes_on_after_round()
    assert "the run goes on" in failure(rig, first)
    stop(rig, mode="after_round")
    rig.commands.at_epoch_end()
    rig.saver.save_aside("round")
    assert not rig.commands.goes_on_after_round()


def test_a_signal_ends_a_paused_run(rig: Rig) -> None:
    """Pausing holds the loop inside `at_epoch_end`; a signal's request gets it out."""
    threading.Timer(0.5, lambda: rig.commands.request_stop("SIGTERM")).start()
    rig.commands._paused = True
    with pytest.raises(StopRun, match="SIGTERM"):
        rig.commands.at_epoch_end()


def test_paused_run_lives_and_trains_no_epoch(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.server.close()  # its thread keeps to the real clock
    now = [1000.0]
    monkeypatch.setattr(server_module, "time", SimpleNamespace(**vars(time) | {"monotonic": lambda: now[0]}))
    ages: list[int] = []

    def wait(_seconds: float) -> None:
        now[0] += 700.0
        ages.append(rig.server.trainer_beat.beat_age_ms)
        if len(ages) == 3:
            rig.commands._paused = False

    monkeypatch.setattr(rig.server.mailbox, "wait", wait)
    rig.server.beat(3, 5)
    rig.commands._paused = True
    rig.commands.at_epoch_end()
    beat = rig.server.trainer_beat
    assert ages == [700_000] * 3, "each since the one before"
    assert (beat.round, beat.epoch, beat.beat_age_ms) == (3, 5, 0)
    assert rig.server.num_epochs == 1


def test_runner_is_idle_until_something_is_to_be_done(rig: Rig) -> None:
    assert rig.commands.is_idle
    rig.commands.request_escalation()
    assert not rig.commands.is_idle
    rig.commands.at_epoch_end()
    assert rig.commands.is_idle
    rig.commands.profiler.start(1)
    assert not rig.commands.is_idle
    rig.commands.profiler.cancel("enough")
    assert rig.commands.is_idle
    rig.server.mailbox.put(Command("1", "resume", Params(), "tests", None, None, "", 0))
    assert not rig.commands.is_idle
    rig.commands.at_epoch_end()
    assert rig.commands.is_idle
    rig.commands.request_stop("SIGTERM")
    assert not rig.commands.is_idle


def test_commands_that_wait_for_a_round_are_bounded(rig: Rig) -> None:
    mailbox, params = rig.server.mailbox, ParamSetParams("reward.rent", 0.5)
    for number in range(64):
        assert mailbox.has_room("param.set")
        mailbox.put(Command(str(number), "param.set", params, "tests", None, None, "", 0))
        rig.commands.at_epoch_end()
    assert not mailbox.has_room("param.set")
    assert mailbox.has_room("resume")
    mailbox.put(Command("c", "op.cancel", OpParams("7"), "tests", None, None, "", 0))
    rig.commands.at_epoch_end()
    assert mailbox.has_room("param.set")


def test_what_is_open_at_the_end_is_answered(rig: Rig) -> None:
    told: list[Any] = []

    def client() -> None:
        with connect("rig", home=rig.run.path.parents[1]) as client:
            identity = client.escalate(epochs=50)["id"]
            try:
                client.wait_for(identity, timeout=300)
            except RequestError as error:
                told.append(error.kind)

    thread = threading.Thread(target=client)
    thread.start()
    while not rig.plan.layer_envs.any():
        rig.commands.at_epoch_end()
        thread.join(0.02)
    thread.join(0.5)
    rig.commands.close()
    thread.join(300)
    assert told == ["cancelled"]


def test_command_accepted_while_the_run_ends_is_answered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, looked = threading.Event(), threading.Event()
    poll = rig.server.mailbox.poll

    def check(_params: Params) -> None:
        """The run's state allows the command, which is not in the mailbox yet."""
        allowed.set()
        looked.wait(300)

    def look() -> list[Command]:
        found = poll()
        looked.set()
        return found

    def client() -> None:
        with connect("rig", home=rig.run.path.parents[1]) as client:
            client.checkpoint()

    monkeypatch.setattr(rig.server._handler, "_check_params", check)
    monkeypatch.setattr(rig.server.mailbox, "poll", look)
    thread = threading.Thread(target=client)
    thread.start()
    assert allowed.wait(300)
    rig.server.set_state("STOPPING")
    rig.commands.close()
    thread.join(300)
    assert rig.close()[-2:] == ["command.accepted", "command.failed"]


def test_seed_waits_behind_episode_unless_paused(rig: Rig) -> None:
    """What waits for a new episode would wait for ever in a paused run, and nobody would know why."""
    rig.trained.can_intervene = False
    with connect("rig", home=rig.run.path.parents[1]) as client:
        waits = client.prune(0, "r0c0", wait=False)["id"]
        rig.commands.at_epoch_end()
        assert {op["op"]: op["state"] for op in client.ops()}[waits] == "waiting"
        rig.trained.can_intervene = True
        rig.commands.at_epoch_end()
        assert client.wait_for(waits, timeout=300)["slot"] == "r0c0"

        rig.trained.can_intervene = False
        client.pause(wait=False)
        refused = client.prune(0, "r0c0", wait=False)["id"]
        threading.Timer(0.5, lambda: rig.commands.request_stop("end")).start()
        with pytest.raises(StopRun):
            rig.commands.at_epoch_end()
        with pytest.raises(RequestError, match=r"paused behind the last epoch.*resume") as told:
            client.wait_for(refused, timeout=300)
    assert told.value.kind == "wrong_state"


def test_checkpoint_is_not_ahead_of_the_journal(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a checkpoint holds is not trained again: after kill -9 its events must be in the journal."""
    monkeypatch.setattr(server_module, "TICK_SECONDS", 0.5)
    time.sleep(0.1)  # the present tick is a short one
    replace, held = checkpoint_module.replace_file, []

    def look_and_replace(path: Path, content: memoryview) -> None:
        held.extend(e.data.rounds for e in read(rig.run.events) if e.type == "round.started")
        replace(path, content)

    monkeypatch.setattr(checkpoint_module, "replace_file", look_and_replace)
    rig.server.emitter.emit(RoundStarted(rounds=7))
    rig.saver.save("round")
    assert held == [7]

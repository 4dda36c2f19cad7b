"""A real daemon under a service manager: readiness, reload, escalation, the end."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.trainer.daemon.test_systemd import Manager

from .conftest import House, eventually


@pytest.mark.nightly
def test_a_daemon_as_a_service(house: House, tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    house.environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
    daemon = house.spawn("alpha", "--or-resume", "--set", "telemetry.escalate_on=off")
    assert manager.next()["READY"] == "1"
    soft, hard = psutil.Process(daemon.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert soft in (hard, 65_536), "clients may need them"
    eventually(lambda: manager.next().get("WATCHDOG") == "1")

    log = house.run_folder("alpha") / "daemon.log"
    log.rename(log.with_suffix(".1"))
    daemon.send_signal(signal.SIGHUP)
    eventually(lambda: "RELOADING" in manager.next())
    eventually(log.exists)
    daemon.send_signal(signal.SIGUSR1)
    eventually(lambda: "Current thread" in log.read_text() or "most recent call first" in log.read_text())
    eventually(lambda: [e for e in house.journal("alpha", "log") if "SIGHUP" in e["data"]["message"]])

    daemon.send_signal(signal.SIGUSR2)
    (up,) = eventually(lambda: house.journal("alpha", "telemetry.level")[:1])
    assert (up["data"]["level"], up["data"]["reason"]) == ("DEBUG", "SIGUSR2")
    eventually(lambda: house.journal("alpha", "layers"))

    daemon.send_signal(signal.SIGTERM)
    eventually(lambda: "STOPPING" in manager.next())
    assert daemon.wait(300) == 0
    manager.socket.close()
    before = house.journal("alpha", "run.stopped")[-1]["data"]["rounds"]

    again = house.spawn("alpha", "--or-resume")
    started = house.journal("alpha", "run.started")[-1]["data"]
    assert started["resumed_round"] is not None
    assert started["resumed_round"] >= before - 1
    again.send_signal(signal.SIGTERM)
    assert again.wait(300) == 0


@pytest.mark.slow
def test_many_stacks_are_dumped_while_training_goes_on(house: House) -> None:
    """Threads change their frames meanwhile; a dump that took no care ended the daemon after some dozens."""
    daemon = house.spawn("alpha")
    log = house.run_folder("alpha") / "daemon.log"
    for dumps in range(300):
        daemon.send_signal(signal.SIGUSR1)
        eventually(
            lambda dumps=dumps: daemon.poll() is not None or log.read_text().count("Current thread") > dumps,
            every=0.001,
        )
        assert daemon.poll() is None, log.read_text()[-500:]
    assert "trainer/loop.py" in log.read_text(), "the main thread's is among them"
    epochs = len(house.journal("alpha", "epoch"))
    eventually(lambda: len(house.journal("alpha", "epoch")) > epochs)


@pytest.mark.slow
def test_no_documented_signal_changes_how_a_run_ends(house: House) -> None:
    """From the start, as soon as they are handled, until the process is gone: logrotate knows no better."""
    daemon = house.start("alpha", "--rounds", "2")
    status = Path(f"/proc/{daemon.pid}/status")
    handles = 1 << (signal.SIGUSR2 - 1)

    def catches() -> bool:
        (caught,) = (line for line in status.read_text().split("\n") if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) & handles)

    eventually(catches, every=0.001)
    for number in itertools.cycle((signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)):
        if daemon.poll() is not None:
            break
        daemon.send_signal(number)
        time.sleep(0.05)  # what a dump costs must leave time to train
    assert daemon.returncode == 0
    assert house.journal("alpha", "run.stopped")[-1]["data"]["rounds"] == 2


@pytest.mark.slow
def test_sigterm_in_the_middle_of_a_checkpoint(house: House) -> None:
    """Whatever is being written is whole afterwards, and the end's own checkpoint is written, too."""
    daemon = house.spawn("alpha")
    folder = house.run_folder("alpha") / "checkpoints"
    before = {path.name for path in folder.iterdir()}
    assert house.daemon("checkpoint", "alpha", "--tag", "mine", "--no-wait").returncode == 0
    eventually(lambda: {path.name for path in folder.iterdir()} - before, every=0.001)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(300) == 0
    saved = {e["data"]["reason"] for e in house.journal("alpha", "checkpoint.saved")}
    assert "stop: SIGTERM" in saved
    again = house.spawn("alpha", "--resume", "alpha")
    again.send_signal(signal.SIGINT)
    assert again.wait(300) == 0, "control-C is an orderly end"
    assert house.journal("alpha", "run.stopped")[-1]["data"]["reason"] == "SIGINT"

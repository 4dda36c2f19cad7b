"""The first line of the terminal in real trouble, at three widths: what, after what, which key helps."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.render.bars import incident_line
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.trainer.measurements import Measurements
from tests.overwatch_tui.harness import panel_inputs
from tests.trainer.telemetry.rig import Rig

from .conftest import TERMINAL, House, eventually
from .terminal import Terminal

WIDTHS = (80, 120, 200)


def first_line(house: House, name: str, width: int) -> str:
    """The line below the header, of one screen printed as text."""
    shown = house.run(*TERMINAL, name, "--once", environment={"COLUMNS": str(width), "LINES": "24"})
    return shown.stdout.split("\n")[1] if shown.stdout.count("\n") > 1 else ""


def lines_with(house: House, name: str, words: str) -> list[str]:
    """The first line at each width, once it says this."""
    return [
        eventually(lambda w=width: line if words in (line := first_line(house, name, w)) else "")  # type: ignore[misc]
        for width in WIDTHS
    ]


def is_critical(house: House, name: str) -> bool:
    """Whether the journal has an open incident of that severity; a terminal for each look costs a second."""
    newest = {line["data"]["id"]: line["data"] for line in house.journal(name, "incident")}
    return any(one["active"] and one["severity"] == "critical" for one in newest.values())


@pytest.mark.slow
def test_learning_rate_is_suspected_and_its_undo_works(house: House) -> None:
    house.spawn("r", "--set", "episode_epochs=24", "--set", "envs.count=8", "--rounds", "1000")
    eventually(lambda: house.journal("r", "round.finished"))
    assert "ok no incident is open" in first_line(house, "r", 80)
    assert house.daemon("param", "r", "host.learning_rate=10").returncode == 0
    eventually(lambda: is_critical(house, "r"), every=0.5)
    assert house.daemon("pause", "r").returncode == 0  # or a training keeps a core busy
    narrow, middle, wide = lines_with(house, "r", " CRIT ")
    for line in (narrow, middle, wide):
        assert "host.learning_rate 0.05 -> 10" in line
        assert line.rstrip().endswith("n guide")
    assert "by esper-daemon, uid " in wide
    incident = house.journal("r", "incident")[-1]["data"]
    assert house.daemon("call", "r", *incident["undo"].split()).returncode == 0
    assert house.daemon("resume", "r").returncode == 0
    eventually(lambda: house.ask("param", "r", "host.learning_rate")[0]["value"] == 0.05)
    eventually(lambda: not is_critical(house, "r"), every=0.5)  # the dead end with the episode
    eventually(lambda: " CRIT " not in first_line(house, "r", 80))


@pytest.mark.slow
def test_stopped_daemon_is_not_shown_as_healthy(house: House) -> None:
    """Of a run with work to do: where an epoch is three batches, a warning of telemetry's share is true."""
    options = ("episode_epochs=24", "envs.count=8", "task.batches_per_epoch=30")
    daemon = house.spawn("r", *(word for option in options for word in ("--set", option)), "--rounds", "1000")
    command = [sys.executable, *TERMINAL, "r"]
    terminals = [Terminal(command, house.environment, columns=width) for width in WIDTHS]
    try:
        for terminal in terminals:
            terminal.wait_for("ok no incident is open")
        daemon.send_signal(signal.SIGSTOP)
        for terminal in terminals:
            assert "no incident is open" not in terminal.wait_for("STALE").split("\n")[1]
        daemon.send_signal(signal.SIGCONT)
        for terminal in terminals:
            terminal.wait_for("ok no incident is open")
    finally:
        daemon.send_signal(signal.SIGCONT)
        for terminal in terminals:
            terminal.kill()


@pytest.mark.slow
def test_full_disk_is_named_before_its_symptoms(house: House, tmp_path: Path) -> None:
    """The disk is full for the process: its journal may not grow beyond a size."""
    code = """
import errno, os, sys, time
import esper_overwatch
wrote, full = os.write, time.monotonic() + 2
def write(fd, data):
    if time.monotonic() > full and os.readlink(f"/proc/self/fd/{fd}").endswith("events.jsonl"):
        raise OSError(errno.ENOSPC, "No space left on device")
    return wrote(fd, data)
with esper_overwatch.publish("loop") as run:
    os.write = write
    for step in range(10**9):
        run.log(step=step, loss=1.0)
        time.sleep(0.01)
"""
    house.open("-c", code)
    for line in lines_with(house, "loop", " CRIT "):
        assert "disk full: " in line
        assert " events wait, " in line
        assert line.rstrip().endswith("n guide")


@pytest.mark.parametrize("width", WIDTHS)
def test_dead_gradients_of_one_blueprint_name_it(width: int) -> None:
    def dead(measurements: Measurements) -> None:
        measurements.seed_grad_norm[:3, 0] = 0.0

    rig = Rig(8)
    for _ in range(8):
        rig.run_epoch()
    for _ in range(6):
        rig.run_epoch(dead)
    state = State()
    for event in rig.take():
        state.fold(event)
    line = plain(incident_line(panel_inputs(state), width))
    assert line.startswith(" WARN  dead gradients: ")
    assert line.rstrip().endswith("n guide")
    assert "3 of 8 envs, 3 seeds, all conv_light" in line

"""Processes that we start import nothing from the folder that they are started in."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SMALL, House, eventually

pytestmark = pytest.mark.slow
PROGRAMS = Path(sys.executable).parent
HOSTILE = ("trainer", "protocol", "overwatch_tui", "esper_overwatch", "click", "torch", "numpy", "textual")
SETS = [word for item in SMALL for word in ("--set", item)]


@pytest.fixture
def folder(house: House, tmp_path: Path) -> Path:
    """Where a user's own files have names that our programs import; each leaves a mark where it is."""
    house.environment.pop("PYTHONPATH", None)
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / 'imported')!r}, 'a').write(__name__ + chr(10))\n"
            f"raise ImportError('{name}.py of the current folder')\n"
        )
    return folder


def run(house: House, folder: Path, *command: str) -> None:
    """Run a command there to its end, and see that it has succeeded."""
    done = subprocess.run(
        [PROGRAMS / command[0], *command[1:]],
        cwd=folder,
        env=house.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


def has_trained(house: House, folder: Path, name: str) -> None:
    eventually(lambda: house.journal(name, "run.stopped"))
    assert house.journal(name, "round.finished")
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


def test_the_folder_is_hostile(folder: Path) -> None:
    """Without care it is imported from: else the others of this file would prove nothing."""
    code = subprocess.call(
        [sys.executable, "-m", "esper_overwatch.trainer", "--version"], cwd=folder, stderr=subprocess.DEVNULL
    )
    assert code != 0
    assert (folder / "imported").read_text() == "esper_overwatch\n"


def test_a_detached_start(house: House, folder: Path) -> None:
    run(house, folder, "esper-daemon", "start", "--detach", "own", "--rounds", "1", *SETS)
    has_trained(house, folder, "own")


def test_what_systemd_is_told_to_start(house: House, folder: Path) -> None:
    words = ("own", "--set", "rounds=1", *SETS)
    unit = subprocess.check_output(
        [PROGRAMS / "esper-daemon", "systemd", *words], cwd=folder, env=house.environment, text=True
    )
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    run(house, folder, *shlex.split(command))
    has_trained(house, folder, "own")


def test_the_trials_of_a_sweep(house: House, folder: Path) -> None:
    pytest.importorskip("optuna")
    (folder / "space.toml").write_text("host.learning_rate = {low = 0.01, high = 0.05}\n")
    more = ("rounds=1", "evaluation.rounds=1", "evaluation.hosts=4", "evaluation.rivals=")
    sets = [*SETS, *(word for item in more for word in ("--set", item))]
    run(house, folder, "esper-daemon", "sweep", "--space", "space.toml", "--trials", "1", *sets)
    (trial,) = house.home.glob("runs/space-*")
    has_trained(house, folder, trial.name)


def test_the_terminal_of_a_browsers_page(house: House, folder: Path) -> None:
    pytest.importorskip("textual_serve", reason="the extra `serve` is not installed")
    from aiohttp import ClientSession, WSMsgType

    async def screen(address: str) -> bytes:
        """What the page receives, until the run is named in it."""
        received = b""
        async with ClientSession() as session:
            pages, _, token = address.replace("http", "ws", 1).partition("#")
            async with session.ws_connect(f"{pages}ws?{token}&width=80&height=24") as socket:
                async for message in socket:
                    received += message.data if message.type is WSMsgType.BINARY else b""
                    if b"own" in received:
                        break
        return received

    house.spawn("own")
    served = subprocess.Popen(
        [PROGRAMS / "esper-tui", "own", "--serve", "--port", "0"],
        cwd=folder,
        env=house.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    house.processes.append(served)
    assert served.stdout is not None
    (address,) = re.findall(r"http://\S+", served.stdout.readline())
    assert b"own" in asyncio.run(screen(address))
    assert not (folder / "imported").exists(), (folder / "imported").read_text()
    served.terminate()

"""The runs of two other machines in one list, through real OpenSSH servers: opened live and as recordings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.overwatch_tui.runs import make_run
from tests.protocol.sshd import ABSENT, Machine, user

from .terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]

LOOP = """
import time
from esper_overwatch import publish
with publish("loop") as run:
    step = 0
    while not run.asked("stop"):
        run.log(step=step, loss=1 / (step + 1))
        step += 1
        time.sleep(0.1)
"""


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    """The hosts `box` and `crate`; the first one's ssh knows the way to both."""
    folders = [Path(tempfile.mkdtemp(prefix=f"esper-{name}-")) for name in ("box", "crate")]
    with Machine(folders[0]) as box, Machine(folders[1]) as crate:
        box.configure_client(
            f"\nHost crate\n  HostName 127.0.0.1\n  Port {crate.port}\n  User {user()}\n"
            f"  IdentityFile {folders[1]}/user\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {folders[1]}/known"
        )
        yield box, crate
    for machine in (box, crate):
        machine.remove()


@pytest.fixture
def here(machines: tuple[Machine, Machine], tmp_path: Path) -> dict[str, str]:
    """Environment of this machine."""
    (tmp_path / "rt").mkdir(mode=0o700)
    return {
        **os.environ,
        "PATH": f"{machines[0].client}:{os.environ['PATH']}",
        "ESPER_HOME": str(tmp_path / "home"),
        "XDG_RUNTIME_DIR": str(tmp_path / "rt"),
        "TMPDIR": str(tmp_path),
    }


def test_runs_of_two_machines_in_one_list(
    machines: tuple[Machine, Machine], here: dict[str, str], tmp_path: Path
) -> None:
    box, crate = machines
    make_run(box.home, "alpha", exit_code=0)
    make_run(crate.home, "beta")
    loop = subprocess.Popen([sys.executable, "-c", LOOP], env=box.environment)
    named = [sys.executable, "-m", "esper_overwatch.overwatch_tui", "--ssh", "box", "alpha"]
    once = subprocess.run([*named, "--once"], env=here, capture_output=True, text=True, timeout=300)
    assert (once.returncode, "STOPPED" in once.stdout) == (0, True), once.stderr
    terminal = Terminal(named, here, columns=100, lines=30)
    try:
        terminal.wait_for(lambda text: "ENDED" in text and "STOPPED" in text, seconds=120)
        terminal.press("q")
        assert terminal.process.wait(300) == 0
    finally:
        terminal.close()
    command = [sys.executable, "-m", "esper_overwatch.overwatch_tui", "--ssh", "box", "--ssh", "crate"]
    terminal = Terminal(command, here, columns=100, lines=30)
    try:
        terminal.wait_for(lambda text: all(name in text for name in ("alpha", "beta", "HOST")), seconds=120)
        text = terminal.wait_for("loop", seconds=120)
        assert " box " in text
        assert " crate " in text
        terminal.press("g\r")
        terminal.wait_for(lambda text: "LIVE" in text and "loss" in text, seconds=120)
        terminal.press("R")
        terminal.wait_for("DIED")
        terminal.press("gj\r")
        terminal.wait_for(lambda text: "ENDED" in text and "STOPPED" in text, seconds=120)
        assert list(tmp_path.glob("esper-recording-*/alpha/events.jsonl"))
        terminal.press("R")
        terminal.wait_for("RUNS")
        crate.down()
        terminal.wait_for(lambda text: "crate  last heard" in text and "machine silent" in text, seconds=120)
        assert "beta" in terminal.text, "what was known of it stays"
        crate.up()
        terminal.wait_for(lambda text: "last heard" not in text, seconds=120)
        box.freeze()
        text = terminal.wait_for("does not answer", seconds=120)
        assert re.search(r"loop +box +TRAINING\?", text)
        box.thaw()
        text = terminal.wait_for(lambda text: "last heard" not in text, seconds=120)
        assert re.search(r"loop +box +TRAINING ", text)
        terminal.press("\x1b")
        terminal.wait_for("ENDED")
        terminal.press("q")
        assert terminal.process.wait(300) == 0
        assert not list(tmp_path.glob("esper-recording-*")), "the recording is removed"
    finally:
        terminal.close()
        loop.kill()
        loop.wait()


DONE = """
from esper_overwatch import publish
with publish("done", config={"rate": 0.2, "batch": 32}) as run:
    for step in range(50):
        run.log(step=step, loss=2 / (step + 1))
"""


def test_marked_runs_of_two_machines_are_compared(
    machines: tuple[Machine, Machine], here: dict[str, str]
) -> None:
    box, crate = machines
    assert subprocess.run([sys.executable, "-c", DONE], env=box.environment, timeout=300).returncode == 0
    live = LOOP.replace('publish("loop")', 'publish("loop", config={"rate": 0.1, "batch": 32})')
    loop = subprocess.Popen([sys.executable, "-c", live], env=crate.environment)
    esper_tui = [sys.executable, "-m", "esper_overwatch.overwatch_tui"]
    terminal = Terminal([*esper_tui, "--ssh", "box", "--ssh", "crate"], here, columns=100, lines=30)
    try:
        terminal.wait_for(lambda text: "done" in text and "loop" in text)
        terminal.press("g c")
        terminal.wait_for("Space marks a run")
        terminal.press("G ")
        terminal.wait_for(lambda text: "a loop" in text and "b done" in text)
        terminal.press("c")

        def steps() -> int:
            found = re.search(r"steps +(\d+) +49", terminal.text)
            return int(found[1]) if found else 0

        text = terminal.wait_for(lambda _: steps() > 0)
        assert "a crate:loop" in text
        assert "b box:done" in text
        assert re.search(r"rate +0.1 +0.2", text)
        assert "batch" not in text, "they agree in it"
        assert re.search(r"loss +[\d.e-]+ +0.04", text)
        before = steps()
        terminal.wait_for(lambda _: steps() > before)
        crate.down()
        terminal.wait_for("crate:loop is not read for now")
        before = steps()
        crate.up()
        terminal.wait_for(lambda _: steps() > before)

        words = ["--once", "--ssh", "box", "done", "ssh://crate/loop"]
        table = subprocess.run([*esper_tui, *words], env=here, capture_output=True, text=True, timeout=300)
        assert table.returncode == 0, table.stderr
        assert re.search(r"a box:done +b crate:loop", table.stdout)
        assert re.search(r"rate +0.2 +0.1", table.stdout)
        assert re.search(r"steps +49 +\d+", table.stdout)
        words = ["--once", "--ssh", "box", "done", "nowhere"]
        none = subprocess.run([*esper_tui, *words], env=here, capture_output=True, text=True, timeout=300)
        assert (none.returncode, "box: no run nowhere" in none.stderr) == (3, True)
    finally:
        terminal.close()
        loop.kill()
        loop.wait()


def test_two_machines_ask_one_after_the_other(
    machines: tuple[Machine, Machine], here: dict[str, str]
) -> None:
    """Each by what is typed first on the terminal that both have."""
    for machine, phrase in zip(machines, ("of the box", "of the crate"), strict=True):
        make_run(machine.home, f"run-{phrase[-3:]}", exit_code=0)
        key = ["ssh-keygen", "-q", "-p", "-P", "", "-N", phrase, "-f", str(machine.folder / "user")]
        subprocess.run(key, check=True, stdout=subprocess.DEVNULL)
    environment = {name: value for name, value in here.items() if name != "SSH_AUTH_SOCK"}
    command = [sys.executable, "-m", "esper_overwatch.overwatch_tui", "--ssh", "box", "--ssh", "crate"]
    terminal = Terminal(command, environment, columns=100, lines=30, controls=True)
    box, crate = (f"passphrase for key '{machine.folder}/user'" for machine in machines)
    try:
        terminal.wait_for(box)
        assert crate not in terminal.text
        terminal.press("of the box\n")
        terminal.wait_for(crate)
        assert terminal.text.count("passphrase for") == 2
        terminal.press("of the crate\n")
        terminal.wait_for(lambda text: "run-box" in text and "run-ate" in text)
        terminal.press("q")
        assert terminal.process.wait(300) == 0
    finally:
        terminal.close()


def test_ctrl_c_at_a_question_leaves_terminal_as_before(
    machines: tuple[Machine, Machine], here: dict[str, str]
) -> None:
    (machines[0].folder / "known").write_text("")
    command = [sys.executable, "-m", "esper_overwatch.overwatch_tui", "ssh://box/alpha"]
    terminal = Terminal(command, here, columns=100, lines=30, controls=True)
    try:
        terminal.wait_for("Are you sure you want to continue connecting")
        children = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.press("\x03")
        terminal.wait_for("esper-tui: interrupted")
        assert (terminal.process.wait(300), terminal.echoes) == (130, True)
        psutil.wait_procs(children, timeout=300)
        assert not any(child.is_running() for child in children)
    finally:
        terminal.close()

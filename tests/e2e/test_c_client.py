"""A client in C, written from the reference page: it joins, repairs a hole it made itself, and commands."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import House, eventually

SOURCE = Path(__file__).with_name("clients") / "client.c"
LIBRARIES = ("libzmq", "jansson")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled; skips where that cannot be done here."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    pkg_config = shutil.which("pkg-config")
    if compiler is None or pkg_config is None:
        pytest.skip("no C compiler or no pkg-config here (Debian: gcc, pkg-config)")
    found = subprocess.run([pkg_config, "--cflags", "--libs", *LIBRARIES], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip("libzmq or jansson cannot be compiled against (Debian: libzmq3-dev, libjansson-dev)")
    program = tmp_path_factory.mktemp("c") / "client"
    flags = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1")
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(program), *found.stdout.split()], check=True)
    return program


@pytest.mark.parametrize("stream", ["life", "metric"])
def test_a_client_in_c_joins_repairs_and_commands(house: House, client: Path, stream: str) -> None:
    house.spawn("foreign")
    connection = json.loads((house.run_folder("foreign") / "connection.json").read_bytes())
    endpoints = json.dumps(connection["endpoints"])
    ran = subprocess.run([client, endpoints, stream, "1", "from C"], capture_output=True, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode()
    assert b"repaired" in ran.stderr, "it threw a batch away and noticed"
    got = {json.loads(line)["seq"]: line for line in ran.stdout.splitlines()}
    assert list(got) == list(range(min(got), max(got) + 1)), "each once, in order"
    journal = (house.run_folder("foreign") / "events.jsonl").read_bytes().splitlines()
    of_stream = {e["seq"]: line for line in journal if (e := json.loads(line))["stream"] == stream}
    assert all(of_stream[seq] == line for seq, line in got.items()), "byte for byte the journal's"
    (mark,) = house.journal("foreign", "mark")
    assert mark["data"]["text"] == "from C"
    assert mark["data"]["client"] == "client.c"
    eventually(lambda: any(op["method"] == "mark" for op in house.ask("ops", "foreign")))

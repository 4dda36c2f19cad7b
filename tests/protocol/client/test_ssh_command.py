"""What a user's ssh is set up for, and what stands in its way, at a real OpenSSH server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psutil
import pytest

from esper_overwatch import connect
from esper_overwatch.protocol.client.sources import make_target_source, wait_for_target
from esper_overwatch.protocol.errors import EsperError, TunnelError
from tests.protocol.harness import Daemon, until
from tests.protocol.sshd import ABSENT, Machine, ssh_children

pytestmark = [pytest.mark.slow, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]

LIST = [sys.executable, "-m", "esper_overwatch.trainer", "list", "--ssh", "box"]


@contextmanager
def shared_connection(box: Machine) -> Iterator[psutil.Process]:
    """The process of a connection that the user has opened, for all that follow."""
    box.configure_client(f"ControlPath {box.folder}/shared")
    command = [f"{box.client}/ssh", "-M", "-N", "box"]
    master = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        until((box.folder / "shared").exists)
        yield psutil.Process(master.pid)
    finally:
        master.terminate()
        master.wait()


def sockets_of(process: psutil.Process, folder: str) -> set[str]:
    """Those that it has open below a folder."""
    paths = {str(one.laddr) for one in process.net_connections("unix")}
    return {path for path in paths if path.startswith(folder)}


def test_tunnel_through_shared_connection_stays_and_comes_back(
    box: Machine, over_there: Callable[[str], Daemon]
) -> None:
    over_there("alpha")
    with shared_connection(box) as master, closing(make_target_source("ssh://box/alpha")) as source:

        def tunnels() -> list[psutil.Process]:
            mine = [child for child in ssh_children() if child.pid != master.pid]
            return [child for child in mine if "-L" in child.cmdline()]

        target = wait_for_target(source)
        (first,) = tunnels()
        first.kill()

        def is_back() -> bool:
            try:
                return source.find() == target and first not in tunnels() != []
            except EsperError:
                return False

        until(is_back)
        sockets = {path.removeprefix("ipc://") for path in target.endpoints.values()}
        folder = target.endpoints["ev"].removeprefix("ipc://").removesuffix("/ev")
        assert sockets_of(master, folder) == sockets
        source.close()
        until(lambda: not sockets_of(master, folder))
        assert not tunnels()


def test_no_connection_of_ours_is_shared(box: Machine, over_there: Callable[[str], Daemon]) -> None:
    over_there("alpha")
    box.configure_client(f"ControlMaster auto\n  ControlPath {box.folder}/shared")
    with connect("ssh://box/alpha"):
        assert not (box.folder / "shared").exists(), "whose session joined it would end with ours"


def test_what_the_login_shell_prints_is_skipped(box: Machine, over_there: Callable[[str], Daemon]) -> None:
    over_there("alpha")
    box.configure_client("RequestTTY force")
    for noise in ("echo welcome to the box", "printf '[]'", "echo noise >&2"):
        box.force(f'{noise}; eval "$SSH_ORIGINAL_COMMAND"')
        with connect("ssh://box/alpha") as run:
            assert run.status()["state"] == "TRAINING"
        said = subprocess.run([*LIST, "--json"], stdout=subprocess.PIPE, check=True)
        assert [row["name"] for row in json.loads(said.stdout)] == ["alpha"]
    box.force("true")
    line = "box: the shell there ends before it begins esper-daemon; try: ssh box"
    with pytest.raises(TunnelError, match=f"^{line}$"):
        connect("ssh://box/alpha")
    said = subprocess.run(LIST, capture_output=True)
    assert (said.returncode, said.stderr.decode()) == (3, f"esper-daemon: {line}\n")


def test_why_ssh_fails_is_one_line(box: Machine) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", box.folder / "other"], check=True)
    other = (box.folder / "other.pub").read_text()
    known, authorized = box.folder / "known", box.folder / "authorized"
    key = "Host key verification failed"
    cases = [
        (known, "", key),
        (known, f"[127.0.0.1]:{box.port} {other}", key),
        (authorized, other, r".*Permission denied \(publickey.*\)"),
    ]
    for file, content, reason in cases:
        good = file.read_text()
        file.write_text(content)
        line = f"box cannot be reached: {reason}; try: ssh box"
        with pytest.raises(TunnelError, match=f"^{line}$"):
            connect("ssh://box")
        said = subprocess.run(LIST, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert (said.returncode, said.stdout) == (3, "")
        assert said.stderr.count("\n") == 1, said.stderr
        assert said.stderr.startswith("esper-daemon: box cannot be reached: ")
        file.write_text(good)
    assert subprocess.run(LIST, capture_output=True).returncode == 0

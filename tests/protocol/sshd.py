"""Another machine: a real OpenSSH server on a loopback port, with keys, home and PATH of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
ABSENT = None if SSHD and shutil.which("ssh") else "no OpenSSH server here; apt-get install openssh-server"
ROOT = Path(__file__).parents[2]
PORTS = (10_000, 32_000)
"""Below those that Linux hands out, so that no connection gets a free one before the test binds it."""


def free_ports(count: int = 1) -> int:
    """The first of `count` consecutive ports that are free."""
    while True:
        first = SystemRandom().randrange(*PORTS)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


def user() -> str:
    """Who runs the tests, whatever LOGNAME and USER say."""
    return pwd.getpwuid(os.getuid()).pw_name


class Machine:
    """Runs of `home`, reached as the host `box` by whoever has `client` first on the PATH.

    Attributes:
        folder: all that belongs to it: the keys `host` and `user`, and what is `authorized` and `known`.
        home: `$ESPER_HOME` on that machine.
        environment: of a daemon on that machine.
        client: a folder with an `ssh` that knows how to log in.
    """

    def __init__(self, folder: Path) -> None:
        self.home, self.client = folder / "home", folder / "client"
        runtime, programs = folder / "run", folder / "bin"
        for path in (runtime, programs, self.client):
            path.mkdir(parents=True, mode=0o700)
        self.environment = {
            **os.environ,
            "ESPER_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(runtime),
            "PYTHONPATH": str(ROOT),
        }
        self.folder = folder
        self.port = free_ports()
        _script(programs / "esper-daemon", f'exec {sys.executable} -m esper_overwatch.trainer "$@"')
        for key in ("host", "user"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True
            )
        shutil.copy(folder / "user.pub", folder / "authorized")
        host_key = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {host_key}")
        sets = {"ESPER_HOME": self.home, "XDG_RUNTIME_DIR": runtime, "PYTHONPATH": ROOT}
        sets["PATH"] = f"{programs}:{os.environ['PATH']}"  # type: ignore[assignment]
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\nPidFile none\n"
            "PermitRootLogin yes\nPasswordAuthentication no\nSetEnv "
            + " ".join(f"{name}={value}" for name, value in sets.items())
            + "\n"
        )
        (folder / "ssh_config").write_text(
            f"Host box\n  HostName 127.0.0.1\n  Port {self.port}\n  User {user()}\n"
            f"  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n"
        )
        ssh = shutil.which("ssh")
        _script(self.client / "ssh", f'exec {ssh} -F {folder}/ssh_config "$@"')
        self._sshd: subprocess.Popen[bytes] | None = None

    def configure(self, line: str) -> None:
        """Add a line to the server's configuration, from its next start on."""
        with (self.folder / "sshd_config").open("a") as file:
            file.write(line + "\n")

    def force(self, command: str) -> None:
        """Have each login execute this instead, as a login shell's files might; starts the server anew."""
        self.down()
        lines = (self.folder / "sshd_config").read_text().splitlines()
        kept = [line for line in lines if not line.startswith("ForceCommand ")]
        (self.folder / "sshd_config").write_text("\n".join([*kept, f"ForceCommand {command}", ""]))
        self.up()

    def configure_client(self, line: str) -> None:
        """Add a line to what the client's configuration says of `box`."""
        with (self.folder / "ssh_config").open("a") as file:
            file.write(f"  {line}\n")

    def up(self) -> None:
        """Start the server and wait until it listens."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        assert SSHD is not None
        self._sshd = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")], stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 300
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._sshd.poll() is None, "sshd does not start"
            assert time.monotonic() < end
            time.sleep(0.05)

    def down(self) -> None:
        """Pull the plug: the server and every connection it serves."""
        if self._sshd is None:
            return
        import psutil

        served = self._served()
        self._sshd.kill()
        self._sshd.wait()
        for process in served:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._sshd = None

    def remove(self) -> None:
        """Delete its files, once the commands that it still runs have seen that nobody reads them."""
        while self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)

    def freeze(self) -> None:
        """Stop it in the middle: what is connected stays so and hears nothing more."""
        assert self._sshd is not None
        self._sshd.send_signal(signal.SIGSTOP)
        for process in self._served():
            process.suspend()

    def thaw(self) -> None:
        """Let it go on."""
        assert self._sshd is not None
        self._sshd.send_signal(signal.SIGCONT)
        for process in self._served():
            process.resume()

    @property
    def num_connections(self) -> int:
        assert self._sshd is not None
        return sum(process.ppid() == self._sshd.pid for process in self._served())

    def _served(self) -> list[psutil.Process]:
        """The server's processes for its connections."""
        import psutil

        assert self._sshd is not None
        children = psutil.Process(self._sshd.pid).children(recursive=True)
        found = []
        for child in children:
            with suppress(psutil.NoSuchProcess):
                if "sshd" in child.name():
                    found.append(child)
        return found

    def __enter__(self) -> Machine:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def ssh_children() -> list[psutil.Process]:
    """The processes named ssh; another child may end while it is asked for its name."""
    import psutil

    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.name() == "ssh":
                found.append(child)
    return found


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o700)

"""A command of `esper-daemon` on another machine, through OpenSSH, in the background or at the terminal."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Collection, Sequence
from typing import IO

from esper_overwatch.protocol.codec.addresses import SshDestination
from esper_overwatch.protocol.errors import TunnelError

from .child_process import ChildProcess

DAEMON_VARIABLE = "ESPER_REMOTE_DAEMON"
"""The remote `esper-daemon`, where it is not on the PATH of a shell without a login."""
SSH_FAILED = 255
NOT_FOUND = 127
WRONG_USAGE = 2


def ssh_options(*options: str) -> list[str]:
    """`-o` before each."""
    return [word for option in options for word in ("-o", option)]


SSH_OPTIONS = ssh_options(
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ConnectTimeout=10",
    "LogLevel=ERROR",
    "RemoteCommand=none",
)
BATCH = ssh_options("BatchMode=yes")
"""Ask for nothing: a screen is in the way."""
_COMMAND_OPTIONS = [*SSH_OPTIONS, *ssh_options("ClearAllForwardings=yes")]
"""For a command: forwards of the user's configuration are another session's, and their ports may be taken."""


def remote_daemon(daemon: str | None) -> str:
    """The remote program: as given, else as the environment says."""
    return daemon or os.environ.get(DAEMON_VARIABLE) or "esper-daemon"


class SshProcess(ChildProcess):
    """`ssh ARGUMENTS`, running in the background.

    Raises:
        TunnelError: it cannot be run.
    """

    def __init__(self, arguments: Sequence[str], *, is_piped: bool = False) -> None:
        try:
            super().__init__(["ssh", *arguments], is_piped=is_piped)
        except OSError as error:
            raise _absent(error) from None


class RemoteCommand(SshProcess):
    """`esper-daemon WORDS` on another machine, running in the background.

    Args:
        destination: where.
        words: of the command.
        daemon: the remote program.
        batch: whether ssh may not ask for a passphrase.
        is_piped: its lines are taken while they come, by `take_lines`; else `output` has all of it.

    Raises:
        TunnelError: ssh cannot be run here.
    """

    def __init__(
        self,
        destination: SshDestination,
        words: Sequence[str],
        *,
        daemon: str,
        batch: bool,
        is_piped: bool = False,
    ) -> None:
        self._host, self._daemon, self._words = destination.login, daemon, words
        self._begun = b""
        options = [*_COMMAND_OPTIONS, *(BATCH if batch else [])]
        command = f"{daemon} {shlex.join(words)}"
        super().__init__([*options, *destination.arguments, command], is_piped=is_piped)

    @property
    def num_bytes(self) -> int:
        """Size of its output so far."""
        return os.fstat(self.file.fileno()).st_size

    @property
    def was_cut(self) -> bool:
        """True where ssh has failed, and not the command: it may do better the next time."""
        return self.code == SSH_FAILED

    def take_lines(self) -> list[bytes]:
        """Whole lines that have come since, up to about a MiB of them; never waits."""
        *lines, self._begun = (self._begun + self.take()).split(b"\n")
        return lines

    def output(self, *, good: Collection[int] = (0,)) -> IO[bytes]:
        """All that it has printed; the file is gone after `stop`. See `check` for arguments and errors."""
        self.check(good=good)
        self.file.seek(0)
        return self.file

    def check(self, *, good: Collection[int] = (0,)) -> None:
        """Look how it has ended.

        Args:
            good: exit codes with which it counts as done.

        Raises:
            TunnelError: it has failed; says why.
        """
        code, words = self.code, self.last_words
        if code == SSH_FAILED:
            raise TunnelError(f"{self._host} cannot be reached: {words or 'ssh gave no reason'}")
        if code == NOT_FOUND:
            raise not_on_path(self._host, self._daemon)
        if code not in good:
            command = f"{self._daemon} {self._words[0]}"
            hint = "; is the esper-overwatch there as new as this one?" if code == WRONG_USAGE else ""
            raise TunnelError(f"{self._host}: {command} ended with {code}: {words or 'no reason'}{hint}")


def run_remotely(destination: SshDestination, arguments: Sequence[str], *, daemon: str | None = None) -> int:
    """Run `esper-daemon ARGUMENTS` on that machine, with this process's input and output; its exit code.

    Raises:
        TunnelError: it cannot be reached, or has no such program.
    """
    daemon = remote_daemon(daemon)
    command = f"{daemon} {shlex.join(arguments)}"
    try:
        done = subprocess.run(["ssh", *_COMMAND_OPTIONS, *destination.arguments, command])
    except OSError as error:
        raise _absent(error) from None
    if done.returncode == SSH_FAILED:
        raise TunnelError(f"{destination.login} cannot be reached")
    if done.returncode == NOT_FOUND:
        raise not_on_path(destination.login, daemon)
    return done.returncode


def _absent(error: OSError) -> TunnelError:
    return TunnelError(f"ssh cannot be run here ({error.strerror}); install OpenSSH's client")


def not_on_path(host: str, daemon: str) -> TunnelError:
    """The error that says how to name the remote program."""
    return TunnelError(
        f"{host} has no {daemon} on its PATH; say where it is: "
        "--remote-command /path/to/.venv/bin/esper-daemon"
    )

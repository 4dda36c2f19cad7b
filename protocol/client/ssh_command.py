"""A command of `esper-daemon` on another machine, through OpenSSH, in the background or at the terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import cache
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
    "RequestTTY=no",
)
BATCH = ssh_options("BatchMode=yes")
"""Ask for nothing: a screen is in the way."""
UNASKED = ("Permission denied", "Host key verification failed")
"""Words of an ssh that would have had to ask for something, and was not let."""
BEGIN = b"esper-overwatch begins\n"
"""Printed there before a command: what comes before it is of the login shell's own files (`.bashrc`)."""
_SAY_BEGIN = f"echo {BEGIN.decode().strip()};"
_LOCAL_SECONDS = 2.0
"""Time for an ssh that talks to nobody on another machine."""
_COMMAND_OPTIONS = [*SSH_OPTIONS, *ssh_options("ClearAllForwardings=yes")]
"""For a command: forwards of the user's configuration are another session's, and their ports may be taken."""


def remote_daemon(daemon: str | None) -> str:
    """The remote program: as given, else as the environment says."""
    return daemon or os.environ.get(DAEMON_VARIABLE) or "esper-daemon"


@cache
def _configuration(ssh: str | None, host: tuple[str, ...]) -> Mapping[str, str]:
    """What ssh's configuration says of a host, by keyword; nothing where this ssh does not tell."""
    told = _run_locally([ssh or "ssh", "-G", *host])
    return dict(line.split(" ", 1) for line in told.splitlines() if " " in line)


def _configured(destination: SshDestination, keyword: str) -> str:
    found = _configuration(shutil.which("ssh"), tuple(destination.arguments))
    return found.get(keyword, "no")


def _run_locally(command: Sequence[str]) -> str:
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, timeout=_LOCAL_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def _sharing(destination: SshDestination) -> list[str]:
    """Options by which a connection that is open is shared, and none is opened for others (`ControlMaster`).

    Theirs would end with ours, and ours would wait for their end; but for one that stays by itself.
    """
    persists = _configured(destination, "controlpersist") != "no"
    return [] if persists else ssh_options("ControlMaster=no")


def forget_forwards(destination: SshDestination, forwards: Sequence[str]) -> None:
    """Have a shared connection end forwards that its next user would else be told are there already."""
    if _configured(destination, "controlpath") not in ("no", "none"):
        _run_locally(["ssh", "-O", "cancel", *forwards, *destination.arguments])


class SshProcess(ChildProcess):
    """`ssh OPTIONS HOST COMMAND`, running in the background.

    Raises:
        TunnelError: it cannot be run.
    """

    def __init__(
        self,
        destination: SshDestination,
        options: Sequence[str],
        command: str,
        *,
        is_piped: bool = False,
        holds_input: bool = False,
    ) -> None:
        words = ["ssh", *options, *_sharing(destination), *destination.arguments, command]
        try:
            super().__init__(words, is_piped=is_piped, holds_input=holds_input)
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
        self._destination, self._daemon, self._words = destination, daemon, words
        self._begun, self._has_begun = b"", False
        options = [*_COMMAND_OPTIONS, *(BATCH if batch else [])]
        command = f"{_SAY_BEGIN} {daemon} {shlex.join(words)}"
        super().__init__(destination, options, command, is_piped=is_piped)

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
        self._begun += self.take()
        if not self._has_begun:
            _, mark, rest = self._begun.partition(BEGIN)
            if not mark:
                return []
            self._has_begun, self._begun = True, rest
        *lines, self._begun = self._begun.split(b"\n")
        return lines

    def output(self, *, good: Collection[int] = (0,)) -> IO[bytes]:
        """All that it has printed; the file is gone after `stop`. See `check` for arguments and errors."""
        self.check(good=good)
        self.file.seek(0)
        _check_begun(self._destination, self._daemon, any(line.endswith(BEGIN) for line in self.file))
        return self.file

    def check(self, *, good: Collection[int] = (0,)) -> None:
        """Look how it has ended.

        Args:
            good: exit codes with which it counts as done.

        Raises:
            TunnelError: it has failed; says why.
        """
        code, words, host = self.code, self.last_words, self._destination.login
        _check_reached(self._destination, self._daemon, code, words)
        if code not in good:
            command = f"{self._daemon} {self._words[0]}"
            hint = "; is the esper-overwatch there as new as this one?" if code == WRONG_USAGE else ""
            raise TunnelError(f"{host}: {command} ended with {code}: {words or 'no reason'}{hint}")


def run_remotely(destination: SshDestination, arguments: Sequence[str], *, daemon: str | None = None) -> int:
    """Run `esper-daemon ARGUMENTS` on that machine, with this process's input and output; its exit code.

    Raises:
        TunnelError: it cannot be reached, or has no such program.
        BrokenPipeError: nobody reads this process's output any more.
    """
    daemon = remote_daemon(daemon)
    options = [*_COMMAND_OPTIONS, *_sharing(destination)]
    with tempfile.NamedTemporaryFile("r", errors="replace") as log:
        command = f"{_SAY_BEGIN} {daemon} {shlex.join(arguments)}"
        words = ["ssh", *options, "-E", log.name, *destination.arguments, command]
        try:
            ssh = subprocess.Popen(words, stdout=subprocess.PIPE)
        except OSError as error:
            raise _absent(error) from None
        with ssh:
            assert ssh.stdout is not None
            try:
                has_begun = any(line.endswith(BEGIN) for line in ssh.stdout)
                for piece in iter(ssh.stdout.read1, b""):  # type: ignore[attr-defined]
                    sys.stdout.buffer.write(piece)
                    sys.stdout.flush()
            except BaseException:
                ssh.terminate()
                raise
        said = [line for line in log.read().splitlines() if line.strip()]
    _check_reached(destination, daemon, ssh.returncode, said[-1] if said else "")
    _check_begun(destination, daemon, has_begun)
    return ssh.returncode


def _absent(error: OSError) -> TunnelError:
    return TunnelError(f"ssh cannot be run here ({error.strerror}); install OpenSSH's client")


def _by_hand(destination: SshDestination) -> str:
    """What to type to see all that ssh has to say, and to answer what it asks."""
    return shlex.join(["ssh", *destination.arguments])


def _check_begun(destination: SshDestination, daemon: str, has_begun: bool) -> None:
    if not has_begun:
        why = f"the shell there ends before it begins {daemon}; try: {_by_hand(destination)}"
        raise TunnelError(f"{destination.login}: {why}")


def _check_reached(destination: SshDestination, daemon: str, code: int | None, words: str) -> None:
    if code == SSH_FAILED:
        reason = words.strip().rstrip(".") or "the connection broke"
        raise TunnelError(f"{destination.login} cannot be reached: {reason}; try: {_by_hand(destination)}")
    if code == NOT_FOUND:
        raise TunnelError(
            f"{destination.login} has no {daemon} on its PATH; say where it is: "
            "--remote-command /path/to/.venv/bin/esper-daemon"
        )

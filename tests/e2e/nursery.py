"""Python in processes forked from one where torch is loaded: two seconds of a core less for each.

What they run are Python's words, `-m esper_overwatch.trainer ...` or `-c CODE ...`. As a program it serves
one socket: a message holds words, environment and folder of a process, and carries its three standard files
and a pipe, on which its id and then its exit code are told.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
MESSAGE_BYTES = 1 << 20
NUMBER_BYTES = 4
LOADED = ("PYTHON", "LD_", "OMP_", "MKL_", "TORCH", "CUDA", "MALLOC")
"""Beginnings of variables that are read while Python and torch are loaded."""


class ForkedProcess:
    """Of a forked process what `subprocess.Popen` is of another."""

    def __init__(self, words: Sequence[str], status: int) -> None:
        self.args = words
        self.returncode: int | None = None
        self._status = open(status, "rb", buffering=0)  # noqa: SIM115
        self.pid = self._number()

    def _number(self) -> int:
        told = self._status.read(NUMBER_BYTES)
        assert told, "the process that forks has ended"
        return int.from_bytes(told, "big", signed=True)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = self._number()
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks; it ends with this one, and all that it has forked with it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._loaded = loaded(environment)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        quiet = subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT,
                env=dict(environment),
                stdin=quiet,
                stdout=quiet,
                pass_fds=[theirs.fileno()],
            )

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Whether a process of this environment would have loaded the same."""
        return loaded(environment) == self._loaded

    def start(self, words: Sequence[str], environment: Mapping[str, str], *files: IO[Any]) -> ForkedProcess:
        """Start a process with these standard files: input, output, error."""
        message = json.dumps([[*words], dict(environment), os.getcwd()]).encode()
        status, theirs = os.pipe()
        numbers = [file.fileno() for file in files]
        socket.send_fds(self._channel, [message], [*numbers, theirs])
        os.close(theirs)
        return ForkedProcess(words, status)


def loaded(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(LOADED)}


@functools.cache
def _nursery() -> Nursery:
    return Nursery({**os.environ, "OMP_NUM_THREADS": "1"})


def nursery(environment: Mapping[str, str]) -> Nursery | None:
    """That of this process; None outside Linux, and where the environment needs Python to load otherwise."""
    return found if sys.platform == "linux" and (found := _nursery()).fits(environment) else None


def run_python(
    words: Sequence[str], environment: Mapping[str, str], timeout: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words to its end, in a forked process where there can be one."""
    if (forks := nursery(environment)) is None:
        command, quiet = [sys.executable, *words], subprocess.DEVNULL
        return subprocess.run(
            command, env=environment, stdin=quiet, capture_output=True, text=True, timeout=timeout
        )
    made = tempfile.TemporaryFile
    with open(os.devnull, "rb") as nothing, made() as out, made() as err:
        process = forks.start(words, environment, nothing, out, err)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        told = []
        for file in (out, err):
            file.seek(0)
            told.append(file.read().decode())
    return subprocess.CompletedProcess(words, code, *told)


def serve(channel: socket.socket) -> list[str] | None:
    """Fork a process for each message: its words in each, None in this one at the end."""
    woken, wakes = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        for pid in [
            pid for pid in children if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ]:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            tell(status := children.pop(pid), code)
            os.close(status)
        if channel in ready:
            message, files, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 4)
            if not message:
                break
            if (pid := os.fork()) == 0:
                words, environment, folder = json.loads(message)
                become(environment, folder, files[:3])
                return list(words)
            children[pid] = files.pop()
            tell(children[pid], pid)
            for file in files:
                os.close(file)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    return None


def tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody is interested any more
        os.write(status, number.to_bytes(NUMBER_BYTES, "big", signed=True))


def become(environment: dict[str, str], folder: str, files: list[int]) -> None:
    """Have what a process has that begins with these."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)


def execute(words: list[str]) -> None:
    """Do what Python does with these words."""
    from esper_overwatch.trainer import __main__ as esper_daemon

    sys.orig_argv = [sys.executable, *words]
    option, what, *arguments = words
    if option == "-c":
        sys.argv = ["-c", *arguments]
        exec(what, {"__name__": "__main__"})
    else:
        sys.argv = [esper_daemon.__file__, *arguments]
        esper_daemon.main()


def main() -> None:
    """Load what a start loads, serve, and execute in each forked process what it is for."""
    exit_codes: list[int] = []
    atexit.register(leave, exit_codes)  # the first is the last to be called
    import torch.profiler  # noqa: F401

    import esper_overwatch.trainer.cli.main
    import esper_overwatch.trainer.daemon.daemon  # noqa: F401

    gc.collect()
    gc.freeze()
    words = serve(socket.socket(fileno=int(sys.argv[1])))
    if words is not None:
        exit_codes.append(1)  # that of an exception which is not caught
        try:
            execute(words)
            exit_codes.append(0)
        except SystemExit as ended:
            exit_codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
            raise


def leave(exit_codes: list[int]) -> None:
    """Spare a forked process the tenths of a second in which the interpreter takes torch apart."""
    if exit_codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_codes[-1])


if __name__ == "__main__":
    main()

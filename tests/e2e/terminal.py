"""A terminal for tests: a real process on a real pseudo-terminal, its screen read by pyte."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable

import pyte

MAX_OUTPUT = 1 << 18


class Terminal:
    """Runs a program on a pty of the given size.

    Args:
        command: program and arguments.
        environment: its environment; TERM is set here.
        columns: width.
        lines: height.
        controls: it is the process's controlling terminal, where Ctrl-C interrupts and ssh asks.
    """

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        *,
        columns: int = 80,
        lines: int = 24,
        controls: bool = False,
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.bytes = 0
        self.output = b""
        """The newest bytes that came, for what no screen shows."""
        self.on_output: Callable[[bytes], object] = lambda _: None
        """Told of every piece that the program writes."""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        # A size in the environment would win over the pty's own.
        inherited = {k: v for k, v in environment.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**inherited, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"},
            start_new_session=True,
            close_fds=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controls else None,
        )
        os.close(slave)

    def read(self, seconds: float = 0.1) -> None:
        """Feed what comes within `seconds` to the screen."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            data = self.receive(left)
            if not data:
                return
            self.show(data)

    def receive(self, seconds: float) -> bytes:
        """The next piece that comes within `seconds`, or nothing; the screen learns of it by `show`."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return b""
        try:
            return os.read(self._master, 65_536)
        except OSError:
            return b""

    def show(self, data: bytes) -> None:
        """Have the screen show what was received."""
        self.bytes += len(data)
        self.output = (self.output + data)[-MAX_OUTPUT:]
        self.on_output(data)
        self._stream.feed(data)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, what: str | Callable[[str], bool], *, seconds: float = 300.0) -> str:
        """Read until the screen shows it; fails with the screen's text."""
        shows = (lambda text: what in text) if isinstance(what, str) else what
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            has_ended = self.process.poll() is not None
            piece = self.receive(0.1)
            self.show(piece)  # each by itself, so that nothing passes unseen that is shown for a moment only
            if shows(self.text):
                return self.text
            if has_ended and not piece:
                break
        raise AssertionError(f"never shown: {what}\n{self.text}\n(exit {self.process.poll()})")

    @property
    def echoes(self) -> bool:
        """Whether the kernel writes what is typed, as a shell expects it."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def resize(self, columns: int, lines: int) -> None:
        """Another size; the program is told by SIGWINCH."""
        self.screen.resize(lines, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def hang_up(self) -> None:
        """The terminal goes away, as when a connection breaks."""
        os.close(self._master)
        self._master = -1

    def kill(self) -> None:
        """kill -9, as a lost connection would not even be."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

"""The real program on a pty whose reader takes 2 KiB a second: a key does not wait behind old frames."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from . import journal

BYTES_PER_SECOND = 2048
STEP_BYTES = 128
QUESTION, ANSWER = b"\x1b[?2026$p", b"\x1b[?2026;2$y"
"""What a terminal is asked after a frame, and what terminals that know synchronised output answer."""


class SlowTerminal:
    """Reads so many bytes a second, and answers what it has read."""

    def __init__(self, command: list[str], *, columns: int, lines: int) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.bytes = 0
        self._tail = b""

    def step(self) -> None:
        """Take as many bytes as come through in a sixteenth of a second."""
        time.sleep(STEP_BYTES / BYTES_PER_SECOND)
        if not select.select([self._master], [], [], 0)[0]:
            return
        data = os.read(self._master, STEP_BYTES)
        self.bytes += len(data)
        seen = self._tail + data
        for _ in range(seen.count(QUESTION)):
            os.write(self._master, ANSWER)
        self._tail = seen[-len(QUESTION) + 1 :] if QUESTION not in seen[-len(QUESTION) :] else b""
        self._stream.feed(data)

    def until(self, shows: Callable[[str], bool], *, steps: int = 2000) -> int:
        """Read until the screen shows it; returns how many bytes that took."""
        before = self.bytes
        for _ in range(steps):
            if shows("\n".join(self.screen.display)):
                return self.bytes - before
            self.step()
        raise AssertionError("never shown:\n" + "\n".join(self.screen.display))

    def settle(self, *, pauses: int = 8) -> None:
        """Read until nothing came for so many steps: what was sent before the first answer had no limit."""
        while pauses:
            before = self.bytes
            self.step()
            pauses -= self.bytes == before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[SlowTerminal]:
    path = journal.write(tmp_path / "events.jsonl", rounds=40)
    command = [
        sys.executable,
        "-m",
        "esper_overwatch.overwatch_tui",
        "--replay",
        str(path),
        "--speed",
        "1",
        "--refresh",
        "4",
    ]
    made = SlowTerminal(command, columns=120, lines=40)
    yield made
    made.close()


@pytest.mark.slow
def test_view_switch_needs_few_bytes_on_a_slow_link(terminal: SlowTerminal) -> None:
    terminal.until(lambda text: "RETURN AND ACCURACY" in text and re.search(r"\n +15 ok", text) is not None)
    terminal.settle()
    took = []
    for key, first_row in (("4", "GERM FOSS"), ("1", " 15 "), ("3", "entropy"), ("5", "SEED")):
        os.write(terminal._master, key.encode())
        switched = terminal.until(lambda text, key=key: f"[{key} " in text)
        row = terminal.until(lambda text, row=first_row: row in text)
        took.append((switched, switched + row))
    print(took)
    assert statistics.median(switched for switched, _ in took) <= BYTES_PER_SECOND, took
    assert max(switched for switched, _ in took) <= 2 * BYTES_PER_SECOND, took
    assert statistics.median(rows for _, rows in took) <= 5 * BYTES_PER_SECOND, took
    # A log of twelve new lines a second is followed to its end: what stood there is scrolled, not sent again.
    newest = terminal.until(lambda text: "SEED" in text.partition("─ COMMANDS")[0].rstrip().split("\n")[-1])
    assert newest <= 6 * BYTES_PER_SECOND

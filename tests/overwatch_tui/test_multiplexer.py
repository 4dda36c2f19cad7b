"""What tmux shows of the cells that are sent and of the lines that it is told to move itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from tests.protocol.harness import until

from . import journal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
COLUMNS, LINES = 120, 40
DELETE, INSERT, ERASE, REGION = (rb"\x1b\[\d*P", rb"\x1b\[\d*@", rb"\x1b\[(\d+X|K)", rb"\x1b\[\d+;\d+r")
"""DCH, ICH, ECH or EL, DECSTBM."""
PATIENCE = 120.0
FOREIGN = ("TMUX", "COLORTERM", "COLUMNS", "LINES")
"""Variables that tell of the terminal in which the tests run."""
Cell = tuple[str, ...]


class Tmux:
    """A program in a tmux of its own, whose every byte to tmux is kept.

    Args:
        folder: for the socket and the bytes.
        command: begins once the bytes are kept.
    """

    def __init__(self, folder: Path, command: str) -> None:
        self._socket, self._output = folder / "tmux", folder / "output"
        self._output.touch()
        size = ["-x", str(COLUMNS), "-y", str(LINES)]
        self.run("-f", os.devnull, "new-session", "-d", *size, f"read begin; {command}")
        self.run("set-option", "-g", "status", "off")
        self.run("resize-window", *size)
        self.run("pipe-pane", "-o", f"cat >> '{self._output}'")
        self.press("Enter")

    def run(self, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        command = ["tmux", "-u", "-S", str(self._socket), *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    def press(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    @property
    def output(self) -> bytes:
        """All that the program has written."""
        return self._output.read_bytes()

    def sent(self) -> pyte.Screen:
        """The bytes on an emulator that this repository's other tests believe."""
        screen = pyte.Screen(COLUMNS, LINES)
        pyte.ByteStream(screen).feed(self.output)
        return screen

    def shown(self) -> pyte.Screen:
        """What tmux shows."""
        screen = pyte.Screen(COLUMNS, LINES)
        lines = self.run("capture-pane", "-p", "-e", "-N").removesuffix("\n").split("\n")
        pyte.Stream(screen).feed("\r\n".join(lines))
        return screen

    def wait_for(self, *texts: str) -> None:
        """Until the screen has them, and tmux shows every cell as it was sent."""
        try:
            until(lambda: all(text in "\n".join(self.shown().display) for text in texts), PATIENCE)
            until(lambda: cells(self.shown()) == cells(self.sent()), PATIENCE)
        except AssertionError:
            sent, shown = ("\n".join(screen.display) for screen in (self.sent(), self.shown()))
            pytest.fail(f"not shown as it was sent: {texts}\n{shown}\nwas sent as\n{sent}")


def cells(screen: pyte.Screen) -> list[list[Cell]]:
    """All that can be seen: of a blank its background alone."""
    found: list[list[Cell]] = []
    for y in range(LINES):
        row = [screen.buffer[y][x] for x in range(COLUMNS)]
        found.append(
            [
                (" ", each.bg)
                if each.data == " " and not (each.underscore or each.reverse)
                else (each.data, each.fg, each.bg, *map(str, (each.bold, each.underscore, each.reverse)))
                for each in row
            ]
        )
    return found


@pytest.fixture
def tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tmux]:
    for name in ("ESPER_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    path = journal.write(tmp_path / "events.jsonl", rounds=3, envs=8)
    opened = Tmux(
        tmp_path, f"exec '{sys.executable}' -m esper_overwatch.overwatch_tui --replay '{path}' --speed 0.01"
    )
    yield opened
    opened.run("kill-server")


def test_tmux_shows_what_differs_as_it_was_sent(tmux: Tmux) -> None:
    tmux.wait_for("[1 Run]")
    tmux.press("Space")
    tmux.wait_for("FROZEN")
    tmux.press(":", "go_to", "Space", "r2", "Enter")
    tmux.wait_for("round 2/", "epoch 1/")
    tmux.press("Enter", "Enter")
    tmux.wait_for("CHARTS")
    for epoch in (2, 3, 4):
        tmux.press(".")
        tmux.wait_for(f"epoch {epoch}/")
    tmux.press(":", "overlay", "Enter")
    tmux.wait_for("over 8")
    tmux.press(".")
    tmux.wait_for("epoch 5/")
    tmux.press("1", "4")
    tmux.wait_for("[4 Seeds]")
    tmux.press(",")
    tmux.wait_for("[4 Seeds]", "epoch 4/")
    tmux.press("5")
    tmux.wait_for("[5 Machine]")
    tmux.press(".")
    tmux.wait_for("[5 Machine]", "epoch 5/")
    assert all(re.search(sequence, tmux.output) for sequence in (DELETE, INSERT, ERASE)), (
        "what is tested here"
    )

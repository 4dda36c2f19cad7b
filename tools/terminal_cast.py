"""Record the terminal at work as an asciicast: `python -m tools.terminal_cast`.

`esper-tui` plays the recorded run of the tests on a pseudo-terminal while keys are pressed; what it writes
goes with its times into docs/img/terminal.cast, for any player of asciicast v2.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from tests.e2e.terminal import Terminal
from tests.overwatch_tui.record import NAME, unpack

PAGE = Path(__file__).parents[1] / "docs" / "img" / "terminal.cast"
COLUMNS, LINES = 100, 30
SPEED = "2"
SECONDS = 30.0
KEYS: tuple[tuple[float, str], ...] = (
    (5.0, "3"),
    (8.0, "4"),
    (11.0, "5"),
    (13.5, "6"),
    (16.0, "1"),
    (17.0, "j"),
    (17.5, "j"),
    (18.5, "\r"),
    (21.0, "\x1b"),
    (22.0, " "),
    (23.0, ","),
    (23.7, ","),
    (24.4, ","),
    (25.5, "0"),
    (27.0, "?"),
    (29.0, "\x1b"),
)
"""(seconds after the first screen, what is typed)."""


def record(folder: Path, seconds: float = SECONDS) -> str:
    """The recording, a header and a line for each piece of output.

    Args:
        folder: for the run's folder.
        seconds: so long, from the first screen.
    """
    path = folder / NAME / EVENTS_FILE
    path.parent.mkdir()
    unpack(path)
    command = [sys.executable, "-m", "esper_overwatch.overwatch_tui", "--replay", str(path), "--speed", SPEED]
    environment = {**os.environ, "ESPER_HOME": str(folder), "TZ": "UTC"}
    terminal = Terminal(command, environment, columns=COLUMNS, lines=LINES)
    pieces: list[tuple[float, bytes]] = []
    terminal.on_output = lambda data: pieces.append((time.monotonic(), data))
    try:
        terminal.wait_for("REPLAY")
        begin = time.monotonic()
        for at, typed in (*KEYS, (seconds, "q")):
            if at > seconds:
                continue
            while time.monotonic() < begin + at:
                terminal.read(0.05)
            terminal.press(typed)
        terminal.process.wait(60)
    finally:
        terminal.close()
    return asciicast([(max(0.0, at - begin), data) for at, data in pieces])


def asciicast(pieces: list[tuple[float, bytes]]) -> str:
    """Asciicast v2 of (seconds, output)."""
    header = {"version": 2, "width": COLUMNS, "height": LINES, "title": f"esper-tui {NAME}"}
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    rows = ([round(at, 3), "o", decode(data)] for at, data in pieces)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in (header, *rows))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="esper-") as folder:
        PAGE.write_text(record(Path(folder)), encoding="utf-8")
    print(f"wrote {PAGE.name}, {PAGE.stat().st_size} bytes")


if __name__ == "__main__":
    main()

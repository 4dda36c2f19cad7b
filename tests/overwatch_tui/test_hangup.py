"""However a terminal ends, what it fetched does not stay behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.terminal import Terminal

from . import journal

_PROGRAM = """
import io, signal, sys
from pathlib import Path
from esper_overwatch.overwatch_tui.cli import _prepare_terminal
from esper_overwatch.overwatch_tui.source.mirror import WireMirror
from esper_overwatch.overwatch_tui.source.recording import FetchFeed

class Fetched:
    ended, num_bytes = True, 0
    def output(self, good):
        return io.BytesIO(Path(sys.argv[1]).read_bytes())
    def stop(self):
        pass

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
_prepare_terminal()
recording = FetchFeed(Fetched(), "digits-7f3a", "box", "STOPPED").take_recording()
past = WireMirror(lambda *_: None)
past.append(next(iter(recording.drain()[1:])))
if "close" in sys.argv:
    recording.close()
    past.close()
print("ready", flush=True)
while True:
    signal.pause()
"""


def left_in(folder: Path) -> list[str]:
    return sorted(path.name.rpartition("-")[0] for path in folder.iterdir())


@pytest.mark.parametrize("ending", ["SIGTERM", "SIGHUP", "hang-up", "close"])
def test_fetched_recordings_are_removed_at_every_end(tmp_path: Path, ending: str) -> None:
    path = journal.write(tmp_path / "events.jsonl", rounds=1)
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-c", _PROGRAM, str(path), ending]
    terminal = Terminal(command, {**os.environ, "TMPDIR": str(folder)})
    try:
        # The whole line: where the terminal goes away in the midst of it, the program ends by its own error.
        terminal.wait_for(lambda _: b"ready\r\n" in terminal.output)
        assert left_in(folder) == ([] if ending == "close" else ["esper-past", "esper-recording"])
        if ending == "hang-up":
            terminal.hang_up()
            assert terminal.process.wait(300) == 129
        else:
            number = signal.SIGTERM if ending == "close" else signal.Signals[ending]
            terminal.process.send_signal(number)
            assert terminal.process.wait(300) == -number, "a shell sees how it ended"
        assert left_in(folder) == []
    finally:
        terminal.close()

"""The first frame on a real pseudo-terminal: before Textual is there, and where something goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.terminal import Terminal

from . import journal

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
FIRST_WORDS = b"opening the recording"
BROKEN = "raise ImportError('there is no such library')\n"


@contextmanager
def started(folder: Path, *arguments: str, **environment: str) -> Iterator[Terminal]:
    exported = [each for each in arguments if "=" in each]  # a Terminal itself takes COLUMNS away
    arguments = tuple(each for each in arguments if each not in exported)
    command = ["env", *exported, sys.executable, "-m", "esper_overwatch.overwatch_tui", *arguments]
    inherited = {**os.environ, "ESPER_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    terminal = Terminal(command, {**inherited, **environment})
    try:
        yield terminal
    finally:
        terminal.close()


def read_all(terminal: Terminal) -> bytes:
    """What a program that ends has written."""
    assert terminal.process.wait(300) is not None
    terminal.read(0.2)
    return terminal.output


def test_command_line_imports_no_library_of_the_screen() -> None:
    program = "import sys, esper_overwatch.overwatch_tui.cli\n"
    program += "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"textual", "zmq", "msgspec", "asyncio"} & set(done.stdout.split())


def test_first_frame_is_taken_over_without_blanking(tmp_path: Path) -> None:
    path = journal.write(tmp_path / "events.jsonl", rounds=2)
    with started(tmp_path, "--replay", str(path), "--speed", "1000") as tui:
        tui.wait_for(lambda _: FIRST_WORDS in tui.output)
        assert FIRST_WORDS in tui.output.partition(b"\x1b[?2004h")[0], "Textual had not begun"
        assert not tui.echoes
        tui.press("3")
        tui.wait_for("[3 Policy]")
        tui.press("q")
        output = read_all(tui)
        assert (output.count(ENTER), output.count(LEAVE)) == (1, 1)
        assert tui.echoes
        assert tui.process.returncode == 0


def test_first_frame_keeps_to_the_columns_that_are_exported(tmp_path: Path) -> None:
    path = journal.write(tmp_path / f"{'x' * 60}.jsonl", rounds=1)
    with started(tmp_path, "COLUMNS=40", "--replay", str(path)) as tui:
        tui.wait_for("opening the recording")
        tui.read(0.1)
        first = tui.output.partition(b"\x1b[2J\x1b[H")[2].partition(b"\x1b")[0]
        assert len(first) == 40


def test_terminal_is_restored_where_an_import_fails(tmp_path: Path) -> None:
    path = journal.write(tmp_path / "events.jsonl", rounds=1)
    (tmp_path / "textual.py").write_text(BROKEN)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with started(tmp_path, "--replay", str(path), PYTHONPATH=paths) as tui:
        output = read_all(tui)
        assert output.startswith(ENTER)
        assert b"there is no such library" in output.partition(LEAVE)[2]
        assert tui.echoes
        assert tui.process.returncode != 0


def test_error_is_said_after_the_first_frame(tmp_path: Path) -> None:
    with started(tmp_path, "--replay", "nobody") as tui:
        output = read_all(tui)
        assert b"no run nobody" in output.partition(LEAVE)[2]
        assert tui.echoes
        assert tui.process.returncode == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--speed", "x"), b"Usage"), (("--help",), b"Watch a run"), (("--view", "x"), b"'incidents'")],
)
def test_wrong_usage_and_help_take_no_screen(
    tmp_path: Path, arguments: tuple[str, ...], words: bytes
) -> None:
    with started(tmp_path, *arguments) as tui:
        output = read_all(tui)
        assert words in output
        assert ENTER not in output


def test_wrong_setting_takes_no_screen(tmp_path: Path) -> None:
    with started(tmp_path, ESPER_TUI_THEME="x") as tui:
        output = read_all(tui)
        assert b"ESPER_TUI_THEME" in output
        assert ENTER not in output
        assert tui.process.returncode == 2


def test_ctrl_c_during_the_first_frame_restores_the_terminal(tmp_path: Path) -> None:
    path = journal.write(tmp_path / "events.jsonl", rounds=1)
    slow = "import time\nwhile True:\n    time.sleep(0.05)\n"
    (tmp_path / "textual.py").write_text(slow)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with started(tmp_path, "--replay", str(path), PYTHONPATH=paths) as tui:
        tui.wait_for("opening the recording")
        tui.process.send_signal(2)
        assert LEAVE in read_all(tui)
        assert tui.echoes

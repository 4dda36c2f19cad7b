"""The real program on a real pseudo-terminal, playing a recorded run; pyte reads the screen."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.terminal import Terminal

from . import journal


@contextmanager
def playing(folder: Path, *arguments: str, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    path = journal.write(folder / "events.jsonl", rounds=4)
    command = [sys.executable, "-m", "esper_overwatch.overwatch_tui", "--replay", str(path), *arguments]
    terminal = Terminal(command, {**os.environ, "ESPER_HOME": str(folder)}, columns=columns, lines=lines)
    try:
        yield terminal
    finally:
        terminal.close()


def test_replay_takes_keys_and_restores_the_terminal(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "1") as tui:
        text = tui.wait_for("REPLAY")
        tui.wait_for("r1")
        tui.press("3")
        tui.wait_for("[3 Policy]")
        tui.press("?")
        tui.wait_for("search _")
        tui.press("\x1b")
        tui.wait_for(lambda text: "search _" not in text and "[3 Policy]" in text)
        tui.press("1")
        text = tui.wait_for(lambda text: "[1 Run]" in text and " 15 " in text)
        assert "digits-7f3a" in text
        assert all(f" {env:02d} " in text for env in range(16))
        tui.press("q")
        assert tui.process.wait(300) == 0
        tui.read(0.2)
        assert "Traceback" not in tui.text


def test_no_escape_of_a_log_line_reaches_the_terminal(tmp_path: Path) -> None:
    from esper_overwatch.protocol.messages.events import LogLine

    run = journal.Run(rounds=1)
    run.make()
    run.emit(LogLine(level="ERROR", logger="x", message="before \x1b[2J\x1b]0;owned\x07 after"))
    path = tmp_path / "evil.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in run.lines))
    command = [
        sys.executable,
        "-m",
        "overwatch_tui",
        "--replay",
        str(path),
        "--speed",
        "100",
        "--view",
        "log",
    ]
    terminal = Terminal(command, {**os.environ, "ESPER_HOME": str(tmp_path)})
    try:
        text = terminal.wait_for("after")
        assert "before ?[2J?]0;owned? after" in text
        assert terminal.screen.title != "owned"
    finally:
        terminal.close()


def test_no_color_sends_no_colour(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "50", "--no-color") as tui:
        tui.wait_for("[1 Run]")
        tui.read(0.5)
        cells = [cell for row in tui.screen.buffer.values() for cell in row.values()]
        assert {cell.fg for cell in cells} <= {"default"}
        assert {cell.bg for cell in cells} <= {"default"}
        assert any(cell.reverse or cell.bold for cell in cells), "states are seen without colour"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_gives_the_terminal_back(tmp_path: Path, number: signal.Signals) -> None:
    former = signal.signal(number, signal.SIG_DFL)  # under nohup it would be ignored
    with playing(tmp_path, "--speed", "1") as tui:
        signal.signal(number, former)
        tui.wait_for("[1 Run]")
        assert not tui.echoes
        tui.process.send_signal(number)
        assert tui.process.wait(300) == -number
        tui.wait_for(lambda _: tui.output.endswith(b"\x1b[?1049l\x1b[?7h\x1b[?25h"))
        assert tui.echoes
        set_again = {int(each) for each in re.findall(rb"\x1b\[\?(\d+)h", tui.output)} - {7, 25}
        assert all(f"\x1b[?{mode}l".encode() in tui.output[-200:] for mode in set_again), set_again


@pytest.mark.slow
def test_slow_terminal_is_sent_fewer_frames(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "20", "--refresh", "4", columns=120, lines=40) as tui:
        tui.wait_for("REPLAY")
        end = time.monotonic() + 300
        while "slow link" not in tui.text:
            assert time.monotonic() < end, tui.text
            time.sleep(2)  # nobody reads: what is written waits
            tui.read(0.2)
        tui.wait_for("2 Hz")
        tui.press("q")
        assert tui.process.wait(300) == 0


def test_the_screen_after_fg_is_whole(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "1000") as tui:
        tui.wait_for("ENDED")
        tui.press("\x1a")
        stopped = psutil.Process(tui.process.pid)
        _until_stopped(tui, stopped)
        tui.screen.erase_in_display(2)  # a shell has written over it
        tui.process.send_signal(signal.SIGCONT)
        # The header of the table has not changed, and is there all the same.
        whole = ["ENDED", "[1 Run]", "RETURN", "q quit", *(f" {env:02d} " for env in range(16))]
        tui.wait_for(lambda text: all(part in text for part in whole))


def _until_stopped(tui: Terminal, process: psutil.Process) -> None:
    end = time.monotonic() + 300
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < end, "^Z does not stop the terminal"
        tui.read(0.05)
    tui.read(0.2)


def test_ctrl_l_draws_the_screen_anew(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "1000") as tui:
        tui.wait_for("ENDED")
        tui.read(0.5)
        tui.screen.erase_in_display(2)
        tui.press("\x0c")
        tui.wait_for(lambda text: "[1 Run]" in text and "RETURN" in text and "q quit" in text)


@pytest.mark.slow
def test_a_storm_of_sizes_ends_in_a_whole_screen(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "1000") as tui:
        tui.wait_for("ENDED")
        for columns, lines in [(200, 60), (81, 25), (20, 5), (120, 40), (79, 23), (1, 1)] * 10:
            tui.resize(columns, lines)
            tui.read(0.001)
        tui.resize(120, 40)
        rows = [f" {env:02d} " for env in range(16)]
        text = tui.wait_for(
            lambda text: (
                "RETURN AND ACCURACY" in text
                and all(row in text for row in rows)
                and "q quit" in text.split("\n")[-1]
            )
        )
        assert "needs 80x24" not in text
        tui.press("3")
        tui.wait_for("[3 Policy]")


def test_a_size_that_changed_and_is_back_is_drawn_anew(tmp_path: Path) -> None:
    whole = ["ENDED", "[1 Run]", "RETURN", "q quit", *(f" {env:02d} " for env in range(16))]
    with playing(tmp_path, "--speed", "1000") as tui:
        tui.wait_for("ENDED")
        tui.read(0.5)
        tui.screen.resize(1, 1)  # which cuts all that was shown; the program looks only when the size is back
        tui.resize(80, 24)
        tui.wait_for(lambda text: all(part in text for part in whole))


def test_a_size_that_changed_while_suspended_is_taken(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "1000") as tui:
        tui.wait_for("ENDED")
        tui.press("\x1a")
        _until_stopped(tui, psutil.Process(tui.process.pid))
        tui.screen.reset()
        tui.resize(120, 40)
        tui.process.send_signal(signal.SIGCONT)
        tui.wait_for(lambda text: "RETURN AND ACCURACY" in text and "q quit" in text.split("\n")[-1])


def test_pasted_text_presses_no_keys(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "1000") as tui:
        tui.wait_for("ENDED")
        tui.press("\x1b[200~3q\rTy\x1b[201~")
        tui.press("5")
        text = tui.wait_for("[5 Machine]")
        assert "y/N" not in text
        assert tui.process.poll() is None


def test_a_hang_up_ends_a_recording(tmp_path: Path) -> None:
    with playing(tmp_path, "--speed", "1000") as tui:
        tui.wait_for("ENDED")
        tui.hang_up()
        assert tui.process.wait(300) == 129

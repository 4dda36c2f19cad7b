"""The cost of the terminal: `python -m benchmarks.tui`.

A real `esper-tui` on a pseudo-terminal of 120x40 follows a real server that publishes a run of 16 envs (about
25 events a second, with seeds that come and go) at one frame a second. Measured after a warm-up: bytes
written to the terminal and CPU time of the process. Also reported: seconds until the first frame, the time
from a key to its frame, and the resident memory.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from protocol.codec.json_lines import decode_line
from protocol.runs import RunFolder
from protocol.server.server import Server
from tests.e2e.terminal import Terminal
from tests.overwatch_tui import journal

from .report import finish

COLUMNS, LINES = 120, 40
ENVS = 16
WARM_UP_S = 12.0
MEASURED_S = 40.0
KEYS = 8


def publish(server: Server, stop: threading.Event) -> None:
    """Emit the journal's events at the journal's pace until `stop` is set."""
    begin, first = time.monotonic(), None
    for line in journal.endless(envs=ENVS):
        event = decode_line(line)
        first = event.ts if first is None else first
        wait = begin + (event.ts - first) / 1e6 - time.monotonic()
        if stop.wait(max(0.0, wait)):
            return
        server.emitter.set_clock(round=event.ctx.round, epoch=event.ctx.epoch, level=event.ctx.level)
        server.emitter.emit(event.data, env=event.ctx.env)
        server.beat(event.ctx.round, event.ctx.epoch)


def watch(environment: dict[str, str]) -> dict[str, float]:
    """Start the terminal, warm it up, measure."""
    began = time.monotonic()
    command = [sys.executable, "-m", "overwatch_tui", "--refresh", "1"]
    terminal = Terminal(command, environment, columns=COLUMNS, lines=LINES)
    try:
        terminal.wait_for("LIVE")
        first_paint = time.monotonic() - began
        process = psutil.Process(terminal.process.pid)
        follow(terminal, WARM_UP_S)
        bytes_before, cpu_before, wall = terminal.bytes, cpu(process), time.monotonic()
        follow(terminal, MEASURED_S)
        seconds = time.monotonic() - wall
        figures = {
            "kib_per_s": (terminal.bytes - bytes_before) / 1024 / seconds,
            "cpu_percent": 100 * (cpu(process) - cpu_before) / seconds,
            "first_paint_s": first_paint,
            "key_to_frame_ms": statistics.median(key(terminal, i) for i in range(KEYS)),
            "rss_mib": process.memory_info().rss / 2**20,
        }
        terminal.press("q")
        terminal.process.wait(20)
        return figures
    finally:
        terminal.close()


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def follow(terminal: Terminal, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        terminal.read(0.2)


def key(terminal: Terminal, turn: int) -> float:
    """Milliseconds from a view's key to its frame."""
    follow(terminal, 0.3)
    number, mark = (("3", "[3 Drift]"), ("4", "[4 Policy]"))[turn % 2]
    pressed = time.monotonic()
    terminal.press(number)
    while mark not in terminal.text:
        terminal.read(0.005)
    return 1000 * (time.monotonic() - pressed)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="esper-") as folder:
        runtime = Path(folder) / "rt"
        runtime.mkdir(mode=0o700)
        os.environ |= {"ESPER_HOME": str(Path(folder) / "home"), "XDG_RUNTIME_DIR": str(runtime)}
        run = RunFolder.claim("bench")
        server = Server(run, hello={})
        server.start()
        server.set_state("TRAINING")
        stop = threading.Event()
        feeder = threading.Thread(target=publish, args=(server, stop))
        feeder.start()
        try:
            figures = watch(dict(os.environ))
        finally:
            stop.set()
            feeder.join()
            server.close("the benchmark is over")
            run.release()
    finish("tui", figures, {"kib_per_s": ("<=", 10.0), "cpu_percent": ("<=", 5.0)})


if __name__ == "__main__":
    main()

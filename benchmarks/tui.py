"""The cost of the terminal: `python -m benchmarks.tui`.

A real `esper-tui` on a real pseudo-terminal follows a real server at one frame a second, with 16 envs at
120x40, 64 and 256 at 200x60; the server publishes a run with seeds that come and go. Measured after a
warm-up: bytes written to the terminal and CPU time of the process, on the main screen and on a page of charts
of all 64 envs; the time from a key to its frame while nothing comes in, and while everything does; the time
until the first frame and the first table, by the clock and of CPU; memory, and what a day adds to it.
nvitop, btop and LEET are measured in the same way where they run.

A key's time ends when the last byte of its frame has come. The cores may be shared: what of it the program
and this one waited for a core is measured too, by the kernel. The screen that is read here is an emulator in
Python, whose own time is reported apart.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from esper_overwatch.protocol.codec.json_lines import decode_line
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from tests.e2e.terminal import Terminal
from tests.overwatch_tui import journal

from .monitors import NAMES, NotHere, monitor
from .report import finish

SCREENS = ((16, 120, 40), (64, 200, 60), (256, 200, 60))
"""Envs, columns, lines."""
WARM_UP_S = 12.0
MEASURED_S = 40.0
KEYS = 40
STARTS = 7
DAY_ROUNDS = 1440
"""One round a minute."""
DAY: dict[str, int] = {"envs": 4, "episode_epochs": 6, "epoch_us": 10_000_000}
PATIENCE_S = 120.0
FRAME_GAP_S = 0.02
"""No byte for so long: the frame has ended."""
CHARTS_OF_ALL = ("\r", "\r", ":overlay\r")
"""Keys: the selected env, its four charts, over all envs."""
ROW = re.compile(r"^. +15 \w+ +\d", re.MULTILINE)
"""The row of an env, with its accuracy."""
TARGETS = {
    "kib_per_s_16": ("<=", 10.0),
    "cpu_percent_16": ("<=", 5.0),
    "kib_per_s_64": ("<=", 25.0),
    "cpu_percent_64": ("<=", 8.0),
    "kib_per_s_64_charts": ("<=", 25.0),
    "cpu_percent_64_charts": ("<=", 8.0),
    "cpu_percent_256": ("<=", 10.0),
    "key_to_frame_p95_ms": ("<", 50.0),
    "first_frame_cpu_s": ("<", 0.3),
    "first_table_cpu_s": ("<", 0.8),
    "first_table_s": ("<", 0.8),
    "rss_mib": ("<", 100.0),
    "rss_mib_day": ("<", 100.0),
    "day_growth": ("<=", 1.1),
}


def publish(server: Server, envs: int, stop: threading.Event) -> None:
    """Emit the journal's events at the journal's pace until `stop` is set."""
    begin, first = time.monotonic(), None
    for line in journal.endless(envs=envs):
        event = decode_line(line)
        first = event.ts if first is None else first
        wait = begin + (event.ts - first) / 1e6 - time.monotonic()
        if stop.wait(max(0.0, wait)):
            return
        server.emitter.set_clock(round=event.ctx.round, epoch=event.ctx.epoch, level=event.ctx.level)
        server.emitter.emit(event.data, env=event.ctx.env)
        server.beat(event.ctx.round, event.ctx.epoch)


@contextmanager
def live_run(envs: int) -> Iterator[threading.Event]:
    """A run that publishes; setting the event makes it quiet."""
    run = RunFolder.claim(f"bench-{envs}")
    server = Server(run, hello={})
    server.start()
    server.set_state("TRAINING")
    stop = threading.Event()
    feeder = threading.Thread(target=publish, args=(server, envs, stop))
    feeder.start()
    try:
        yield stop
    finally:
        stop.set()
        feeder.join()
        server.close("the benchmark is over")
        run.release()


@contextmanager
def opened(command: list[str], columns: int = 120, lines: int = 40) -> Iterator[Terminal]:
    terminal = Terminal(command, dict(os.environ), columns=columns, lines=lines)
    try:
        yield terminal
    finally:
        terminal.close()


def overwatch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "esper_overwatch.overwatch_tui", *arguments]


def steady(terminal: Terminal, seconds: float) -> tuple[float, float]:
    """(KiB per second, percent of a core) over a while, with what the process has started."""
    follow(terminal, WARM_UP_S)
    processes = family(terminal)
    bytes_before, cpu_before, wall = terminal.bytes, sum(map(cpu, processes)), time.monotonic()
    follow(terminal, seconds)
    passed = time.monotonic() - wall
    kib = (terminal.bytes - bytes_before) / 1024 / passed
    return kib, 100 * (sum(map(cpu, processes)) - cpu_before) / passed


def steady_charts(terminal: Terminal, envs: int, seconds: float) -> tuple[float, float]:
    """Stay on the page of charts of an env, each with the curves of all; then go back."""
    terminal.wait_for(f"ENVS {envs}", seconds=PATIENCE_S)
    follow(terminal, 2.0)
    for each in CHARTS_OF_ALL:
        terminal.press(each)
        follow(terminal, 0.5)
    terminal.wait_for(f"over {envs}", seconds=PATIENCE_S)
    found = steady(terminal, seconds)
    terminal.press("1")
    return found


def family(terminal: Terminal) -> list[psutil.Process]:
    """The process and those that it has started."""
    process = psutil.Process(terminal.process.pid)
    return [process, *process.children(recursive=True)]


def resident(terminal: Terminal) -> float:
    """MiB."""
    return float(sum(process.memory_info().rss for process in family(terminal))) / 2**20


def measure_screen(envs: int, columns: int, lines: int, seconds: float) -> dict[str, float]:
    """Measure a live run of these envs; of the smallest also starts and keys."""
    figures: dict[str, float] = {}
    with live_run(envs) as stop:
        if envs == SCREENS[0][0]:
            follow_starts(figures)
        with opened(overwatch("--refresh", "1"), columns, lines) as terminal:
            terminal.wait_for("LIVE", seconds=PATIENCE_S)
            if envs == SCREENS[1][0]:
                kib, percent = steady_charts(terminal, envs, seconds)
                figures |= {f"kib_per_s_{envs}_charts": kib, f"cpu_percent_{envs}_charts": percent}
            figures[f"kib_per_s_{envs}"], figures[f"cpu_percent_{envs}"] = steady(terminal, seconds)
            figures["rss_mib" if envs == SCREENS[0][0] else f"rss_mib_{envs}"] = resident(terminal)
            if envs == SCREENS[0][0]:
                figures["key_to_frame_busy_p95_ms"] = press_keys(terminal)["key_to_frame_p95_ms"]
                stop.set()
                follow(terminal, 2.0)
                figures |= press_keys(terminal)
            terminal.press("q")
            terminal.process.wait(PATIENCE_S)
    return figures


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def follow_starts(figures: dict[str, float]) -> None:
    """Seconds until something, and until the table of envs, is on the screen: medians.

    The first start, which compiles the program as an installation does, is not counted.
    """
    found: list[dict[str, float]] = []
    for _ in range(1 + STARTS):
        began = time.monotonic()
        with opened(overwatch("--refresh", "1")) as terminal:
            process = psutil.Process(terminal.process.pid)
            times: dict[str, float] = {}
            for name, shows in (
                ("first_frame", lambda text: bool(text.strip())),
                ("first_table", lambda text: ROW.search(text) is not None),
            ):
                times |= start_times(name, terminal, process, shows, began)
            found.append(times)
            terminal.press("q")
            with suppress(Exception):
                terminal.process.wait(PATIENCE_S)
    figures |= {name: statistics.median(times[name] for times in found[1:]) for name in found[0]}


def start_times(
    name: str, terminal: Terminal, process: psutil.Process, shows: Callable[[str], bool], began: float
) -> dict[str, float]:
    """Seconds until the screen shows it: by the clock, without what the program waited for a core, of CPU."""
    end = time.monotonic() + PATIENCE_S
    while not shows(terminal.text):
        if time.monotonic() > end:
            return dict.fromkeys((f"{name}_s", f"{name}_less_waiting_s", f"{name}_cpu_s"), float("nan"))
        terminal.read(0.01)
    passed = time.monotonic() - began
    waited = int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9
    return {f"{name}_s": passed, f"{name}_less_waiting_s": passed - waited, f"{name}_cpu_s": cpu(process)}


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def follow(terminal: Terminal, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        terminal.read(0.2)


class KeyTimes(NamedTuple):
    """Milliseconds from a view's key on."""

    frame: float
    """Until the last byte of its frame."""
    screen: float
    """As `frame`, with the time that the emulator takes to read it."""
    waiting: float
    """Part of `frame` that threads of the program and this one waited for a core."""
    cpu: float
    """CPU time of the program."""


def press_keys(terminal: Terminal) -> dict[str, float]:
    """Press the keys of switches between two views."""
    times = [key(terminal, turn) for turn in range(KEYS)]
    return {
        "key_to_frame_p95_ms": p95([each.frame for each in times]),
        "key_to_frame_median_ms": statistics.median(each.frame for each in times),
        "key_to_frame_less_waiting_p95_ms": p95([max(0.0, each.frame - each.waiting) for each in times]),
        "key_to_screen_p95_ms": p95([each.screen for each in times]),
        "key_cpu_ms": statistics.mean(each.cpu for each in times),
    }


def key(terminal: Terminal, turn: int) -> KeyTimes:
    follow(terminal, 0.3)
    number, mark = (("4", "[4 Seeds]"), ("3", "[3 Policy]"))[turn % 2]
    process = psutil.Process(terminal.process.pid)
    cpu_before, waited, pressed = cpu(process), waited_ms(process.pid), time.monotonic()
    terminal.press(number)
    frame = screen = 0.0
    while mark not in terminal.text:
        pieces = [terminal.receive(PATIENCE_S)]
        frame = time.monotonic()
        while piece := terminal.receive(FRAME_GAP_S):
            pieces.append(piece)
            frame = time.monotonic()
        waiting, used = waited_ms(process.pid) - waited, cpu(process) - cpu_before
        began = time.monotonic()
        terminal.show(b"".join(pieces))
        screen += time.monotonic() - began
    frame -= pressed
    return KeyTimes(1000 * frame, 1000 * (frame + screen), waiting, 1000 * used)


def waited_ms(pid: int) -> float:
    """How long this thread and all of a process have been ready to run and had no core."""
    found = 0
    for path in (*Path(f"/proc/{pid}/task").glob("*/schedstat"), Path("/proc/thread-self/schedstat")):
        with suppress(OSError):  # the thread has ended
            found += int(path.read_text().split()[1])
    return found / 1e6


def measure_day(folder: Path) -> dict[str, float]:
    """Memory after a recorded day over that after a quarter of it."""
    found = []
    for part in (DAY_ROUNDS // 4, DAY_ROUNDS):
        path = journal.write(folder / f"day-{part}.jsonl", rounds=part, **DAY)
        with opened(overwatch("--replay", str(path), "--speed", "1000000")) as terminal:
            terminal.wait_for("ENDED", seconds=5 * PATIENCE_S)
            follow(terminal, 2.0)
            found.append(resident(terminal))
            terminal.press("q")
            terminal.process.wait(PATIENCE_S)
    return {"rss_mib_day": found[1], "day_growth": found[1] / found[0]}


def measure_others(folder: Path, seconds: float) -> dict[str, float]:
    """Measure other monitors at 120x40, as far as they run here."""
    figures: dict[str, float] = {}
    for name in NAMES:
        try:
            with monitor(name, folder / name) as command, opened(command) as terminal:
                follow(terminal, 3.0)
                if terminal.process.poll() is not None:
                    raise NotHere(f"ended at once (exit {terminal.process.returncode})")
                try:
                    figures[f"kib_per_s_{name}"], figures[f"cpu_percent_{name}"] = steady(terminal, seconds)
                    figures[f"rss_mib_{name}"] = resident(terminal)
                finally:
                    for process in family(terminal):  # LEET's own outlives the one that started it
                        process.kill()
        except NotHere as reason:
            print(f"{name} {reason}: not compared")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=MEASURED_S, help="measured, of each screen")
    seconds = parser.parse_args().seconds
    figures: dict[str, float] = {"load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="esper-") as folder:
        runtime = Path(folder) / "rt"
        runtime.mkdir(mode=0o700)
        os.environ |= {"ESPER_HOME": str(Path(folder) / "home"), "XDG_RUNTIME_DIR": str(runtime)}
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs is compiled
        for screen in SCREENS:
            figures |= measure_screen(*screen, seconds)
        figures |= measure_day(Path(folder))
        figures |= measure_others(Path(folder), seconds)
    finish("tui", figures, TARGETS)


if __name__ == "__main__":
    main()

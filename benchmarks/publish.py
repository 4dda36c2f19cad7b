"""The cost of a logged step: what `run.log` of ten numbers takes from a training loop.

    python -m benchmarks.publish [--windows 200] [--steps 200] [--rival tensorboard]

A window is so many calls in a row; the I/O thread, the journal on disk and a viewer that follows the run are
there as in use. Windows of every kind take turns, and a figure is the median over the windows of a call's
mean, the loop's own counting included; between windows the I/O thread empties its queue. Its CPU time per
step is what the process used beside the loop's thread.

A rival is another library that logs the same ten numbers in the same turns, where it is installed (`RIVALS`).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import click

from protocol import PublishedRun, publish

from .report import finish

NAMES = [f"metric_{i}" for i in range(10)]
WARM_UP_WINDOWS = 10
Log = Callable[[int], object]
"""Logs ten numbers at a step."""
VIEWER = """
import sys
from protocol import Subscriber
with Subscriber(sys.argv[1]) as subscriber:
    for event in subscriber.events():
        pass
"""


@contextmanager
def tensorboard_writer(folder: Path) -> Iterator[Log]:
    """`SummaryWriter.add_scalar`, ten times."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder / "tensorboard") as writer:

        def log(step: int) -> None:
            for i, name in enumerate(NAMES):
                writer.add_scalar(name, 0.1 * i, step)

        yield log


RIVALS: dict[str, Callable[[Path], AbstractContextManager[Log]]] = {"tensorboard": tensorboard_writer}
"""By name, what opens another library in a folder and gives its way to log ten numbers."""


def ways_to_log(run: PublishedRun) -> dict[str, Log]:
    """Each with ten numbers, as loops write it."""
    known = dict.fromkeys(NAMES, 0.5)

    def keywords(step: int) -> None:
        run.log(
            step=step,
            metric_0=0.0,
            metric_1=0.1,
            metric_2=0.2,
            metric_3=0.3,
            metric_4=0.4,
            metric_5=0.5,
            metric_6=0.6,
            metric_7=0.7,
            metric_8=0.8,
            metric_9=9,
        )

    def a_dict(step: int) -> None:
        run.log(known, step=step)

    def asked(_step: int) -> None:
        run.asked("stop")

    return {"log_us": keywords, "log_dict_us": a_dict, "asked_us": asked}


def time_window(log: Log, first: int, steps: int) -> float:
    """Microseconds of one call, averaged over a window."""
    begin = time.perf_counter_ns()
    for step in range(first, first + steps):
        log(step)
    return (time.perf_counter_ns() - begin) / steps / 1000


def measure(run: PublishedRun, ways: dict[str, Log], windows: int, steps: int) -> dict[str, float]:
    """Medians over windows that take turns, and the I/O thread's time per logged step."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    beside: list[float] = []
    step = 0
    for window in range(windows + WARM_UP_WINDOWS):
        for name, log in ways.items():
            process, thread = time.process_time(), time.thread_time()
            took = time_window(log, step, steps)
            run.flush()
            step += steps
            if window >= WARM_UP_WINDOWS:
                times[name].append(took)
                if name == "log_us":
                    others = (time.process_time() - process) - (time.thread_time() - thread)
                    beside.append(1e6 * others / steps)
    figures = {name: statistics.median(found) for name, found in times.items()}
    figures["log_p90_us"] = statistics.quantiles(times["log_us"], n=10)[-1]
    figures["io_thread_us"] = statistics.median(beside)
    return figures


@click.command()
@click.option("--windows", default=200, show_default=True, help="Windows of each kind.")
@click.option("--steps", default=200, show_default=True, help="Calls in a window.")
@click.option("--rival", "rivals", multiple=True, type=click.Choice(sorted(RIVALS)), help="Compare with it.")
def main(windows: int, steps: int, rivals: tuple[str, ...]) -> None:
    """Measure what a logged step costs a training loop."""
    with tempfile.TemporaryDirectory(prefix="esper-") as made, ExitStack() as stack:
        folder = Path(made)
        (folder / "run").mkdir(mode=0o700)
        os.environ |= {"ESPER_HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run")}
        run = stack.enter_context(publish("benchmark"))
        viewer = subprocess.Popen([sys.executable, "-c", VIEWER, "benchmark"])
        stack.callback(viewer.wait)
        stack.callback(viewer.terminate)
        ways = ways_to_log(run)
        for name in rivals:
            ways[f"{name}_us"] = stack.enter_context(RIVALS[name](folder))
        figures = measure(run, ways, windows, steps)
        for name in rivals:
            figures[f"{name}_over_log"] = figures[f"{name}_us"] / figures["log_us"]
    for name, value in figures.items():
        print(f"  {name:<24} {value:8.3f}")
    finish("publish", figures, {"log_us": ("<=", 2.0)})


if __name__ == "__main__":
    main()

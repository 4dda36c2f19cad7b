"""The cost of a logged step: what `run.log` of ten numbers takes from a training loop.

    python -m benchmarks.publish [--windows 200] [--steps 200] [--rival tensorboard --rival wandb ...]

Other libraries log the same ten numbers in the same turns, those of these that are installed: TensorBoard,
wandb (offline), trackio, MLflow (files). `pip install 'esper-overwatch[bench]'` installs them all.

A window is a row of calls; the I/O thread, the journal on disk and a viewer that follows the run are
there as in use. Windows of every kind take turns, and a figure is the median over the windows of a call's
mean: on the clock (`_us`), and of the calling thread's CPU time (`_cpu_us`), the loop's counting included.
Between windows the I/O thread empties its queue; its CPU time per step is what the process used beside the
loop's thread.

In windows of their own each call is timed for the tail (`_p999_us`), beside a call that does nothing, whose
tail is that of the machine's other work. What a library keeps on disk (`_disk_bytes`) is measured after the
end of another run, per step of ten random numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import click

from esper_overwatch import PublishedRun, publish

from .report import finish

NAMES = [f"metric_{i}" for i in range(10)]
WARM_UP_WINDOWS = 10
RIVAL_SHARE = 10
"""Steps of ours for each that a rival logs: the slowest takes milliseconds."""
DISK_STEPS = 1000
Log = Callable[[int], object]
"""Logs ten numbers at a step."""
LogValues = Callable[[dict[str, float], int], object]
"""Logs these numbers at a step."""
VIEWER = """
import sys
from esper_overwatch import Subscriber
with Subscriber(sys.argv[1]) as subscriber:
    for event in subscriber.events():
        pass
"""


@contextmanager
def published_run(folder: Path) -> Iterator[LogValues]:
    """Ours."""
    with publish("disk", home=folder) as run:
        yield lambda values, step: run.log(values, step=step)


@contextmanager
def tensorboard_writer(folder: Path) -> Iterator[LogValues]:
    """`SummaryWriter.add_scalar`, ten times."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:

        def log(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        yield log


@contextmanager
def wandb_run(folder: Path) -> Iterator[LogValues]:
    """`run.log` of an offline run."""
    for kind in ("CACHE", "CONFIG", "DATA", "ARTIFACT"):
        os.environ[f"WANDB_{kind}_DIR"] = str(folder.parent / "wandb-caches")
    wandb = importlib.import_module("wandb")
    settings = wandb.Settings(silent=True, console="off")
    run = wandb.init(mode="offline", dir=str(folder), project="bench", settings=settings)
    yield lambda values, step: run.log(values, step=step)
    run.finish()


@contextmanager
def trackio_run(folder: Path) -> Iterator[LogValues]:
    """`trackio.log`, which a thread of its own writes into SQLite; where, is read when it is imported."""
    os.environ.setdefault("TRACKIO_DIR", str(folder))
    os.environ["HF_HOME"] = str(folder.parent / "hf")
    os.environ["HF_HUB_OFFLINE"], os.environ["GRADIO_ANALYTICS_ENABLED"] = "1", "False"
    trackio = importlib.import_module("trackio")
    trackio.init(project=folder.name)
    yield lambda values, step: trackio.log(values, step=step)
    trackio.finish()


@contextmanager
def mlflow_run(folder: Path) -> Iterator[LogValues]:
    """`mlflow.log_metrics` into a store of files."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    mlflow = importlib.import_module("mlflow")
    mlflow.set_tracking_uri((folder / "store").as_uri())  # makes it
    with mlflow.start_run():
        yield lambda values, step: mlflow.log_metrics(values, step=step)


LIBRARIES: dict[str, Callable[[Path], AbstractContextManager[LogValues]]] = {
    "log": published_run,
    "tensorboard": tensorboard_writer,
    "wandb": wandb_run,
    "trackio": trackio_run,
    "mlflow": mlflow_run,
}
"""By name, what opens a library in a folder and gives its way to log."""
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio", "mlflow": "mlflow-skinny"}
"""Distributions of the others, by library."""


def ways_to_log(run: PublishedRun) -> dict[str, Log]:
    """Ours, each with ten numbers, as loops write it; and a call that does nothing."""
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

    def nothing(_step: int) -> None:
        pass

    return {"log": keywords, "log_dict": a_dict, "asked": asked, "nothing": nothing}


def time_window(log: Log, first: int, steps: int) -> tuple[float, float]:
    """Microseconds of one call, averaged over a window: on the clock, and of this thread."""
    begin, thread = time.perf_counter_ns(), time.thread_time_ns()
    for step in range(first, first + steps):
        log(step)
    took, own = time.perf_counter_ns() - begin, time.thread_time_ns() - thread
    return took / steps / 1000, own / steps / 1000


def time_calls(log: Log, first: int, steps: int) -> list[float]:
    """Microseconds of each call, the reading of the clock included."""
    clock = time.perf_counter_ns
    times = []
    for step in range(first, first + steps):
        begin = clock()
        log(step)
        times.append((clock() - begin) / 1000)
    return times


class Times:
    """Measured times of one way to log."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.own: list[float] = []
        self.calls: list[float] = []

    def figures(self, name: str) -> dict[str, float]:
        """Medians of the windows, and the call that one of a thousand exceeds."""
        return {
            f"{name}_us": statistics.median(self.wall),
            f"{name}_cpu_us": statistics.median(self.own),
            f"{name}_p999_us": statistics.quantiles(self.calls, n=1000)[-1],
        }


def measure(run: PublishedRun, rivals: dict[str, Log], windows: int, steps: int) -> dict[str, float]:
    """Figures over windows that take turns, and the I/O thread's time per logged step."""
    ours = ways_to_log(run)
    times = {name: Times() for name in ours | rivals}
    beside: list[float] = []
    step = 0
    for window in range(windows + WARM_UP_WINDOWS):
        for name, log in (ours | rivals).items():
            calls = steps if name in ours else max(1, steps // RIVAL_SHARE)
            process, thread = time.process_time(), time.thread_time()
            wall, own = time_window(log, step, calls)
            run.flush()
            others = (time.process_time() - process) - (time.thread_time() - thread)
            each = time_calls(log, step + calls, calls)
            run.flush()
            step += 2 * calls
            if window >= WARM_UP_WINDOWS:
                times[name].wall.append(wall)
                times[name].own.append(own)
                times[name].calls += each
                if name == "log":
                    beside.append(1e6 * others / steps)
    figures: dict[str, float] = {}
    for name, found in times.items():
        figures |= found.figures(name)
    figures["log_p90_us"] = statistics.quantiles(times["log"].wall, n=10)[-1]
    figures["io_thread_us"] = statistics.median(beside)
    return figures


def disk_bytes(name: str, folder: Path) -> float:
    """Bytes in files for each step, after the end of a run."""
    folder.mkdir()
    digits = random.Random(1)
    with LIBRARIES[name](folder) as log:
        for step in range(DISK_STEPS):
            log({name: digits.random() for name in NAMES}, step)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / DISK_STEPS


def installed_rivals() -> list[str]:
    """Those that can be compared here."""
    found = [name for name in PACKAGES if importlib.util.find_spec(name)]
    for name in PACKAGES.keys() - found:
        print(f"  {name} is not installed: pip install 'esper-overwatch[bench]'")
    return found


@click.command()
@click.option("--windows", default=200, show_default=True, help="Windows of each kind.")
@click.option("--steps", default=200, show_default=True, help="Calls in a window.")
@click.option(
    "--rival", "rivals", multiple=True, type=click.Choice(list(PACKAGES)), help="Compare with it only."
)
def main(windows: int, steps: int, rivals: tuple[str, ...]) -> None:
    """Measure what a logged step costs a training loop."""
    names = list(rivals) or installed_rivals()
    values = dict.fromkeys(NAMES, 0.5)
    with (
        tempfile.TemporaryDirectory(prefix="esper-", ignore_cleanup_errors=True) as made,
        ExitStack() as stack,
    ):
        folder = Path(made)
        (folder / "run").mkdir(mode=0o700)
        os.environ |= {"ESPER_HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run")}
        figures = {f"{name}_disk_bytes": disk_bytes(name, folder / name) for name in ["log", *names]}
        run = stack.enter_context(publish("benchmark"))
        viewer = subprocess.Popen([sys.executable, "-c", VIEWER, "benchmark"])
        stack.callback(viewer.wait)
        stack.callback(viewer.terminate)
        others: dict[str, Log] = {}
        for name in names:
            (folder / "timed" / name).mkdir(parents=True)
            log = stack.enter_context(LIBRARIES[name](folder / "timed" / name))
            others[name] = lambda step, log=log: log(values, step)  # type: ignore[misc]
        figures |= measure(run, others, windows, steps)
    targets = {"log_us": ("<=", 2.0)}
    for name in names:
        figures[f"{name}_over_log"] = figures[f"{name}_us"] / figures["log_us"]
        targets[f"{name}_over_log"] = (">", 1.0)
    for figure, value in figures.items():
        print(f"  {figure:<24} {value:12.3f}")
    print("  versions:", ", ".join(f"{name} {version(PACKAGES[name])}" for name in names))
    finish("publish", figures, targets)


if __name__ == "__main__":
    main()

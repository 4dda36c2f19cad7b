"""The cost of a logged step: what `run.log` of ten numbers takes from a training loop.

    python -m benchmarks.publish [--windows 200] [--steps 200] [--rival tensorboard --rival wandb ...]

A window is so many calls in a row; the I/O thread, the journal on disk and a viewer that follows the run are
there as in use. Windows of every kind take turns, and a figure is the median over the windows of a call's
mean, the loop's own counting included; between windows the I/O thread empties its queue. Its CPU time per
step is what the process used beside the loop's thread.

A rival is another library that logs the same ten numbers in the same turns: TensorBoard, wandb (offline),
trackio, MLflow (files); `pip install 'esper-overwatch[bench]'` installs them.
"""

from __future__ import annotations

import importlib
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
RIVAL_SHARE = 10
"""Of so many steps of ours a rival logs one: the slowest takes milliseconds."""
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


@contextmanager
def wandb_run(folder: Path) -> Iterator[Log]:
    """`run.log` of an offline run."""
    for kind in ("CACHE", "CONFIG", "DATA", "ARTIFACT"):
        os.environ[f"WANDB_{kind}_DIR"] = str(folder / "wandb")
    wandb = importlib.import_module("wandb")
    settings = wandb.Settings(silent=True, console="off")
    run = wandb.init(mode="offline", dir=str(folder), project="bench", settings=settings)
    yield lambda step: run.log(dict.fromkeys(NAMES, 0.5), step=step)
    run.finish()


@contextmanager
def trackio_run(folder: Path) -> Iterator[Log]:
    """`trackio.log`, which a thread of its own writes into SQLite."""
    os.environ["TRACKIO_DIR"] = os.environ["HF_HOME"] = str(folder / "trackio")
    os.environ["HF_HUB_OFFLINE"], os.environ["GRADIO_ANALYTICS_ENABLED"] = "1", "False"
    trackio = importlib.import_module("trackio")
    trackio.init(project="bench")
    yield lambda step: trackio.log(dict.fromkeys(NAMES, 0.5), step=step)
    trackio.finish()


@contextmanager
def mlflow_run(folder: Path) -> Iterator[Log]:
    """`mlflow.log_metrics` into a store of files."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    mlflow = importlib.import_module("mlflow")
    mlflow.set_tracking_uri((folder / "mlflow").as_uri())
    with mlflow.start_run():
        yield lambda step: mlflow.log_metrics(dict.fromkeys(NAMES, 0.5), step=step)


RIVALS: dict[str, Callable[[Path], AbstractContextManager[Log]]] = {
    "tensorboard": tensorboard_writer,
    "wandb": wandb_run,
    "trackio": trackio_run,
    "mlflow": mlflow_run,
}
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


def measure(run: PublishedRun, rivals: dict[str, Log], windows: int, steps: int) -> dict[str, float]:
    """Medians over windows that take turns, and the I/O thread's time per logged step."""
    ours = ways_to_log(run)
    ways = ours | rivals
    times: dict[str, list[float]] = {name: [] for name in ways}
    beside: list[float] = []
    step = 0
    for window in range(windows + WARM_UP_WINDOWS):
        for name, log in ways.items():
            process, thread = time.process_time(), time.thread_time()
            calls = steps if name in ours else max(1, steps // RIVAL_SHARE)
            took = time_window(log, step, calls)
            run.flush()
            step += calls
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
    with (
        tempfile.TemporaryDirectory(prefix="esper-", ignore_cleanup_errors=True) as made,
        ExitStack() as stack,
    ):
        folder = Path(made)
        (folder / "run").mkdir(mode=0o700)
        os.environ |= {"ESPER_HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run")}
        run = stack.enter_context(publish("benchmark"))
        viewer = subprocess.Popen([sys.executable, "-c", VIEWER, "benchmark"])
        stack.callback(viewer.wait)
        stack.callback(viewer.terminate)
        others = {f"{name}_us": stack.enter_context(RIVALS[name](folder)) for name in rivals}
        figures = measure(run, others, windows, steps)
        for name in rivals:
            figures[f"{name}_over_log"] = figures[f"{name}_us"] / figures["log_us"]
    for name, value in figures.items():
        print(f"  {name:<24} {value:8.3f}")
    finish("publish", figures, {"log_us": ("<=", 2.0)})


if __name__ == "__main__":
    main()

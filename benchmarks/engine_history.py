"""How much faster the stacked engine became: an older commit's and this one's, in one run.

Each trains and validates the same 3x3 hosts with the same seeds on the same images in a process of its own,
by its own defaults but on one thread, an epoch in turn. Seconds of CPU, medians of the ratios of neighbouring
epochs. The older one's source comes from the history of this repository; its work is compared first.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import click

from .report import finish

ROOT = Path(__file__).parent.parent
WORKER = Path(__file__).with_name("engine_worker.py")
COMMIT = "1361c15"
"""Before the native kernel: what the prior art was compared with."""
SIZES = {"digits": (4, 16, 64), "synthetic": (4, 16)}
"""Dataset -> the numbers of envs."""
TARGET = 1.4
LOSS_TOLERANCE = 1e-3
"""Relative, of the losses after two epochs: kernels round differently."""


class Worker:
    """The engine of one checkout in a process of its own."""

    def __init__(self, checkout: Path, dataset: str, n: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER.read_text(encoding="utf-8")],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        config = {
            "task": {"dataset": dataset},
            "host": {"channels": (8, 16, 32), "kernel": 3},
            "envs": {"count": n, "threads": 1},
        }
        self.work: dict[str, float] = self._ask({"dataset": dataset, "config": config})

    def seconds(self, epoch: int) -> float:
        """Seconds of CPU that an epoch takes."""
        taken: float = self._ask(epoch)
        return taken

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise click.ClickException("the engine of a checkout failed; what it says is above")
        return json.loads(answer)


def check_work(before: dict[str, float], after: dict[str, float]) -> None:
    """See that both did the same work, and learned the same."""
    for name, value in before.items():
        tolerance = LOSS_TOLERANCE if name == "train_loss" else 0.0
        if not math.isclose(value, after[name], rel_tol=tolerance):
            raise click.ClickException(f"not the same work: {name} is {value} before, {after[name]} now")


def measure(before: Path, dataset: str, n: int, windows: int) -> dict[str, float]:
    workers = [Worker(checkout, dataset, n) for checkout in (before, ROOT)]
    check_work(workers[0].work, workers[1].work)
    rows = [[worker.seconds(epoch) for worker in workers] for epoch in range(2, windows + 3)][1:]
    for worker in workers:
        worker.close()
    old, new = (statistics.median(column) for column in zip(*rows, strict=True))
    return {
        "before_per_second": n / old,
        "per_second": n / new,
        "over_before": statistics.median(row[0] / row[1] for row in rows),
    }


def check_out(commit: str, folder: Path) -> None:
    """Write the files of a commit into a folder."""
    made = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if made.returncode:
        reason = made.stderr.decode(errors="replace").strip()
        raise click.ClickException(f"no commit {commit} here ({reason}); a clone has to be a full one")
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    for name in (
        "benchmarks",
        "tests",
        "tests/trainer",
    ):  # which had none, and would be sought elsewhere first
        (folder / name / "__init__.py").touch()


@click.command(help=__doc__)
@click.option("--before", "commit", default=COMMIT, show_default=True, help="the older commit")
@click.option("--windows", default=9, show_default=True, help="epochs measured per size")
@click.option("--dataset", "datasets", multiple=True, type=click.Choice(list(SIZES)), help="default: all")
def main(commit: str, windows: int, datasets: tuple[str, ...]) -> None:
    figures: dict[str, float] = {}
    targets: dict[str, tuple[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        check_out(commit, Path(folder))
        click.echo("dataset      N  env-epochs/s before     now  now over before")
        for dataset in datasets or SIZES:
            for n in SIZES[dataset]:
                row = measure(Path(folder), dataset, n, windows)
                click.echo(
                    f"{dataset:9} {n:4} {row['before_per_second']:20.1f} {row['per_second']:7.1f} "
                    f"{row['over_before']:16.2f}"
                )
                figures |= {f"{dataset}_{n}_{name}": value for name, value in row.items()}
                targets[f"{dataset}_{n}_over_before"] = (">=", TARGET)
    finish("engine_history", figures, targets)


if __name__ == "__main__":
    main()

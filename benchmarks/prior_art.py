"""The whole training loop beside esper-lite's, from a checkout that the user gives: env-epochs per second.

Both train hosts of 8, 16, 32 channels with 3x3 kernels on the same images, in batches of 64, four to train
and one to validate, 25 epochs a round, PPO and telemetry included, on one thread. Windows of both alternate,
each a process of its own that trains some rounds, of which the first is not counted; a ratio is of two
neighbours. `none`: no seeds, here the rule no_growth in place of PPO. `one`: at most one live seed of
conv_light. `default`: what each does by itself. Live seeds tell whether a row compares like with like.
Nothing of esper-lite is part of this repository; its packages are installed by the user, for `--python`.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch

from esper_overwatch.protocol.messages.vocabulary import WITH_SEED
from esper_overwatch.trainer.data.dataset import Dataset
from esper_overwatch.trainer.data.registry import load

from .daemon_rounds import trained
from .report import finish

EPOCHS = 25
IMAGES = 640
"""Of a file, a tenth of which is for validation."""
SIZES = {"digits": (4, 16, 64), "synthetic": (4, 16)}
SEEDS = {
    "none": ("policy.kind=no_growth",),
    "one": ("seeds.max_live=1", "seeds.blueprints=conv_light"),
    "default": (),
}
"""What is set here, by the seeds that there are."""
TARGETS = {
    ("one", "digits"): {4: 2.0, 16: 3.5, 64: 4.0},
    ("one", "synthetic"): {4: 1.5, 16: 1.5},
    ("default", "digits"): {4: 1.5, 16: 2.0, 64: 2.5},
    ("default", "synthetic"): {4: 1.0, 16: 1.0},
}
"""Least ratio."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    task: str
    envs: int
    seeds: str


@dataclass(frozen=True)
class Window:
    """What a process found."""

    per_second: float
    """Env-epochs."""
    live: float
    """Live seeds of a host, as a mean over the counted epochs."""


def write_images(task: str, path: Path) -> None:
    """Three channels of bytes: the digits, or ten random patterns of 32x32 pixels under noise."""
    if task == "digits":
        data = load("digits")
        assert isinstance(data, Dataset)
        images, labels = data.train.images[:IMAGES], data.train.labels[:IMAGES]
        pixels = images.expand(-1, 3, -1, -1)
    else:
        random = torch.Generator().manual_seed(0)
        patterns = torch.randn(10, 3, 32, 32, generator=random)
        labels = torch.arange(IMAGES) % 10
        noise = torch.randn(IMAGES, 3, 32, 32, generator=random)
        pixels = ((patterns[labels] + noise) * 32 + 128).clamp(0, 255).to(torch.uint8)
    np.savez(path, x_train=pixels.numpy(), y_train=labels.numpy())


def run_ours(case: Case, images: Path, rounds: int, seed: int) -> Window:
    """A run of the daemon, by its journal."""
    sets = (
        *(
            "task.dataset=benched",
            "task.batch_size=64",
            "task.batches_per_epoch=4",
            f"episode_epochs={EPOCHS}",
        ),
        *("host.channels=8,16,32", "host.kernel=3", f"envs.count={case.envs}", "envs.threads=1"),
        *("device=cpu", f"seed={seed}", *SEEDS[case.seeds]),
    )
    words = ("--rounds", str(rounds), *(w for s in sets for w in ("--set", s)))
    register = ("data", "benched", "--from", str(images))
    with trained(*words, before=register, OMP_NUM_THREADS="1") as journal:
        events = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    ends = [event["ts"] / 1e6 for event in events if event["type"] == "round.finished"]
    live = [
        sum(code in WITH_SEED for row in event["data"]["stage"] for code in row) / case.envs
        for event in events
        if event["type"] == "epoch" and event["ctx"]["round"] > 1
    ]
    return _window(case, [after - before for before, after in itertools.pairwise(ends)], live)


def run_theirs(case: Case, images: Path, rounds: int, seed: int, python: str, checkout: Path) -> Window:
    """As many rounds by esper-lite."""
    asked = {"images": str(images), "envs": case.envs, "rounds": rounds, "epochs": EPOCHS, "seed": seed}
    worker = Path(__file__).with_name("prior_art_worker.py")
    command = [python, str(worker), json.dumps({**asked, "seeds": case.seeds})]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout / "src")}
    with tempfile.TemporaryDirectory(prefix="esper-bench-") as folder:
        found = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if found.returncode:
        raise click.ClickException(f"esper-lite failed: {found.stderr.strip().splitlines()[-1:]}")
    told = json.loads(found.stdout.splitlines()[-1])
    return _window(case, told["seconds"], [told["live"]])


def _window(case: Case, seconds: list[float], live: list[float]) -> Window:
    return Window(case.envs * EPOCHS / statistics.median(seconds), statistics.fmean(live))


@click.command(help=__doc__)
@click.option(
    "--checkout",
    required=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Folder of esper-lite.",
)
@click.option(
    "--python", default=sys.executable, help="Python that has esper-lite's packages; default: this one."
)
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(SIZES)), help="default: all")
@click.option("--envs", "counts", multiple=True, type=int, help="default: 4, 16, and 64 of the digits")
@click.option("--seeds", "kinds", multiple=True, type=click.Choice(list(SEEDS)), help="default: all")
@click.option("--windows", default=3, show_default=True, help="processes of each")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(2), help="rounds of each process")
def main(
    checkout: Path,
    python: str,
    tasks: tuple[str, ...],
    counts: tuple[int, ...],
    kinds: tuple[str, ...],
    windows: int,
    rounds: int,
) -> None:
    figures: dict[str, float] = {}
    targets: dict[str, tuple[str, float]] = {}
    click.echo(
        "images         N  seeds    live, ours / theirs  env-epochs/s, ours  theirs  ratio  least to most"
    )
    with tempfile.TemporaryDirectory(prefix="esper-bench-") as folder:
        for task in tasks or SIZES:
            images = Path(folder, f"{task}.npz")
            write_images(task, images)
            for envs in [n for n in SIZES[task] if n in counts or not counts]:
                for seeds in kinds or SEEDS:
                    case = Case(task, envs, seeds)
                    pairs = [
                        (
                            run_ours(case, images, rounds, seed),
                            run_theirs(case, images, rounds, seed, python, checkout),
                        )
                        for seed in range(1, windows + 1)
                    ]
                    figures |= (row := _figures(case, pairs))
                    if bound := TARGETS.get((seeds, task), {}).get(envs):
                        targets[f"{task}_{envs}_{seeds}_ratio"] = (">=", bound)
                    click.echo(_line(case, list(row.values())))
    finish("prior_art", figures, targets)


def _figures(case: Case, pairs: list[tuple[Window, Window]]) -> dict[str, float]:
    ours, theirs = zip(*pairs, strict=True)
    ratios = [mine.per_second / other.per_second for mine, other in pairs]
    name = f"{case.task}_{case.envs}_{case.seeds}"
    return {
        f"{name}_live": statistics.fmean(window.live for window in ours),
        f"{name}_live_theirs": statistics.fmean(window.live for window in theirs),
        f"{name}_per_second": statistics.median(window.per_second for window in ours),
        f"{name}_per_second_theirs": statistics.median(window.per_second for window in theirs),
        f"{name}_ratio": statistics.median(ratios),
        f"{name}_least": min(ratios),
        f"{name}_most": max(ratios),
    }


def _line(case: Case, row: list[float]) -> str:
    live, live_theirs, ours, theirs, ratio, least, most = row
    return (
        f"{case.task:10} {case.envs:5}  {case.seeds:8} {live:12.2f} / {live_theirs:.2f} {ours:19.1f} "
        f"{theirs:7.1f} {ratio:6.2f}  {least:.2f} to {most:.2f}"
    )


if __name__ == "__main__":
    main()

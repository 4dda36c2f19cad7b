"""Other monitors on the same pseudo-terminal, for comparison: nvitop, btop and wandb's LEET.

They are found on the PATH. nvitop needs an NVIDIA driver; LEET needs a run, which wandb writes meanwhile,
offline and without an account.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOGGER = """
import sys, time
import wandb
run = wandb.init(project="bench", dir=sys.argv[1], mode="offline", settings=wandb.Settings(console="off"))
step = 0
while True:
    values = {f"{name}/{env}": (step * 37 + env) % 101 / 100
              for env in range(16) for name in ("accuracy", "return", "norm", "drift")}
    run.log(values)
    step += 1
    time.sleep(0.6)
"""
"""The view of 16 envs in `benchmarks.tui`, at its pace: an epoch every 0.6 s."""
QUIET = {"WANDB_SILENT": "true", "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
PATIENCE_S = 60.0
NAMES = ("nvitop", "btop", "leet")


class NotHere(Exception):
    """The monitor cannot be compared on this machine; the message says why."""


@contextmanager
def monitor(name: str, folder: Path) -> Iterator[list[str]]:
    """The command of a monitor, which has something to show.

    Args:
        name: one of `NAMES`.
        folder: for what it needs on the disk.

    Raises:
        NotHere: it is not installed, or finds nothing that it could show.
    """
    program = shutil.which("wandb" if name == "leet" else name)
    if program is None:
        raise NotHere("is not installed")
    if name == "nvitop":
        _try([program, "--once"])
        yield [program, "-m", "full"]
    elif name == "leet":
        with _wandb_run(Path(program), folder):
            yield ["env", f"HOME={folder}", program, "leet", "run", str(folder / "wandb" / "latest-run")]
    else:
        yield [program]


def _try(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    if done.returncode or "ERROR" in (lines or [""])[0]:
        raise NotHere(f"does not run (exit {done.returncode}): {' '.join(lines)[:160]}")


@contextmanager
def _wandb_run(program: Path, folder: Path) -> Iterator[None]:
    """A run that wandb's own environment writes."""
    python = program.parent / "python"
    if not python.exists():
        raise NotHere(f"has no interpreter beside it: {python}")
    (folder / "wandb").mkdir(parents=True)
    environment = {**os.environ, **QUIET, "HOME": str(folder)}
    environment.pop("PYTHONPATH", None)
    logger = subprocess.Popen(
        [str(python), "-c", _LOGGER, str(folder)],
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + PATIENCE_S
        while not any((folder / "wandb").glob("latest-run/run-*.wandb")):
            if logger.poll() is not None or time.monotonic() > end:
                raise NotHere("has no run to show: wandb cannot be imported, or writes nothing")
            time.sleep(0.1)
        yield
    finally:
        logger.terminate()
        logger.wait()

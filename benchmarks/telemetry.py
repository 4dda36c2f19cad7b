"""What telemetry costs the trainer: the same rounds with it off and on, in one run.

    python -m benchmarks.telemetry [--pairs 10] [--envs 8]

Off is the level OFF (life events only). Both sides have the I/O thread, the journal and a subscriber in a
process of its own. A pair plays one round twice from the same state, so both sides compute the same numbers;
which side goes first alternates. The figure is the median of the paired ratios of env-epochs per second.
"""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
import tempfile
import time

import click
import torch

from benchmarks.report import finish
from protocol.events import Level
from protocol.runs import RunFolder
from trainer import settings
from trainer.daemon import Daemon
from trainer.data.registry import load


class Bench:
    """A daemon's parts in this process, driven round by round."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.epochs = daemon.config.episode_epochs

    def play(self, level: Level) -> tuple[float, float, torch.Tensor]:
        """One round at a level: wall seconds of its epochs, CPU seconds of the process, rewards."""
        daemon = self.daemon
        if level != "OFF":
            daemon.levels.escalate(level, self.epochs, reason="benchmark")
        cpu, wall = time.process_time(), time.perf_counter()
        daemon.trainer.play(daemon.observer)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return wall, cpu, daemon.trainer.rollout.reward.clone()

    def pair(self, level: Level, *, on_first: bool) -> tuple[float, float]:
        """Ratios on over off of one round: throughput by wall time, by CPU time."""
        before = copy.deepcopy(self.daemon.trainer.state_dict())
        seen = {}
        for current in (level, "OFF") if on_first else ("OFF", level):
            self.daemon.trainer.load_state_dict(copy.deepcopy(before))
            seen[current] = self.play(current)
        self.daemon.trainer.learn(self.daemon.observer)
        on, off = seen[level], seen["OFF"]
        assert torch.equal(on[2], off[2]), "telemetry changed what was trained"
        return off[0] / on[0], off[1] / on[1]


@click.command()
@click.option("--pairs", default=10, show_default=True)
@click.option("--envs", default=8, show_default=True)
def main(pairs: int, envs: int) -> None:
    """Print the cost of NORMAL and DEBUG and end with a JSON line."""
    figures: dict[str, float] = {"envs": envs, "pairs": pairs}
    with tempfile.TemporaryDirectory(prefix="esper-") as folder:
        os.environ.update(ESPER_HOME=f"{folder}/home", XDG_RUNTIME_DIR=folder)
        config = settings.load(sets=[f"envs.count={envs}", "telemetry.level=OFF", "device=cpu"])
        with RunFolder.claim("bench") as run:
            daemon = Daemon(run, config, torch.device("cpu"), load("digits"), resumed=False)
            daemon.server.start()
            reader = subprocess.Popen(
                [sys.executable, "-m", "trainer", "tail", "-f", "bench"], stdout=subprocess.DEVNULL
            )
            try:
                bench = Bench(daemon)
                bench.pair("DEBUG", on_first=True)
                for level in ("NORMAL", "DEBUG"):
                    ratios = [bench.pair(level, on_first=bool(i % 2)) for i in range(pairs)]
                    wall, cpu = zip(*ratios, strict=True)
                    name = level.lower()
                    figures[f"{name}_over_off"] = statistics.median(wall)
                    figures[f"{name}_over_off_by_cpu_time"] = statistics.median(cpu)
                    figures[f"{name}_spread"] = statistics.pstdev(wall)
                figures["events_journalled"] = run.events.read_bytes().count(b"\n")
            finally:
                reader.kill()
                reader.wait()
                daemon.server.close()
    finish(
        "telemetry",
        {key: round(value, 4) for key, value in figures.items()},
        {"normal_over_off": (">=", 0.99), "debug_over_off": (">=", 0.90)},
    )


if __name__ == "__main__":
    main()

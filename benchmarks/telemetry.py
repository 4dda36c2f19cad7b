"""The cost of telemetry: the same rounds without and with it, in one run.

    python -m benchmarks.telemetry [--pairs 16] [--envs 8] [--envs 32]

Off is the level OFF (life events only). Both sides have the I/O thread, the journal and a subscriber in a
process of its own. A pair plays one round twice from the same state, so both sides compute the same numbers;
which side goes first alternates. An epoch and its counterpart are a window, and the figure is the median of
the windows' ratios of env-epochs per second: on shared cores, rounds differ by several percent whatever is
collected. Ratios of complete rounds and of CPU time are printed too. Every epoch is collected here, without
the stride that keeps a run within its budget. `explained` is NORMAL, over NORMAL without the probabilities
and the value of each decision. Memory is what torch's profiler reports.
"""

from __future__ import annotations

import copy
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import click
import orjson
import torch
from torch.profiler import ProfilerActivity, profile

from esper_overwatch.protocol.messages.vocabulary import Level
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.daemon.daemon import Daemon
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts.host_group import HostGroup
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.policy.actions import ActionSpace

from .report import finish


class Played(NamedTuple):
    """Measurements of one round."""

    seconds: list[float]
    """Seconds of each epoch."""
    cpu: float
    """Seconds of the process."""
    reward: torch.Tensor


class Ratios(NamedTuple):
    """Throughput of a round with telemetry over that without."""

    epochs: list[float]
    round: float
    cpu: float


class Bench:
    """A daemon's parts in this process, driven round by round."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.epochs = daemon.config.episode_epochs

    def play(self, level: Level) -> Played:
        """One round at a level."""
        daemon, marks = self.daemon, [time.perf_counter()]
        if level != "OFF":
            daemon.plan.escalate(level, self.epochs, reason="benchmark")
        finished = daemon.hooks.on_epoch_end

        def marked(round: int, epoch: int) -> None:
            finished(round, epoch)
            marks.append(time.perf_counter())

        cpu = time.process_time()
        with patch.object(daemon.hooks, "on_epoch_end", marked):
            daemon.trainer.play(daemon.hooks)
        cpu = time.process_time() - cpu
        epochs = [after - before for before, after in pairwise(marks)]
        return Played(epochs, cpu, daemon.trainer.rollout.reward.clone())

    def play_unexplained(self) -> Played:
        """One round at NORMAL without the probabilities and the value of each decision."""
        agent = self.daemon.trainer.agent
        decide = agent._decide
        with (
            patch.object(ActionSpace, "op_probabilities", lambda _self, logits, *_: logits[0]),
            patch.object(agent, "_decide", lambda *given: (*decide(*given)[:-1], None)),
        ):
            return self.play("NORMAL")

    def pair(self, case: str, *, on_first: bool) -> Ratios:
        """Ratios of one round as the first of `CASES[case]` plays it over the second."""
        before = copy.deepcopy(self.daemon.trainer.state_dict())
        seen = {}
        for is_on in (on_first, not on_first):
            self.daemon.trainer.load_state_dict(copy.deepcopy(before))
            seen[is_on] = CASES[case][0 if is_on else 1](self)
        self.daemon.trainer.end_round(self.daemon.hooks)
        on, off = seen[True], seen[False]
        assert torch.equal(on.reward, off.reward), "telemetry changed what was trained"
        return Ratios(
            [b / a for a, b in zip(on.seconds, off.seconds, strict=True)],
            sum(off.seconds) / sum(on.seconds),
            off.cpu / on.cpu,
        )


CASES: dict[str, tuple[Callable[[Bench], Played], Callable[[Bench], Played]]] = {
    "debug_over_off": (lambda bench: bench.play("DEBUG"), lambda bench: bench.play("OFF")),
    "normal_over_off": (lambda bench: bench.play("NORMAL"), lambda bench: bench.play("OFF")),
    "explained_over_not": (lambda bench: bench.play("NORMAL"), Bench.play_unexplained),
}


def peak(group: HostGroup, layers: torch.Tensor | None) -> int:
    """Peak of the bytes that an epoch's training allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        group.train(1, 0, layers)
    with tempfile.TemporaryDirectory(prefix="esper-") as folder:
        path = Path(folder) / "trace.json"
        recording.export_chrome_trace(str(path))
        events = orjson.loads(path.read_bytes())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    return int(max(accumulate(change for _, change in changes)))


def added_memory(envs: int) -> int:
    """Bytes by which collecting all layers of all envs raises an epoch's peak, with seeds in all slots."""
    sets = [f"envs.count={envs}", f"envs.group_size={envs}", "task.batches_per_epoch=2"]
    population = Population(settings.load(sets=sets), load("digits"), "cpu")
    (group,) = population.groups
    group.plan_epoch(population.fully_seeded_topology(), 1, 0)
    everyone = torch.ones(envs, dtype=torch.bool)
    peak(group, everyone)
    without, collected = peak(group, None), peak(group, everyone)
    population.close()
    print(f"  {envs} envs: an epoch's peak is {without} bytes, {collected} with all layers collected")
    return max(0, collected - without)


def cost(envs: int, pairs: int) -> dict[str, float]:
    """Throughput at each level over that without telemetry."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="esper-") as folder:
        os.environ.update(ESPER_HOME=f"{folder}/home", XDG_RUNTIME_DIR=folder)
        sets = [f"envs.count={envs}", "telemetry.level=OFF", "telemetry.escalate_on=off", "device=cpu"]
        config = settings.load(sets=sets)
        with RunFolder.claim("bench") as run:
            daemon = Daemon(
                run, config, torch.device("cpu"), load("digits"), resume=None, process_group=ProcessGroup()
            )
            daemon.server.start()
            reader = subprocess.Popen(
                [sys.executable, "-m", "esper_overwatch.trainer", "tail", "-f", "bench"],
                stdout=subprocess.DEVNULL,
            )
            try:
                bench = Bench(daemon)
                bench.pair("debug_over_off", on_first=True)
                for name in CASES:
                    ratios = [bench.pair(name, on_first=bool(i % 2)) for i in range(pairs)]
                    windows = [window for pair in ratios for window in pair.epochs]
                    figures[f"{name}_{envs}"] = statistics.median(windows)
                    figures[f"{name}_by_rounds_{envs}"] = statistics.median(r.round for r in ratios)
                    figures[f"{name}_by_cpu_time_{envs}"] = statistics.median(r.cpu for r in ratios)
                    figures[f"{name}_spread_{envs}"] = statistics.pstdev(windows)
                    epochs, rounds, cpu = (
                        figures[f"{name}{by}_{envs}"] for by in ("", "_by_rounds", "_by_cpu_time")
                    )
                    print(
                        f"  {envs} envs, {name}: {epochs:.4f}; rounds {rounds:.4f}, CPU {cpu:.4f}",
                        flush=True,
                    )
            finally:
                reader.kill()
                reader.wait()
                daemon.server.close()
                daemon.trainer.population.close()
    return figures


@click.command()
@click.option("--pairs", default=16, show_default=True)
@click.option("--envs", multiple=True, default=(8, 32), show_default=True, help="May be given several times.")
def main(pairs: int, envs: tuple[int, ...]) -> None:
    """Print the throughput at NORMAL and DEBUG over that at OFF; ends with a JSON line."""
    torch.set_num_threads(1)
    figures: dict[str, float] = {"pairs": pairs}
    targets: dict[str, tuple[str, float]] = {}
    for count in envs:
        figures |= cost(count, pairs)
        figures[f"added_memory_{count}"] = added_memory(count)
        targets |= {
            f"normal_over_off_{count}": (">=", 0.99),
            f"explained_over_not_{count}": (">=", 0.99),
            f"debug_over_off_{count}": (">=", 0.90),
            f"added_memory_{count}": ("<=", 2**20),
        }
    finish("telemetry", {key: round(value, 4) for key, value in figures.items()}, targets)


if __name__ == "__main__":
    main()

"""The engine on a CUDA device: rates, waits, launches, busy share and memory, beside one module per env.

For each number of envs the complete loop trains some rounds by each plan; the first round, in which kernels
are chosen and graphs captured, does not count. Then the same hosts are trained one module after the other. Of
the largest number up to 64 a trace of some epochs gives launches, the share of the time in which a kernel
runs, and the share of that in which several streams run.

Each case is measured in a process of its own, the targets' first, and its figures are printed as a line of
JSON when it ends. One that fails or takes too long costs its figures alone: its line says why and how to
repeat it, and the next one follows. The closing line has every figure; without a device it says so, and the
exit code is 9.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import torch
from torch.profiler import ProfilerActivity, profile

from esper_overwatch.trainer.compute.device import DeviceError, prepare_device, resolve_device
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.data.dataset import Dataset
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hooks import Hooks
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.telemetry.stall_counters import StallCounters

from .engine import Sequential, plant
from .report import finish, machine

PLANS = {
    "gather": ("envs.plan=gather",),
    "masked": ("envs.plan=masked", "cuda.graphs=false"),
    "graphs": ("envs.plan=masked",),
    "groups": ("envs.plan=masked", "envs.group_size={half}"),
}
"""Ways to train, and their options; `groups`: halves on streams of their own, one validated while the other
trains."""
TRACED_ENVS = 64
"""Number of envs of the targets, if it is among those measured."""
TARGETS = {
    "ratio": (">=", 20.0),
    "busy_share": (">=", 0.8),
    "waits_per_epoch": ("<=", 1.0),
    "launches_per_epoch": ("<=", 1000.0),
}
NUM_SEQUENTIAL_EPOCHS = 3
"""Epochs of one module per env, the first one not counted."""


class Watch(Hooks):
    """Notes when epochs end and counts the waits of those that are counted.

    Args:
        rounds: how many to train; the first one is not counted.
    """

    def __init__(self, rounds: int, device: torch.device) -> None:
        self.rounds, self.waits = rounds, 0
        self.ends: list[list[float]] = [[] for _ in range(rounds)]
        self._stalls = StallCounters(device, syncs_every=1)
        self._round = 0

    def wants_round(self, finished: int) -> bool:
        return finished < self.rounds

    def on_round_begin(self, round: int) -> None:
        self._round = round - 1
        self._stalls.begin_round()
        self._stalls.take(0)

    def passes_epoch_end(self, round: int, epoch: int) -> bool:
        self.on_epoch_end(round, epoch)
        return True

    def on_epoch_end(self, round: int, epoch: int) -> None:  # noqa: ARG002
        self.ends[self._round].append(time.perf_counter())
        if self._round > 0:
            self.waits += 1 + (self._stalls.take(0).device_syncs or 0)

    @property
    def seconds(self) -> float:
        """Median of an epoch, without those of the first round."""
        return statistics.median(b - a for ends in self.ends[1:] for a, b in pairwise(ends))


def measure(n: int, plan: str, epochs: int, rounds: int, device: torch.device) -> dict[str, float]:
    """Train complete rounds by one plan."""
    trainer = trainer_of(n, plan, epochs, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    watch = Watch(rounds, device)
    trainer.run(watch)
    trainer.population.close()
    failed = [f"{p.name}: {p.reason}" for p in trainer.graphs.programs.values() if p.reason]
    for line in failed:
        click.echo(f"  without a graph: {line}")
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else float("nan")
    return {
        f"{plan}_{n}_per_second": n / watch.seconds,
        f"{plan}_{n}_waits_per_epoch": watch.waits / (epochs * (rounds - 1)),
        f"{plan}_{n}_programs_without_graph": float(len(failed)),
        f"{plan}_{n}_peak_mib": peak,
    }


def trainer_of(n: int, plan: str, epochs: int, device: torch.device) -> Trainer:
    options = [option.format(half=n // 2) for option in PLANS[plan]]
    config = settings.load(sets=[f"envs.count={n}", f"episode_epochs={epochs}", *options])
    return Trainer(config, load("digits", device), device)


def measure_sequential(n: int, device: torch.device) -> dict[str, float]:
    """Train the same hosts one module after the other, with seeds at the usual occupancy."""
    config = settings.load(sets=[f"envs.count={n}"])
    data = load("digits", device)
    assert isinstance(data, Dataset)
    population = Population(config, data, device, execution=Execution(group_size=n))
    population.begin_episode(1)
    with device:  # makes the tensors of the modules there
        plant(population)
        modules = Sequential(config, data, population)
        seconds = [seconds_of(partial(epoch_of, modules, e), device) for e in range(1, NUM_SEQUENTIAL_EPOCHS)]
    population.close()
    return {f"sequential_{n}_per_second": n / min(seconds[1:])}


def epoch_of(modules: Sequential, epoch: int) -> None:
    modules.train(epoch)
    modules.validate()


def seconds_of(work: Callable[[], None], device: torch.device) -> float:
    """Seconds until the device has done the work."""
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


class Tracing(Watch):
    """Traces the epochs of the second round but the first two; those of the third round are timed."""

    def __init__(self, device: torch.device, epochs: int) -> None:
        super().__init__(3, device)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self.profile, self.num_epochs = profile(activities=activities), epochs - 2

    def on_epoch_end(self, round: int, epoch: int) -> None:
        super().on_epoch_end(round, epoch)
        if (self._round, len(self.ends[1])) == (1, 2):
            self.profile.start()
        if (self._round, len(self.ends[1])) == (1, self.num_epochs + 2):
            self.profile.stop()


def measure_trace(n: int, plan: str, epochs: int, device: torch.device, path: Path) -> dict[str, float]:
    """Launches an epoch and busy share by a trace, which is written to `path`."""
    trainer = trainer_of(n, plan, epochs, device)
    watch = Tracing(device, epochs)
    trainer.run(watch)
    trainer.population.close()
    watch.profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    figures = of_trace(events, watch.num_epochs, statistics.median(b - a for a, b in pairwise(watch.ends[2])))
    return {f"{plan}_{n}_{name}": value for name, value in figures.items()}


def of_trace(events: list[Mapping[str, Any]], epochs: int, seconds: float) -> dict[str, float]:
    """Figures of a trace in Chrome's format.

    Args:
        epochs: that it spans.
        seconds: of an epoch without a trace, which busy time is a share of.
    """
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    launching = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"}
    launching.add("cudaGraphLaunch")
    busy, overlap = at_work(work)
    return {
        "launches_per_epoch": (sum(e.get("name") in launching for e in events) or float("nan")) / epochs,
        "kernels_per_epoch": sum(e["cat"] == "kernel" for e in work) / epochs,
        "copies_per_epoch": sum(e["cat"] == "gpu_memcpy" for e in work) / epochs,
        "streams": float(len({e["args"]["stream"] for e in work})),
        "busy_share": busy / 1e6 / epochs / seconds if work else float("nan"),
        "overlap_share": overlap / busy if work else float("nan"),
    }


def at_work(work: list[Mapping[str, Any]]) -> tuple[float, float]:
    """Microseconds in which a device did any of this work, and in which several streams did at once."""
    edges = [(e["ts"], 1, e["args"]["stream"]) for e in work]
    edges += [(e["ts"] + e["dur"], -1, e["args"]["stream"]) for e in work]
    running: Counter[int] = Counter()
    busy, overlap, before = 0.0, 0.0, 0.0
    for time_, change, stream in sorted(edges):
        streams = len(running)
        busy += (time_ - before) * (streams > 0)
        overlap += (time_ - before) * (streams > 1)
        running[stream] += change
        running += Counter()  # drops those at 0
        before = time_
    return busy, overlap


@dataclass(frozen=True)
class Options:
    """How each case is measured."""

    device: str
    rounds: int
    epochs: int
    trace: Path | None

    @property
    def words(self) -> list[str]:
        """Arguments for a process that measures one case."""
        words = ["--device", self.device, "--rounds", str(self.rounds), "--epochs", str(self.epochs)]
        return [*words, *(["--trace", str(self.trace)] if self.trace else [])]


def list_cases(envs: Sequence[int]) -> list[str]:
    """Names of all cases; what the targets need comes first."""
    first = traced_envs(envs)
    cases = [f"{kind}_{first}" for kind in ("graphs", "sequential", "trace-graphs", "gather", "groups")]
    cases += [f"{kind}_{first}" for kind in ("masked", "trace-gather", "trace-groups")]
    others = [n for n in envs if n != first]
    return (
        cases
        + [f"{kind}_{n}" for n in others for kind in ("graphs", "sequential", "gather", "groups")]
        + [f"masked_{n}" for n in others]
    )


def traced_envs(envs: Sequence[int]) -> int:
    """The number of envs that the targets are about, if it is among those measured."""
    return max((n for n in envs if n <= TRACED_ENVS), default=min(envs))


def measure_case(case: str, options: Options) -> dict[str, float]:
    """The figures of one case, in this process."""
    kind, _, number = case.partition("_")
    n, device = int(number), resolve_device(options.device)
    torch.set_num_threads(1)
    prepare_device(settings.load().cuda, device)
    if kind == "sequential":
        return measure_sequential(n, device)
    if kind in PLANS:
        return measure(n, kind, options.epochs, options.rounds, device)
    plan = kind.removeprefix("trace-")
    with tempfile.TemporaryDirectory() as folder:
        path = options.trace if options.trace and plan == "graphs" else Path(folder) / "trace.json"
        return measure_trace(n, plan, options.epochs, device, path)


def measure_apart(command: Sequence[str], seconds: float) -> tuple[dict[str, float], str]:
    """The figures that a process prints as its last line, and why there are none.

    Args:
        seconds: after which it is ended.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {}, f"took longer than {seconds:.0f} s"
    *lines, last = done.stdout.splitlines() or [""]
    click.echo("".join(f"{line}\n" for line in lines), nl=False)
    if done.returncode == 0:
        return {key: float("nan") if v is None else v for key, v in json.loads(last).items()}, ""
    said = done.stderr.splitlines()
    click.echo("\n".join(said[-20:]), err=True)
    return {}, f"exit code {done.returncode}: {next((line for line in reversed(said) if line.strip()), last)}"


def measure_all(
    cases: Sequence[str], options: Options, minutes: float, case_seconds: float
) -> tuple[dict[str, float], list[str]]:
    """Each case apart, as long as there is time.

    Returns:
        all figures, and the cases that have none.
    """
    figures: dict[str, float] = {}
    missing: list[str] = []
    end = time.monotonic() + 60 * minutes
    for case in cases:
        command = [sys.executable, "-m", "benchmarks.gpu", *options.words, "--case", case]
        seconds = min(case_seconds, end - time.monotonic())
        found, reason = measure_apart(command, seconds) if seconds > 0 else ({}, "no time was left")
        line: dict[str, object] = {"case": case, "figures": rounded(found)}
        if reason:
            missing.append(case)
            line |= {"failed": reason, "repeat": shlex.join(command)}
        print(json.dumps(line), flush=True)
        figures |= found
    return figures, missing


def rounded(figures: Mapping[str, float]) -> dict[str, float | None]:
    """For JSON, which has no NaN."""
    return {key: float(f"{v:.6g}") if math.isfinite(v) else None for key, v in figures.items()}


def describe(device: torch.device) -> dict[str, object]:
    """Describe the device and its driver, for the first line."""
    if device.type != "cuda":
        return {"device": str(device), "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "torch": torch.__version__,
    }


@click.command(help=__doc__)
@click.option("--device", "name", default="cuda", show_default=True, help="cpu rehearses what needs no GPU")
@click.option("--envs", multiple=True, type=int, default=(4, 16, 64, 256), show_default=True)
@click.option(
    "--rounds", default=3, show_default=True, type=click.IntRange(2), help="per plan, first included"
)
@click.option("--epochs", default=8, show_default=True, type=click.IntRange(4), help="of a round")
@click.option("--minutes", default=25.0, show_default=True, help="after which no further case is begun")
@click.option("--case-seconds", default=180.0, show_default=True, help="after which a case is ended")
@click.option("--case", help="measure this one alone, as graphs_64 or trace-graphs_64, in this process")
@click.option(
    "--trace", type=click.Path(path_type=Path), help="where to keep the trace, for chrome://tracing"
)
def main(
    name: str,
    envs: tuple[int, ...],
    rounds: int,
    epochs: int,
    minutes: float,
    case_seconds: float,
    case: str | None,
    trace: Path | None,
) -> None:
    options = Options(name, rounds, epochs, trace)
    try:
        device = resolve_device(name)
    except DeviceError as error:
        print(json.dumps({"name": "gpu", "held": None, "skipped": str(error), "machine": machine()}))
        sys.exit(error.exit_code)
    if case:
        print(json.dumps(rounded(measure_case(case, options))), flush=True)
        return
    print(json.dumps(describe(device)), flush=True)
    figures, missing = measure_all(list_cases(envs), options, minutes, case_seconds)
    for n in envs:
        sequential = figures.get(f"sequential_{n}_per_second", math.nan)
        rates = {plan: figures.get(f"{plan}_{n}_per_second", math.nan) for plan in PLANS}
        figures |= {f"{plan}_{n}_ratio": rate / sequential for plan, rate in rates.items()}
    if missing:
        click.echo(f"without figures: {', '.join(missing)}; their lines say why and how to repeat each")
    targets = {f"graphs_{traced_envs(envs)}_{key}": bound for key, bound in TARGETS.items()}
    finish("gpu", dict.fromkeys(targets, math.nan) | figures, targets)


if __name__ == "__main__":
    main()

"""Env-epochs per second of the stacked engine, against one module per env, in one run.

Both train and validate the same hosts with the same seeds on the same images; so does the engine by torch's
convolutions (envs.convolution=grouped), where the first is run natively. Windows of one epoch alternate
and medians are compared, so that other load on the machine meets both; small populations have short windows
and get more of them. With one thread the times are CPU time; with more, which the modules cannot use, wall
time.

Then complete rounds by the real daemon: env-epochs per second of complete epochs, their phases, the daemon's
peak memory, and the cost of decisions, actions, rewards and telemetry of 256 envs over that of 4.
"""

from __future__ import annotations

import itertools
import statistics
import time
from functools import partial
from itertools import pairwise

import click
import msgspec
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, Stage, Style
from esper_overwatch.trainer.config.host_options import ValidationConfig
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.dataset import Dataset
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hosts.autotune import choose_execution, create_population
from esper_overwatch.trainer.hosts.population import Population
from tests.trainer.oracle import Env, env_from

from .daemon_rounds import run
from .report import finish

CPU = torch.device("cpu")
TASKS = {
    "digits": ("digits", (8, 8, 8), 1, (4, 16, 64)),
    "digits_3x3": ("digits", (8, 16, 32), 3, (4, 16, 64)),
    "synthetic": ("synthetic", (8, 16, 32), 3, (4, 16)),
}
"""Name -> dataset, widths, kernel, and the numbers of envs to measure."""
CALIBRATION_BATCHES = ValidationConfig().calibration_batches
TARGETS = {"digits": 2.0, "digits_3x3": 2.0, "synthetic": 1.2}
GROUPED_TARGET = 1.4
"""How many times as fast as by torch's convolutions the hosts are to be, where they are 3x3."""
MIN_SECONDS = 40.0
"""Least time for which a size is measured."""
SEEDS_PER_ENV = 0.57
"""Live seeds per env; an agent in training keeps about as many."""


def config(task: str, n: int, threads: int, plan: str, convolution: str = "auto") -> Config:
    dataset, channels, kernel, _ = TASKS[task]
    tree = {
        "task": {"dataset": dataset},
        "host": {"channels": channels, "kernel": kernel},
        "envs": {"count": n, "threads": threads, "plan": plan, "convolution": convolution},
    }
    return msgspec.convert(tree, Config)


def plant(population: Population) -> None:
    """Seeds at the occupancy above: every slot and blueprint in turn, half isolated, half blended."""
    n, slots = population.table.shape
    table = population.table
    count = max(1, round(SEEDS_PER_ENV * n))
    index = torch.arange(count)
    env, slot = (index * 7) % n, (index * 5) % slots
    table.blueprint[env, slot] = index % len(population.pool.kinds)
    table.style[env, slot] = torch.where(index % 5 == 0, int(Style.MULTIPLY), int(Style.ADD))
    table.stage[env, slot] = int(Stage.GERMINATED)
    set_topology(population)
    population.run_epoch(1, 0)
    blended = table.stage.bool() & (table.blueprint % 2 == 1)
    table.stage[table.stage.bool()] = int(Stage.TRAINING)
    table.stage[blended] = int(Stage.HOLDING)
    table.alpha[blended] = 1.0
    set_topology(population)


def set_topology(population: Population) -> None:
    """Let the population train the seeds that its table holds now."""
    table = population.table
    population.set_topology(table.stage.cpu(), table.blueprint.cpu(), table.style.cpu())


class Sequential:
    """Envs as one module each, of which only the live seeds run."""

    def __init__(self, cfg: Config, data: Dataset, population: Population) -> None:
        state, table = population.state_dict(), population.table
        self._envs: list[Env] = [env_from(cfg, data, population, state, i)[0] for i in range(table.shape[0])]
        for env in self._envs:
            env.keeps_gradients = False
        self._blended = [
            [s for s in range(table.shape[1]) if int(table.stage[i, s]) in BLENDED]
            for i in range(table.shape[0])
        ]
        self._data, self._steps = data, cfg.task.batches_per_epoch
        self._inputs: list[Tensor] = []
        self._batches = [group.batches for group in population.groups]

    def train(self, epoch: int) -> None:
        for step in range(epoch * self._steps, (epoch + 1) * self._steps):
            self._inputs = []
            index = torch.cat([batches.indices(1, step) for batches in self._batches])
            for env, mine in zip(self._envs, index, strict=True):
                self._inputs.append(env.inputs(self._data.train, mine))
                env.step(self._inputs[-1], self._data.train.labels[mine])

    def validate(self) -> None:
        for env, slots, inputs in zip(self._envs, self._blended, self._inputs, strict=True):
            env.measure([inputs] * CALIBRATION_BATCHES)
            env.validate(self._data.val)
            for slot in slots:
                env.measure([inputs] * CALIBRATION_BATCHES, without=[slot])
                env.validate(self._data.val, without=[slot])


def measure(task: str, n: int, threads: int, plan: str, windows: int) -> dict[str, float]:
    data = load(TASKS[task][0])
    assert isinstance(data, Dataset)
    cfg = config(task, n, threads, plan)
    population = create_population(cfg, data, CPU, choose_execution(cfg, data, CPU))
    cfg_by_torch = config(task, n, threads, plan, "grouped")
    by_torch = create_population(cfg_by_torch, data, CPU, choose_execution(cfg_by_torch, data, CPU))
    for one in (population, by_torch):
        one.begin_episode(1)
        plant(one)
    sequential = Sequential(cfg, data, population)
    clock = time.process_time if threads == 1 else time.perf_counter
    rows: list[list[float]] = []
    shares = []
    begun = time.perf_counter()
    for epoch in itertools.count(1):
        if epoch > windows + 1 and time.perf_counter() - begun > MIN_SECONDS:
            break
        times = [clock()]
        seconds = population.run_epoch(1, epoch).seconds
        times.append(clock())
        works = (partial(sequential.train, epoch), sequential.validate, partial(by_torch.run_epoch, 1, epoch))
        for work in works:
            work()
            times.append(clock())
        rows.append([after - before for before, after in pairwise(times)])
        shares.append(seconds["train"] / sum(seconds.values()))
    population.close()
    by_torch.close()
    stacked, loop_train, loop_val, grouped = (
        statistics.median(column[1:]) for column in zip(*rows, strict=True)
    )
    share = statistics.median(shares[1:])
    return {
        "per_second": n / stacked,
        "modules_per_second": n / (loop_train + loop_val),
        "ratio": statistics.median((row[1] + row[2]) / row[0] for row in rows[1:]),
        "grouped_ratio": statistics.median((row[1] + row[2]) / row[3] for row in rows[1:]),
        "over_grouped": statistics.median(row[3] / row[0] for row in rows[1:]),
        "grouped_per_second": n / grouped,
        "train_ratio": loop_train / (stacked * share),
        "train_percent": 100 * share,
        "validate_percent": 100 * (1 - share),
    }


def daemon_epochs(task: str, n: int, threads: int) -> dict[str, float]:
    """Figures of the real daemon; prints a line about them."""
    dataset, channels, kernel, _ = TASKS[task]
    sets = {"task.dataset": dataset, "host.channels": ",".join(map(str, channels)), "host.kernel": kernel}
    costs = run({**sets, "envs.count": n, "envs.threads": threads, "episode_epochs": 6})
    total = sum(costs.phases.values())
    shares = {name: 100 * seconds / total for name, seconds in costs.phases.items()}
    text = ", ".join(f"{name} {share:.1f}" for name, share in sorted(shares.items(), key=lambda kv: -kv[1]))
    click.echo(f"{task:9} {n:3} {n / costs.seconds:13.1f} {costs.rss / 2**20:9.0f}  {text}")
    figures = {f"{name}_percent": share for name, share in shares.items()}
    return {"loop_per_second": n / costs.seconds, "peak_mib": costs.rss / 2**20, **figures}


def management_ratio() -> float:
    """Cost of an epoch of 256 envs over that of 4, without training and validation."""
    costs_of = {
        n: [run({"envs.count": n, "episode_epochs": 8, "task.batches_per_epoch": 1}) for _ in range(2)]
        for n in (4, 256)
    }
    few, many = (min(costs.management for costs in costs_of[n]) for n in (4, 256))
    click.echo(
        f"decide, act, reward, telemetry: {1e3 * few:.1f} ms with 4 envs, {1e3 * many:.1f} ms with 256"
    )
    return many / few


@click.command(help=__doc__)
@click.option("--threads", default=1, show_default=True, help="worker threads of the stacked engine")
@click.option("--plan", type=click.Choice(["gather", "masked"]), default="gather", show_default=True)
@click.option("--windows", default=7, show_default=True, help="epochs measured per size, at least")
@click.option("--engine-only", is_flag=True, help="without the rounds by the real daemon")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(TASKS)), help="default: all")
def main(threads: int, plan: str, windows: int, engine_only: bool, tasks: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    targets: dict[str, tuple[str, float]] = {}
    click.echo(
        "task          N  env-epochs/s  by modules  ratio  by grouped  over grouped"
        "  training alone  train %  validate %"
    )
    for task in tasks or TASKS:
        for n in TASKS[task][3]:
            row = measure(task, n, threads, plan, windows)
            click.echo(
                f"{task:11} {n:3} {row['per_second']:13.1f} {row['modules_per_second']:11.1f} "
                f"{row['ratio']:6.2f} {row['grouped_ratio']:11.2f} {row['over_grouped']:13.2f} "
                f"{row['train_ratio']:15.2f} {row['train_percent']:8.0f} "
                f"{row['validate_percent']:11.0f}"
            )
            figures |= {f"{task}_{n}_{name}": value for name, value in row.items()}
            targets[f"{task}_{n}_ratio"] = (">=", TARGETS[task])
            if TASKS[task][2] == 3:
                targets[f"{task}_{n}_over_grouped"] = (">=", GROUPED_TARGET)
    if engine_only:
        finish("engine", figures, targets)
    click.echo("daemon      N  env-epochs/s  peak MiB  percent of an epoch")
    for task in tasks or TASKS:
        for n in TASKS[task][3]:
            row = daemon_epochs(task, n, threads)
            figures |= {f"{task}_{n}_{name}": value for name, value in row.items()}
    figures["management_256_over_4"] = management_ratio()
    targets["management_256_over_4"] = ("<=", 3.0)
    finish("engine", figures, targets)


if __name__ == "__main__":
    main()

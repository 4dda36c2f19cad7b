"""Choice of the group size and of the convolution of hosts: made at the first start.

More hosts in a group mean fewer operations to issue, but a working set that falls out of the caches. On a CPU
rules decide, so that two runs with one seed are the same bit for bit. On a GPU it is measured: throwaway
groups of growing size take a few real steps, and the growing ends where it no longer pays. Groups of that
size then try both convolutions and, as whole epochs, both plans, whose masked one is replayed as CUDA graphs,
and bf16.
What is chosen is tried before the run begins: it has to fit into memory.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import torch
from msgspec import structs

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.machine.cgroup import count_cores
from esper_overwatch.trainer.compute import native_convolution
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import NUM_CHECKED_CALLS, CudaGraphs
from esper_overwatch.trainer.compute.device import is_out_of_memory, return_freed_memory
from esper_overwatch.trainer.compute.execution_plan import Amp, Convolution, Execution, Plan
from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.task import Task

from . import precision
from .population import Population
from .task_defaults import build_model

logger = logging.getLogger(__name__)

MIN_ACTIVATION_BYTES = 1 << 20
"""Bytes of the largest activation of a group that is worth a thread of its own on a CPU: what a smaller one
computes is outweighed by its operations, which threads issue in turn."""
TIE_RATIO = 1.05
"""Cost of a host, relative to the best group size, up to which a larger group is preferred."""
ABANDON_RATIO = 1.25
"""Cost of a host, relative to the best group size, from which no larger group is measured."""
MIN_STEPS = 3
"""Least steps per size, the first one not counted."""
MIN_SECONDS = 0.04
"""A size is measured for at least this long, or `MIN_STEPS` steps if they take longer."""
NUM_SWEEPS = 3
"""Rounds in which all sizes, and both convolutions, are measured, so that a second of other load does not
decide."""
MAX_UNFOLD_RATIO = 0.6
"""Unfolded convolutions are chosen where a step takes at most so much of one with grouped ones."""
AMP_TRIED: tuple[Amp, Amp] = ("off", "bf16")
MAX_BF16_RATIO = 0.9
"""bf16, which rounds, is chosen where an epoch takes at most so much of one in float32."""
NUM_EPOCHS = 3
"""Least epochs per plan, those not counted in which graphs are captured and compared."""
CLEAR_RATIO = 1.25
"""A plan that is faster by this factor is chosen at once; nearer ones are measured `NUM_SWEEPS` times."""
MAX_ACTIVATION_BYTES = 4 << 20
"""Bytes of the largest activation of a group of more than two hosts on a CPU, at most: far beyond its caches
larger groups are slower, by how much depends on what else the machine does, and take memory without need."""
RESERVED_BYTES = 192 << 20
"""Bytes left free while hosts are tried, for what begins later: updates, validation, the wire."""


class DoesNotFit(EsperError):
    """The hosts do not fit into the memory of the device."""

    exit_code = 9


def largest_size(config: Config, data: Task, device: torch.device) -> int:
    """Hosts of the largest group that makes sense: on a CPU every thread is fed where each has enough to do.

    Its caches suffice, too.

    docs/lab/benchmarks.md says what a host costs in it beside the best size, and what two threads gain.
    """
    hosts = config.envs.count
    if device.type != "cpu":
        return hosts
    threads = config.envs.threads or count_cores()
    model, _ = build_model(config, data)
    activation_bytes = model.widest * config.task.batch_size * torch.float32.itemsize
    least = max(2, -(-MIN_ACTIVATION_BYTES // activation_bytes))
    groups = min(threads, max(1, hosts // least))
    return min(-(-hosts // groups), max(2, MAX_ACTIVATION_BYTES // activation_bytes))


def candidate_sizes(largest: int) -> list[int]:
    """Sizes worth measuring, ascending: powers of 2 from 2 on, and the largest.

    A group of one is none of them: a CPU computes it by other kernels.
    """
    return [*(1 << power for power in range(1, largest.bit_length()) if 1 << power < largest), largest]


def choose_size(sweeps: Iterable[Iterable[tuple[int, float]]]) -> int:
    """The size of which a host costs least, the larger one on near ties; 0 where nothing was measured.

    Args:
        sweeps: each (size, seconds per host) for ascending sizes, read no further than it pays.
    """
    seconds: dict[int, float] = {}
    for sweep in sweeps:
        best = float("inf")
        for size, cost in sweep:
            seconds[size] = min(cost, seconds.get(size, cost))
            best = min(best, seconds[size])
            if seconds[size] > best * ABANDON_RATIO:
                break
    return max(
        (size for size, cost in seconds.items() if cost <= min(seconds.values()) * TIE_RATIO), default=0
    )


@dataclass(frozen=True)
class StepTimer:
    """Throwaway groups of one task, on one thread."""

    config: Config
    data: Task
    device: torch.device
    convolution: Convolution = "grouped"
    plan: Plan = "gather"
    amp: Amp = "off"

    def seconds_per_host(self, sizes: list[int]) -> Iterator[tuple[int, float]]:
        """Yield sizes and the seconds per host of a training step in such a group, while memory lasts."""
        for size in sizes:
            try:
                yield size, self._step(size) / size
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                return

    def seconds_of_epoch(self, size: int, graphs: CudaGraphs) -> float:
        """Seconds of a whole epoch of one group, as in a run; infinite where memory does not suffice.

        Args:
            graphs: a trial copy of the run's; a failure is noted in it.
        """
        try:
            seconds = self._epoch(size, graphs)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            seconds = math.inf
        graphs.programs.clear()
        if self.device.type == "cuda":
            gc.collect()  # graphs hold their memory, and what they were made of holds them in a circle
            torch.cuda.empty_cache()
        return seconds

    def _epoch(self, size: int, graphs: CudaGraphs) -> float:
        """Seconds of one epoch, with a seed in every second slot: the best of some."""
        population = self._population(size)
        times: list[float] = []

        def run(epoch: int) -> None:
            population.set_topology(topology.stage, topology.blueprint, topology.style)
            population.run_epoch(0, epoch % self.config.episode_epochs)

        try:
            population.compile(Compiler("off", self.device), graphs)
            topology = population.fully_seeded_topology(every=2)
            for epoch in range(NUM_CHECKED_CALLS + NUM_EPOCHS):
                times.append(self._timed(partial(run, epoch)))
        finally:
            population.close()
        return min(times[NUM_CHECKED_CALLS:])

    def _population(self, size: int) -> Population:
        """One group of `size` hosts."""
        envs = structs.replace(
            self.config.envs,
            count=size,
            group_size=size,
            threads=1,
            convolution=self.convolution,
            plan=self.plan,
        )
        amp = structs.replace(self.config.amp, dtype=self.amp)
        config = structs.replace(self.config, envs=envs, amp=amp)
        execution = Execution.as_configured(config)
        return Population(config, self.data, self.device, execution=execution)

    def _step(self, size: int) -> float:
        """Seconds of one step: the best of some."""
        population = self._population(size)
        try:
            group = population.groups[0]
            group.plan_epoch(population.fully_seeded_topology(every=2), 0, 0)
            times: list[float] = []
            while len(times) <= MIN_STEPS or sum(times[1:]) < MIN_SECONDS:
                times.append(self._timed(lambda: group.try_step(len(times))))
        finally:
            population.close()
        return min(times[1:])

    def _timed(self, work: Callable[[], None]) -> float:
        """Seconds; on a CPU its own, which what else the machine does hardly changes."""
        if self.device.type == "cpu":
            begun = time.thread_time()
            work()
            return time.thread_time() - begun
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize(self.device)
        return time.perf_counter() - begun


def choose_execution(
    config: Config, data: Task, device: torch.device, graphs: CudaGraphs | None = None
) -> Execution:
    """Choose the execution of a new run here: as configured, the rest by rule or by measurement.

    Args:
        graphs: of the run; None = without.

    Raises:
        ConfigError: native convolutions are asked for where they cannot be had.
    """
    reason = native_convolution.absence() if device.type == "cpu" else f"{device} is not a CPU"
    if config.envs.convolution == "native" and reason:
        raise ConfigError(f"envs.convolution = native: {reason}; or choose grouped")
    if device.type != "cpu":
        return measure_execution(config, data, device, graphs or CudaGraphs(on=False))
    execution = Execution.as_configured(config)
    if config.envs.convolution == "auto" and data.kind == "images" and execution.amp == "off":
        if config.compile.mode != "off":
            reason = "torch.compile does not trace calls of the kernel"
        if reason:
            logger.info("hosts convolve by torch, not natively: %s", reason)
        else:
            execution = structs.replace(execution, convolution="native")
    size = config.envs.group_size or largest_size(config, data, device)
    return structs.replace(execution, group_size=min(size, config.envs.count))


def measure_execution(config: Config, data: Task, device: torch.device, graphs: CudaGraphs) -> Execution:
    """Measure execution choices by the clock; takes a second or two for small hosts, more for large ones.

    Args:
        graphs: of the run; after a capture that fails here it makes none.
    """
    execution = Execution.as_configured(config)
    bench = StepTimer(config, data, device, plan=execution.plan, amp=execution.amp)
    if not config.envs.group_size:
        sizes = candidate_sizes(largest_size(config, data, device))
        sweeps = (bench.seconds_per_host(sizes) for _ in range(NUM_SWEEPS))
        size = choose_size(sweeps) if len(sizes) > 1 else sizes[0]
        execution = structs.replace(execution, group_size=size or sizes[0])
    if config.envs.convolution == "auto":
        execution = structs.replace(execution, convolution=_faster(bench, execution.group_size))
    if config.envs.plan == "auto" and graphs.on:
        bench = replace(bench, convolution=execution.convolution)
        execution = structs.replace(execution, plan=_faster_plan(bench, execution.group_size, graphs))
    if config.amp.dtype == "auto" and precision.has_bf16(device):
        bench = replace(bench, convolution=execution.convolution, plan=execution.plan)
        if _bf16_wins(bench, execution.group_size, graphs):
            execution = structs.replace(execution, amp="bf16")
    return_freed_memory()
    return execution


def _faster_plan(bench: StepTimer, size: int, graphs: CudaGraphs) -> Plan:
    """`masked` only where its graphs are faster, near ties in every trial: two starts should choose alike."""
    for _ in range(NUM_SWEEPS):
        trial = graphs.trial()
        gather, masked = (replace(bench, plan=plan).seconds_of_epoch(size, trial) for plan in get_args(Plan))
        graphs.failure = trial.failure
        logger.info("an epoch of %d hosts: gather %.4g s, masked %.4g s", size, gather, masked)
        if trial.failure or masked >= gather:
            return "gather"
        if masked * CLEAR_RATIO <= gather:
            break
    return "masked"


def _bf16_wins(bench: StepTimer, size: int, graphs: CudaGraphs) -> bool:
    """True where epochs in bf16 are faster by far in every trial.

    Alphas, masks, losses and statistics are float32: of small hosts a step has more kernels with casts, and
    three quarters of its bytes stay as they are.
    """
    for _ in range(NUM_SWEEPS):
        plain, half = (replace(bench, amp=amp).seconds_of_epoch(size, graphs.trial()) for amp in AMP_TRIED)
        logger.info("an epoch of %d hosts: float32 %.4g s, bf16 %.4g s", size, plain, half)
        if not half < MAX_BF16_RATIO * plain:
            return False
    return True


def _faster(bench: StepTimer, size: int) -> Convolution:
    """`unfold` only where it is faster by far in every trial, so that two starts choose the same."""
    return "unfold" if all(_unfold_wins(bench, size) for _ in range(NUM_SWEEPS)) else "grouped"


def _unfold_wins(bench: StepTimer, size: int) -> bool:
    grouped, unfold = (
        dict(replace(bench, convolution=name).seconds_per_host([size])) for name in ("grouped", "unfold")
    )
    return size in grouped and size in unfold and unfold[size] < MAX_UNFOLD_RATIO * grouped[size]


def create_population(
    config: Config, data: Task, device: torch.device, execution: Execution, first_env: int = 0
) -> Population:
    """The run's hosts, after a step of all of them that shows that they fit into memory.

    Raises:
        DoesNotFit: they do not; where a size was set, the message names one that would.
    """
    if execution.convolution == "native" and device.type == "cpu" and native_convolution.absence():
        logger.warning(
            "the run has convolved natively so far; here torch does, with other last bits: %s",
            native_convolution.absence(),
        )
        execution = structs.replace(execution, convolution="grouped")
    size, is_serial = execution.group_size, False
    while True:
        chosen = structs.replace(execution, group_size=size)
        population = _tried(config, data, device, chosen, first_env, is_serial=is_serial)
        if population is not None:
            break
        if device.type == "cuda" and not is_serial and size < config.envs.count:
            is_serial = True  # one group's memory goes to the next, and results stay those of this size
            continue
        is_serial = True
        if size == 1:
            raise DoesNotFit(
                f"{config.envs.count} hosts do not fit into the memory of {device}, not even one at a time: "
                "lower envs.count, task.batch_size or the width of the hosts"
            )
        size //= 2
    return_freed_memory()
    if size != execution.group_size and config.envs.group_size:
        population.close()
        raise DoesNotFit(
            f"envs.group_size = {config.envs.group_size}: a step of that many hosts does not fit into the "
            f"memory of {device}; {size} would"
        )
    return population


def _tried(
    config: Config, data: Task, device: torch.device, execution: Execution, first_env: int, *, is_serial: bool
) -> Population | None:
    """A population that has made a step, or None where memory ran out."""
    population = reserve = None
    try:
        population = Population(
            config, data, device, execution=execution, first_env=first_env, is_serial=is_serial
        )
        reserve = torch.empty(RESERVED_BYTES, dtype=torch.uint8, device=device)
        population.warm_up_memory()
        return population
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if population is not None:
            population.close()
        del population, reserve, error
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None

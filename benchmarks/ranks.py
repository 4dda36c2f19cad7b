"""The control plane of many ranks: what an epoch costs rank 0 in bytes and CPU, for 2 to 256 ranks.

Reports are those of a real trainer of four envs, at NORMAL and with the layers of all envs. Rank 0's part
(decode, events, merge) runs as in a run, on as many reports as there would be ranks; the exchange itself runs
over gloo among processes that do nothing else, as many as a small machine bears.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import click
import msgspec
import torch
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import start_processes

from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.load import load as configured
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.hooks import Hooks, StopRun
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.ranks import orders
from esper_overwatch.trainer.ranks.rank_report import RankReport, encode
from esper_overwatch.trainer.ranks.rank_zero import RankZero
from esper_overwatch.trainer.telemetry.transfer import HostFrame

from .report import finish

RANKS = (2, 8, 16, 64, 256)
PROCESSES = (2, 4, 8)
ENVS = 4
"""Envs of each rank."""
SETS = (f"envs.count={ENVS}", "envs.threads=1", "task.batches_per_epoch=1", "task.batch_size=16")
PHASES = ("train", "transfer", "reward", "decide", "telemetry", "commands")
WARM_UP, EPOCHS = 2, 20
TARGETS = {"cpu_ms_64": ("<=", 50.0), "cpu_ms_layers_64": ("<=", 250.0)}
"""5 % of an epoch of a second, in which 64 ranks train 256 envs; 25 % where an operator wants all layers."""


class FrameHooks(Hooks):
    """Keeps the newest frame of an epoch and stops after two."""

    def __init__(self, layer_envs: torch.Tensor | None) -> None:
        self._layer_envs = layer_envs
        self.report = RankReport({})

    @property
    def layer_envs(self) -> torch.Tensor | None:
        return self._layer_envs

    def wants_round(self, finished: int) -> bool:
        return finished < 1

    def on_frame(self, frame: HostFrame, layers: Sequence[str]) -> None:
        self.report = RankReport.of(frame, layers)
        self.report.seconds, self.report.phases = 1.0, dict.fromkeys(PHASES, 0.125)

    def on_epoch_end(self, round: int, epoch: int) -> None:  # noqa: ARG002
        if epoch == 2:
            raise StopRun("enough", checkpoint=False)


class RecordedGroup(ProcessGroup):
    """Rank 0 of K, whose others have sent the same report."""

    def __init__(self, size: int, message: bytes) -> None:
        super().__init__(0, size)
        self._messages = [b"", *[message] * (size - 1)]

    def gather_bytes(self, message: bytes) -> list[bytes]:  # noqa: ARG002
        return self._messages


def make_report(*, with_layers: bool) -> RankReport:
    """Report of an epoch by a rank of `ENVS` envs."""
    config = configured(sets=SETS)
    wanted = torch.ones(ENVS, dtype=torch.bool) if with_layers else None
    hooks, cpu = FrameHooks(wanted), torch.device("cpu")
    with suppress(StopRun):
        Trainer(config, load("digits"), cpu, Execution.as_configured(config)).run(hooks)
    return hooks.report


def cpu_seconds(*works: Callable[[], object]) -> list[float]:
    """Median CPU time of this process for each, over `EPOCHS` calls in turn after some to warm up."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(WARM_UP + EPOCHS):
        for taken, work in zip(times, works, strict=True):
            begin = time.process_time()
            work()
            taken.append(time.process_time() - begin)
    return [statistics.median(taken[WARM_UP:]) for taken in times]


def merge_seconds(size: int, report: RankReport) -> float:
    """CPU of rank 0 for an epoch's reports of `size` ranks."""
    frame, layers = report.frame, report.layers
    rank_zero = RankZero(RecordedGroup(size, encode(report)), Emitter())
    return cpu_seconds(lambda: rank_zero.merge_frames(frame, layers))[0]


def exchange(rank: int, size: int, port: int, message: bytes, results: mp.SimpleQueue) -> None:  # type: ignore[type-arg]
    """One of `size` processes: the two exchanges of an epoch's boundary, and nothing else; CPU of all."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    group = ProcessGroup.join()
    order = msgspec.json.encode(orders.StartEpoch([]))

    def pass_boundary(collect: Callable[[bytes], object]) -> None:
        collect(b"" if rank == 0 else message)
        if rank == 0:
            group.broadcast_order(order)
        else:
            group.receive_order()

    seconds = cpu_seconds(
        lambda: pass_boundary(group.gather_bytes), lambda: pass_boundary(group.all_gather_bytes)
    )
    sums = torch.tensor(seconds)
    group.all_reduce_(sums)
    if rank == 0:
        results.put([*seconds, *sums.tolist()])
    group.leave()


def exchange_seconds(size: int, message: bytes) -> list[float]:
    """CPU for an epoch's boundary over gloo among `size` processes, reports gathered and all-gathered: first
    that of rank 0, then of all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    results = mp.get_context("fork").SimpleQueue()  # what is imported is not imported again
    arguments = (size, port, message, results)
    start_processes(exchange, arguments, nprocs=size, start_method="fork")  # type: ignore[no-untyped-call]
    return list(results.get())


@click.command(help=__doc__)
def main() -> None:
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    for name, with_layers in (("", False), ("layers_", True)):
        report = make_report(with_layers=with_layers)
        size = len(encode(report))
        figures[f"report_{name}bytes"] = size
        for ranks in RANKS:
            figures[f"kib_{name}{ranks}"] = (ranks - 1) * size / 1024
            figures[f"cpu_ms_{name}{ranks}"] = 1e3 * merge_seconds(ranks, report)
            print(
                f"{ranks:4} ranks {'with layers' if with_layers else 'NORMAL':11} "
                f"{figures[f'kib_{name}{ranks}']:9.1f} KiB {figures[f'cpu_ms_{name}{ranks}']:8.2f} ms of CPU"
            )
    message = encode(make_report(with_layers=False))
    for processes in PROCESSES:
        ways = ("gather", "all_gather", "gather_all", "all_gather_all")
        times = [1e3 * seconds for seconds in exchange_seconds(processes, message)]
        figures |= {f"{way}_cpu_ms_{processes}": each for way, each in zip(ways, times, strict=True)}
        print(
            f"{processes:4} processes over gloo, ms of CPU: gather {times[0]:.2f} on rank 0, "
            f"{times[2]:.2f} on all; all-gather {times[1]:.2f} and {times[3]:.2f}"
        )
    finish("ranks", figures, TARGETS)


if __name__ == "__main__":
    main()

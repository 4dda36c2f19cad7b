"""The ranks other than 0: they train their envs, report to rank 0 and execute its orders."""

from __future__ import annotations

import io
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, assert_never

import numpy as np
import torch
from torch import Tensor

from esper_overwatch.protocol.errors import EsperError, RequestError
from esper_overwatch.protocol.messages.events import LogLine, SystemSample
from esper_overwatch.protocol.storage.folders import esper_home
from esper_overwatch.trainer.compute.device import (
    configure_allocator,
    limit_threads,
    prepare_device,
    resolve_device,
    upload,
)
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.control.live_parameters import LiveParameters
from esper_overwatch.trainer.control.seed_control import SeedControl
from esper_overwatch.trainer.data.registry import load_task
from esper_overwatch.trainer.hooks import Hooks, StopRun
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.telemetry.allocator import sample_device
from esper_overwatch.trainer.telemetry.log_lines import log_line
from esper_overwatch.trainer.telemetry.timer import PhaseTimer, PhaseTimes
from esper_overwatch.trainer.telemetry.transfer import HostFrame

from . import orders
from .rank_report import RankReport, encode


def run_worker(group: ProcessGroup) -> int:
    """Train this rank's share of the run that rank 0 describes, until it orders the end.

    Returns:
        The process's exit code.

    Raises:
        EsperError: this rank cannot train, or another is lost.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # rank 0 ends the run, in order
    limit_threads()
    order = orders.receive(group)
    assert isinstance(order, orders.BuildTrainer), order
    try:
        trainer, device = _build(order, group)
    except EsperError as error:
        group.barrier_or_raise(str(error))
        raise
    group.barrier_or_raise()
    worker = Worker(group, trainer, device)
    state = group.scatter_bytes([])
    if state:
        worker.load_state_dict(torch.load(io.BytesIO(state), map_location="cpu", weights_only=True))
    try:
        worker.execute_orders()
        trainer.run(worker)
    except StopRun:
        pass
    finally:
        worker.close()
    return 0


def _build(order: orders.BuildTrainer, group: ProcessGroup) -> tuple[Trainer, torch.device]:
    config = order.config
    group.check_split(config)  # a machine may have more ranks, or fewer devices, than that of rank 0
    configure_allocator(config.cuda, os.environ)
    device = resolve_device(config.device, group.local_rank)
    prepare_device(config.cuda, device)
    data = load_task(config.task, device)
    trainer = Trainer(config, data, device, order.execution, group)
    trainer.reports.may_be_late = order.may_be_late
    return trainer, device


class Worker(Hooks):
    """The hooks of the other ranks."""

    def __init__(self, group: ProcessGroup, trainer: Trainer, device: torch.device) -> None:
        self._group, self._trainer, self._device = group, trainer, device
        self._timer = PhaseTimer()
        self._late: PhaseTimes | None = None
        self.parameters = LiveParameters(trainer)
        self.seed_control = SeedControl(trainer, group)
        self._layers: Tensor | None = None
        self._logs = _LogCollector()
        logging.getLogger().setLevel(logging.INFO)
        logging.getLogger().addHandler(self._logs)
        self._samples: list[SystemSample] = []
        self._sampler = sample_device(esper_home(), device, self._samples.append)
        self._sampler.start()

    def close(self) -> None:
        """End the sampler's thread."""
        self._sampler.close()

    def execute_orders(self) -> None:
        """Execute rank 0's orders until one lets the ranks pass this boundary.

        Raises:
            StopRun: the run ends here.
        """
        is_paused = False
        while True:
            with self._timer.paused() if is_paused else nullcontext():
                order = orders.receive(self._group)
            is_paused = isinstance(order, orders.KeepWaiting)
            match order:
                case orders.StartEpoch(layer_envs):
                    self._layers = self._own_layer_envs(layer_envs)
                    return
                case orders.SendState():
                    buffer = io.BytesIO()
                    torch.save(self.state_dict(), buffer)
                    self._group.gather_bytes(buffer.getvalue())
                case orders.SetParameter(key, value):
                    self.parameters.set(key, value)
                case orders.ExecuteAction(action):
                    with suppress(RequestError):  # rank 0 answers the client that asked
                        _, frame = self.seed_control.execute(action)
                        with self._timer.phase("telemetry"):
                            self.on_frame(frame, ())
                case orders.KeepWaiting():
                    pass
                case orders.Shutdown():
                    raise StopRun("rank 0 ends the run", checkpoint=False)
                case orders.BuildTrainer() | orders.SendReport():
                    raise AssertionError(f"{order} is given before this")
                case _:
                    assert_never(order)

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of a checkpoint."""
        return {"trainer": self._trainer.state_dict(), "parameters": self.parameters.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trainer.load_state_dict(state["trainer"])
        self.parameters.load_state_dict(state["parameters"])

    def _own_layer_envs(self, envs: Sequence[int]) -> Tensor | None:
        rows = self._group.rows(self._trainer.cfg.envs.count * self._group.size)
        mine = [env - rows.start for env in envs if env in rows]
        if not mine:
            return None
        return upload(np.isin(np.arange(len(rows)), mine), self._device)

    def wants_round(self, finished: int) -> bool:  # noqa: ARG002
        self.execute_orders()
        return True

    def on_round_begin(self, round: int) -> None:  # noqa: ARG002
        self._timer.lap()

    @property
    def layer_envs(self) -> Tensor | None:
        return self._layers

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with self._timer.phase(name):
            yield

    def on_phase_times(self, seconds: dict[str, float]) -> None:
        self._timer.divide("train", seconds)

    def on_frame(self, frame: HostFrame, layers: Sequence[str]) -> None:
        report = RankReport.of(frame, layers)
        report.logs = self._logs.take()
        report.samples = [self._samples.pop(0) for _ in range(len(self._samples))]
        if "reward" in frame:
            times, self._late = self._late or self._timer.lap(), None
            report.seconds, report.phases = times.seconds, times.phases
        self._group.gather_bytes(encode(report))

    def passes_epoch_end(self, round: int, epoch: int) -> bool:  # noqa: ARG002
        with self._timer.phase("commands"):
            order = orders.receive(self._group)
        if not isinstance(order, orders.StartEpoch):
            assert isinstance(order, orders.SendReport), order
            return False
        self._layers = self._own_layer_envs(order.layer_envs)
        return True

    def on_epoch_passed(self) -> None:
        self._late = self._timer.lap()

    def on_epoch_end(self, round: int, epoch: int) -> None:  # noqa: ARG002
        with self._timer.phase("commands"):
            self.execute_orders()

    def on_round_end(self, round: int, update: UpdateStatistics | None, frame: HostFrame) -> None:  # noqa: ARG002
        self._group.gather_bytes(encode(RankReport.of(frame)))


class _LogCollector(logging.Handler):
    """Keeps log records until the next report."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: list[LogLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(log_line(record))

    def take(self) -> list[LogLine]:
        """All lines since the last call."""
        lines, self._lines = self._lines, []
        return lines

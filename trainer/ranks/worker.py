"""The ranks beside the first: they train their envs, send what they see to rank 0 and wait for its word."""

from __future__ import annotations

import io
import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from protocol.errors import EsperError, RequestError
from protocol.events import PPOUpdate, SystemSample
from protocol.folders import esper_home

from . import parcels
from .config import Config
from .data.registry import load as load_dataset
from .device import limit_threads, resolve
from .execution import Execution
from .intervention import Act, Intervention
from .operator import StopRun
from .parameters import Parameters
from .parcels import Parcel
from .ranks import World
from .telemetry.system import SystemSampler
from .telemetry.timer import PhaseTimer
from .telemetry.transfer import Frame, Transfer

if TYPE_CHECKING:
    from .loop import Trainer


def follow(world: World) -> int:
    """Train this rank's share of the run that rank 0 describes, until it says stop.

    Returns:
        The process's exit code.

    Raises:
        EsperError: this rank cannot train, or another is lost.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # rank 0 ends the run, in order
    limit_threads()
    order = world.hear()
    try:
        trainer, device = _build(
            msgspec.convert(order["config"], Config), Execution.read(order["execution"]), world
        )
    except EsperError as error:
        world.agree(str(error))
        raise
    world.agree()
    follower = Follower(world, trainer, device)
    state = world.hand_out([])
    if state:
        follower.load_state_dict(torch.load(io.BytesIO(state), map_location="cpu", weights_only=True))
    try:
        follower.wait()
        trainer.run(follower)
    except StopRun:
        pass
    finally:
        follower.close()
    return 0


def _build(config: Config, execution: Execution, world: World) -> tuple[Trainer, torch.device]:
    from .loop import Trainer

    device = resolve(config.device, world.local_rank)
    task = config.task
    data = load_dataset(task.dataset, device, folder=task.data_dir, context=task.context)
    return Trainer(config, data, device, execution, world), device


class Follower:
    """The `Watcher` of the other ranks."""

    def __init__(self, world: World, trainer: Trainer, device: torch.device) -> None:
        self._world, self._trainer, self._device = world, trainer, device
        self._timer, self._transfer = PhaseTimer(), Transfer()
        self.parameters = Parameters(trainer)
        self.intervention = Intervention(trainer, world)
        self._layers: Tensor | None = None
        self._logs = _Collector()
        logging.getLogger().setLevel(logging.INFO)
        logging.getLogger().addHandler(self._logs)
        self._samples: list[SystemSample] = []
        self._sampler = SystemSampler(esper_home(), device, self._samples.append)
        self._sampler.start()

    def close(self) -> None:
        """End the sampler's thread."""
        self._sampler.close()

    def wait(self) -> None:
        """Do what rank 0 asks for until it lets the ranks pass this boundary.

        Raises:
            StopRun: the run ends here.
        """
        while True:
            order = self._world.hear()
            match order["do"]:
                case "go":
                    self._layers = self._debug(order["layers"])
                    return
                case "state":
                    buffer = io.BytesIO()
                    torch.save(self.state_dict(), buffer)
                    self._world.collect(buffer.getvalue())
                case "set":
                    self.parameters.set(order["key"], order["value"])
                case "act":
                    with suppress(RequestError):  # rank 0 tells it to who asked
                        self.intervention.carry_out(msgspec.convert(order["act"], Act), self._acted)
                case "stop":
                    raise StopRun("rank 0 says so", checkpoint=False)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of this rank."""
        return {"trainer": self._trainer.state_dict(), "parameters": self.parameters.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._trainer.load_state_dict(state["trainer"])
        self.parameters.load_state_dict(state["parameters"])

    def _debug(self, envs: Sequence[int]) -> Tensor | None:
        rows = self._world.rows(self._trainer.cfg.envs.count * self._world.size)
        mine = [env - rows.start for env in envs if env in rows]
        if not mine:
            return None
        wanted = torch.zeros(len(rows), dtype=torch.bool)
        wanted[mine] = True
        return wanted.to(self._device)

    # --- called by the loop ------------------------------------------------------------------------

    def wants_round(self, finished: int) -> bool:  # noqa: ARG002
        self.wait()
        return True

    def round_begins(self, round: int) -> None:  # noqa: ARG002
        self._timer.lap()

    def epoch_begins(self, epoch: int, epochs: int) -> None: ...

    @property
    def layer_envs(self) -> Tensor | None:
        return self._layers

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with self._timer.phase(name):
            yield

    def trained(self, seconds: dict[str, float]) -> None:
        self._timer.divide("train", seconds)

    def see(self, columns: dict[str, Tensor], layers: Sequence[str]) -> Frame:
        with self._timer.phase("telemetry"):
            frame = self._transfer(columns)
            told: dict[str, Any] = {"logs": self._logs.take(), "samples": self._taken_samples()}
            if "reward" in frame:
                told["seconds"], told["phases"] = self._timer.lap()
            self._world.collect(parcels.encode(Parcel.of(frame, layers, **told)))
        return frame

    def epoch_finished(self, trainer: Trainer) -> None:  # noqa: ARG002
        with self._timer.phase("commands"):
            self.wait()

    def round_finished(
        self, trainer: Trainer, update: PPOUpdate | None, columns: Frame  # noqa: ARG002
    ) -> None:  # fmt: skip
        self._world.collect(parcels.encode(Parcel.of(columns)))

    def _acted(self, columns: dict[str, Tensor]) -> Frame:
        return self.see(columns, ())

    def _taken_samples(self) -> list[dict[str, Any]]:
        return [vars(self._samples.pop(0)) for _ in range(len(self._samples))]


class _Collector(logging.Handler):
    """Keeps log records, as the fields of `LogLine`, until the next parcel."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        line = {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        self._lines.append(line | {"traceback": trace})

    def take(self) -> list[dict[str, Any]]:
        """All lines since the last call."""
        lines, self._lines = self._lines, []
        return lines

"""A round on the simulated CUDA device, counted: `python -m tests.gpu.simulator LIBRARY [KEY=VALUE …]`.

With `--faults` a transfer frees what it copies too early in epoch 1, and streams do not heed events in epoch
3, which has to be found. With `--ranks` it is rank 0 of two, and exchanges bring what it has itself. With
`--layers` the layers of the first env are measured.

A run on the CPU comes first and gives the frames that the epochs' transfers return, so that seeds are born
and blend as in a real run. Then the same trainer plays and learns with fake tensors of device cuda:0: every
device and dtype is checked as on a GPU, nothing is computed. It learns three times from the round, so that
graphs captured and compared in the first two updates are counted in the third. The last line is JSON: by
section (`start`, `begin`, `epoch 0` …, `update`, `test`, `shapley`, `update second` …, `update again` …,
`evaluate again`, `evaluate third`, and `captures`) how many launches, copies and waits there were, and where;
how many `kernels` ran, of graphs too, the `bytes` they touched, and the `ns` that they take by a model of an
H100; of the launches also how many were those of training (`train`) and of validation (`validate`); `races`,
which accesses no event orders; `overlaps`, what may run at the same time of groups' trainings and validations
and what is copied to the host, see `StreamOrder`; `reported`, in which section the loop reported each
transfer.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

from . import fake_cuda

if __name__ == "__main__":
    fake_cuda.load(Path(sys.argv[1]))

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer import hooks, loop
from esper_overwatch.trainer.compute import cuda_graphs, pointwise
from esper_overwatch.trainer.compute.device import upload
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.pointwise import FusedFormula
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.config.task_options import TaskConfig
from esper_overwatch.trainer.data.mixture import Mixture
from esper_overwatch.trainer.data.registry import load_task
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.episodes import TOPOLOGY
from esper_overwatch.trainer.evaluation import episodes as held_out_episodes
from esper_overwatch.trainer.evaluation.held_out import HeldOutHosts, HeldOutMixture
from esper_overwatch.trainer.hooks import Hooks
from esper_overwatch.trainer.hosts import population, seed_pool, slot_plan, validation
from esper_overwatch.trainer.hosts.host_group import HostGroup
from esper_overwatch.trainer.hosts.slot_plan import Topology
from esper_overwatch.trainer.hosts.task_defaults import resolve_task_defaults
from esper_overwatch.trainer.telemetry import transfer
from esper_overwatch.trainer.telemetry.transfer import HostFrame, Shipment, Transfer

from .counting import DeviceCalls
from .stream_order import StreamOrder, may_overlap

CPU = torch.device("cpu")
DTYPES = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.int64: np.int64,
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
}


class Sections(Hooks):
    """Says what is being counted."""

    def __init__(
        self,
        calls: DeviceCalls | None = None,
        *,
        suffix: str = "",
        faults: bool = False,
        layers: NDArray[np.bool_] | None = None,
    ) -> None:
        self.calls, self._suffix, self._faults, self._layers = calls, suffix, faults, layers
        self.reported: list[str] = []
        """The sections in which frames were reported."""
        self._epoch = 0

    def wants_round(self, finished: int) -> bool:
        return finished < 1

    @property
    def layer_envs(self) -> Tensor | None:
        device = CPU if self.calls is None else self.calls.order.device
        return None if self._layers is None else upload(self._layers, device)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.calls is not None and name in ("update", "test", "shapley", "evaluate"):
            self._enter(name + self._suffix)
        if self.calls is not None and name == "train":
            self._enter(f"epoch {self._epoch}")
            self._epoch += 1
        yield

    def _enter(self, section: str) -> None:
        assert self.calls is not None
        self.calls.section, order = section, self.calls.order
        order.keeps_sources = not (self._faults and section == "epoch 1")
        order.heeds_waits = not (self._faults and section == "epoch 3")

    def on_frame(self, frame: HostFrame, layers: Any) -> None:
        if self.calls is not None:
            self.reported.append(self.calls.section)

    def passes_epoch_end(self, round: int, epoch: int) -> bool:
        return True


class Frames:
    """What the transfers of the run on the CPU brought, in order.

    Attributes:
        left: to bring again.
        read: was brought again.
    """

    def __init__(self) -> None:
        self.left: deque[HostFrame] = deque()
        self.read: list[HostFrame] = []

    def last(self, shape: Sequence[int]) -> HostFrame:
        """The newest topology that was brought; before there is one that of a rehearsal, for these hosts."""
        full = {
            "stage": np.full(shape, Stage.HOLDING),
            "blueprint": np.zeros(shape),
            "style": np.zeros(shape),
        }
        known = (each for each in reversed(self.read) if "stage" in each and each["stage"].shape == shape)
        return next(known, full)


class RecordedTransfer(Transfer):
    """Records the frames that it brings."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self._frames = frames

    def _unpack(self, shipment: Shipment) -> HostFrame:
        self._frames.left.append(super()._unpack(shipment))
        return self._frames.left[-1]


class FakeTransfer(Transfer):
    """Packs, copies, waits and reads as the real one does, and returns what the run on the CPU had here."""

    def __init__(self, order: StreamOrder, frames: Frames) -> None:
        super().__init__()
        self._order, self._frames = order, frames
        self._side = torch.cuda.Stream()

    def _copy(self, rows: Any, packed: Tensor, *, aside: bool) -> Shipment:
        if not aside:
            return super()._copy(rows, packed, aside=False)
        with self._order.span(f"{self._order.section} telemetry", self._side):
            shipment = super()._copy(rows, packed, aside=True)
        if not self._order.keeps_sources:
            shipment._source = None
        return shipment

    def _unpack(self, shipment: Shipment) -> HostFrame:
        known, shapes = self._frames.left[0], {c.name: c.shape for c in shipment.columns}
        frame = super()._unpack(shipment)
        assert {name: known[name].shape for name in frame} == shapes
        if frame.keys() == set(TOPOLOGY):
            return {name: known[name] for name in frame}
        assert frame.keys() == known.keys()
        self._frames.read.append(self._frames.left.popleft())
        return known


class Alone(ProcessGroup):
    """One of two ranks; the other one is thought to have the same."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def all_reduce_(self, tensor: Tensor) -> None:
        tensor.mul_(2)

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        return torch.cat([tensor, tensor], dim)

    def all_gather_bytes(self, message: bytes) -> list[bytes]:
        return [message, message]


def count_round(
    config: Config, data: Task, world: ProcessGroup, *, faults: bool, measures_layers: bool
) -> dict[str, Any]:
    """Play and learn one round of a run; see the module."""
    device, execution = torch.device("cuda", 0), Execution.as_configured(config)
    frames, draws, images = Frames(), _record_draws(), _record_held_out()
    layers = np.arange(config.envs.count) == 0 if measures_layers else None
    hooks.Transfer = lambda: RecordedTransfer(frames)  # type: ignore[assignment, misc]
    real = loop.Trainer(config, data, CPU, execution, world)
    real.play(Sections(layers=layers))
    for _ in range(2):
        real.evaluate(real.rollout.reward, Sections())
    real.population.close()
    calls = DeviceCalls(StreamOrder(device))
    _patch_torch(calls)
    _patch_streams(calls.order)
    _patch_pointwise()
    _patch_trainer(calls, frames)
    for kind in (Mixture, HeldOutMixture):
        kind.draw = lambda self, seed, envs, round_: draws[seed, len(envs), round_]  # type: ignore[assignment]
    HeldOutHosts.load = lambda self, task, on: images[0].to(on)  # type: ignore[method-assign]
    known = data.perplexity
    type(data).perplexity = property(lambda self: known)  # type: ignore[misc, assignment]
    with FakeTensorMode(allow_non_fake_inputs=True), calls:
        trainer = loop.Trainer(config, data.to(device), device, execution, world)
        calls.section = "begin"
        sections = Sections(calls, faults=faults, layers=layers)
        trainer.play(sections)
        evaluator, trainer.evaluator = trainer.evaluator, None
        trainer.end_round(Sections(calls))
        trainer.end_round(Sections(calls, suffix=" second"))
        trainer.evaluator = evaluator  # last, as its frames are
        trainer.end_round(Sections(calls, suffix=" again"))
        trainer.end_round(Sections(calls, suffix=" third"))
    spans = calls.order.spans
    return {
        "counts": calls.counts,
        "places": calls.places,
        "races": calls.order.races,
        "overlaps": [[a, b] for a, b in combinations(spans, 2) if may_overlap(spans[a], spans[b])],
        "reported": sections.reported,
    }


def _record_draws() -> dict[tuple[int, int, int], Any]:
    """What envs will draw from a mixture, by seed, their number and the round: fake envs have no numbers."""
    draws: dict[tuple[int, int, int], Any] = {}

    def recorded(draw: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, seed, envs, round_: draws.setdefault(
            (seed, len(envs), round_), draw(self, seed, envs, round_)
        )

    for kind in (Mixture, HeldOutMixture):
        kind.draw = recorded(kind.draw)  # type: ignore[method-assign]
    return draws


def _record_held_out() -> list[Mixture]:
    """The mixture that held-out hosts will learn: what fake tensors hold cannot be split."""
    load, loaded = HeldOutHosts.load, []

    def record(self: HeldOutHosts, task: TaskConfig, device: torch.device) -> Mixture:
        loaded.append(load(self, task, device))
        return loaded[-1]

    HeldOutHosts.load = record  # type: ignore[method-assign]
    return loaded


def _patch_torch(calls: DeviceCalls) -> None:
    """What fake tensors cannot do: have a value, be moved within a module."""

    def value(made: Any) -> Callable[..., Any]:
        def read(self: Tensor, *args: Any) -> Any:
            if self.device.type == "cuda":
                calls.add("copies", "waits")
                calls.order.wait_here()
            return made

        return read

    def numpy(self: Tensor) -> Any:
        assert self.device.type == "cpu", "numpy() of a tensor of the device"
        calls.order.read_on_host(self)
        return np.zeros(tuple(self.shape), DTYPES[self.dtype])

    def move(self: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        for module in self.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(parameter.detach().to(device))
            for name, buffer in list(module._buffers.items()):
                module._buffers[name] = None if buffer is None else buffer.to(device)
        return self

    for name, made in (("__int__", 0), ("__float__", 0.0), ("__bool__", False), ("item", 0)):
        setattr(FakeTensor, name, value(made))
    FakeTensor.numpy = numpy
    torch.nn.Module.to = move


def _patch_streams(order: StreamOrder) -> None:
    """Streams and events, which torch has on CUDA alone."""
    torch.cuda.Stream = order.make_stream
    torch.cuda.Event = order.make_event
    torch.cuda.stream = order.on
    torch.cuda.current_stream = lambda device=None: order.current
    torch.cuda.default_stream = lambda device=None: order.default


def _patch_pointwise() -> None:
    """Kernels of formulas, as one operation that nothing computes, and that is not compared."""
    torch.library.define("esper_simulator::pointwise", "(Tensor[] ins, int results) -> Tensor[]")

    def made(ins: list[Tensor], results: int) -> list[Tensor]:
        shape, kind = torch.broadcast_shapes(*(x.shape for x in ins)), torch.result_type(*(ins * 2)[:2])
        like = next((x for x in ins if x.shape == shape), ins[0].expand(shape))
        return [torch.empty_like(like, dtype=kind) for _ in range(results)]

    def compiled(code: str, results: int) -> Callable[..., tuple[Tensor, ...]]:
        return lambda *ins: tuple(torch.ops.esper_simulator.pointwise(ins, results))

    def unchecked(self: FusedFormula, types: tuple[torch.dtype, ...], *tensors: Tensor) -> Any:
        self._right.add(types)
        return self._fused(*tensors)

    torch.library.register_fake("esper_simulator::pointwise", made)
    pointwise.compile_pointwise = compiled
    FusedFormula._check = unchecked


def _patch_trainer(calls: DeviceCalls, frames: Frames) -> None:
    """Checks of numbers, which there are none of, and captures, each replay of which is one launch."""
    seed_pool.verify = lambda *args, **kwargs: None
    cuda_graphs.first_mismatch = lambda *args, **kwargs: ""

    def of(cls: type[Topology], *columns: Any) -> Topology:
        if any(isinstance(column, Tensor) for column in columns):  # read back: those of the last frame
            known = frames.last(columns[0].shape)
            columns = tuple(known[name] for name in ("stage", "blueprint", "style"))
        stage, *others = (np.array(column, dtype=np.int64) for column in columns)
        blended = slot_plan._IS_BLENDED[stage]
        return cls(stage, *others, blended, np.zeros((*blended.shape, blended.shape[1]), dtype=np.bool_))

    def shapley_values(blended: Any, *others: Any) -> Any:
        return values(slot_plan._IS_BLENDED[frames.last(blended.shape)["stage"]], *others)

    values, population.shapley_values = population.shapley_values, shapley_values
    Topology.of = classmethod(of)
    hooks.Transfer = lambda: FakeTransfer(calls.order, frames)  # type: ignore[assignment, misc]
    calls.order.on_wait = lambda: calls.add("waits")
    transfer.pinned_memory = lambda size: torch.empty(size, dtype=torch.uint8)
    validation.device_memory_bytes = lambda device: 80 << 30
    for name in ("train", "validate"):
        setattr(HostGroup, name, spanned(calls, name, calls.counted(name, getattr(HostGroup, name))))
    for module in (loop, held_out_episodes):
        module.CudaGraphs = lambda on: cuda_graphs.CudaGraphs(on=on, capture=capture)

    def capture(work: Callable[[], Any], *_: object) -> tuple[Callable[[], None], Any]:
        section, calls.section = calls.section, "captures"
        before = calls.here().copy()
        with calls.order.capture() as touched:
            out = work()
        computed = {kind: calls.here()[kind] - before[kind] for kind in ("kernels", "bytes", "ns")}
        calls.section = section

        def replay() -> None:
            calls.order.issue("a graph", touched)
            calls.here().update({"launches": 1, **computed})

        return replay, out


def spanned(calls: DeviceCalls, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """The same work of a group, kept as a span: that of the second group as "epoch 0 train 1"."""
    numbers: dict[int, int] = {}

    def spanning(group: HostGroup, *args: Any, **kwargs: Any) -> Any:
        number = numbers.setdefault(id(group), len(numbers))
        with calls.order.span(f"{calls.section} {name} {number}"):
            return work(group, *args, **kwargs)

    return spanning


if __name__ == "__main__":
    torch.set_num_threads(1)
    sourced = settings.load_sourced(sets=[word for word in sys.argv[2:] if "=" in word])
    data = load_task(sourced.config.task, CPU)
    config = resolve_task_defaults(sourced, data.name, data.kind).config
    world = Alone() if "--ranks" in sys.argv else ProcessGroup()
    faults, layers = "--faults" in sys.argv, "--layers" in sys.argv
    told = count_round(config, data, world, faults=faults, measures_layers=layers)
    print(json.dumps(told))

"""CUDA graphs. What surrounds a capture is tested on a CPU, where a recording stands in for the graph."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.trainer import loop
from esper_overwatch.trainer.compute import cuda_graphs
from esper_overwatch.trainer.compute.cuda_graphs import (
    MAX_CACHED_GRAPHS,
    NUM_CHECKED_CALLS,
    CudaGraphProgram,
    CudaGraphs,
    GraphMemory,
    capture_cuda,
    iter_tensors,
    map_tensors,
)
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.data.registry import load
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.seeds.blend import RowBlock, SeedSegment
from tests.cases import nightly

from .test_compiler import SMALL, Quiet
from .test_process_group import Recording

torch.set_num_threads(1)
CPU = torch.device("cpu")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def record(
    work: Callable[[], Any], warm_up: object = None, memory: object = None
) -> tuple[Callable[[], None], Any]:
    """As a graph does: the same operations on the same inputs into the same outputs."""
    out = work()

    def replay() -> None:
        for mine, fresh in zip(iter_tensors(out), iter_tensors(work()), strict=True):
            mine.copy_(fresh)

    return replay, out


def graphed(function: Callable[..., Any], capture: Callable[..., Any] = record) -> CudaGraphProgram[..., Any]:
    program = CudaGraphs(on=True, capture=capture).wrap("it", function)
    assert isinstance(program, CudaGraphProgram)
    return program


def test_replay_copies_inputs_in_and_results_out() -> None:
    weight = torch.ones(3, requires_grad=True)
    program = graphed(lambda x, w: {"sum": (x * w).detach() + 1})
    xs = [torch.full((3,), float(i)) for i in range(4)]
    results = [program(x, weight)["sum"] for x in xs]
    assert [float(r[0]) for r in results] == [1, 2, 3, 4]
    assert program.replays == 4 - NUM_CHECKED_CALLS
    with torch.no_grad():
        weight.mul_(10)
    assert float(program(xs[1], weight)["sum"][0]) == 11, "weights are used where they are"


def test_a_graph_belongs_to_its_shapes_and_the_oldest_goes() -> None:
    captured: list[int] = []

    def counting(work: Callable[[], Any], warm_up: object, memory: object) -> Any:
        captured.append(1)
        return record(work)

    program = graphed(lambda x: x + 1, counting)
    for size in (*range(1, MAX_CACHED_GRAPHS + 2), 2, MAX_CACHED_GRAPHS + 1):
        assert torch.equal(program(torch.zeros(size)), torch.ones(size))
    assert len(captured) == MAX_CACHED_GRAPHS + 1, "2 and the last one were still held"
    program(torch.zeros(1))
    assert len(captured) == MAX_CACHED_GRAPHS + 2


@pytest.mark.parametrize("fault", ["wrong", "refused"])
def test_failed_capture_is_logged_and_the_program_runs_on(
    caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    def capture(work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory) -> Any:
        if fault == "refused":
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return (lambda: None), work() + 1

    program = graphed(lambda x: x * 2, capture)
    with caplog.at_level(logging.WARNING):
        assert [float(program(torch.tensor([3.0]))) for _ in range(2)] == [6, 6]
    assert (
        program.reason
        == {
            "wrong": "result 0 of shape [1] by up to nan",
            "refused": "it cannot be captured: operation not permitted when stream is capturing",
        }[fault]
    )
    assert len(caplog.records) == 1
    assert program.reason in caplog.text


def test_graph_that_computes_nothing_or_bakes_inputs_in_is_refused() -> None:
    def empty(work: Callable[[], Any], warm_up: object, memory: object) -> Any:
        return (lambda: None), work()

    def baked(work: Callable[[], Any], warm_up: object, memory: object) -> Any:
        out = work()
        first = out.clone()
        return (lambda: out.copy_(first)), out

    for capture in (empty, baked):
        program = graphed(lambda x: x * 2, capture)
        assert [float(program(torch.tensor([x]))) for x in (1.0, 2.0, 3.0)] == [2, 4, 6]
        assert "by up to" in program.reason


def test_after_a_failed_capture_nothing_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []

    def capture(work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory) -> Any:
        tried.append(1)
        if len(tried) == 2:
            raise RuntimeError("operation not permitted when stream is capturing")
        return record(work)

    graphs = CudaGraphs(on=True, capture=capture)
    first, second, third = (graphs.wrap(name, lambda x: x + 1) for name in ("first", "second", "third"))
    with caplog.at_level(logging.WARNING):
        for value in (0.0, 1.0, 2.0):
            assert [float(f(torch.tensor([value]))) for f in (first, second, third)] == [value + 1] * 3
    assert len(tried) == 2
    assert len(caplog.records) == 1
    assert graphs.programs["first"].replays == 3 - NUM_CHECKED_CALLS, "a graph that works goes on"
    assert graphs.programs["third"].reason == graphs.failure != ""


@pytest.mark.parametrize("failures", [1, 2])
def test_capture_without_memory_is_tried_again_and_ends_no_other(
    caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    tried: list[int] = []

    def capture(work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory) -> Any:
        tried.append(1)
        if len(tried) <= failures:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return record(work)

    graphs = CudaGraphs(on=True, capture=capture)
    first, second = (graphs.wrap(name, lambda x: x + 1) for name in ("first", "second"))
    with caplog.at_level(logging.WARNING):
        for value in (0.0, 1.0, 2.0):
            assert [float(f(torch.tensor([value]))) for f in (first, second)] == [value + 1] * 2
    assert graphs.failure == "" == graphs.programs["second"].reason
    assert graphs.programs["second"].replays == 3 - NUM_CHECKED_CALLS
    assert ("does not fit into memory" in graphs.programs["first"].reason) == (failures == 2)
    assert len(tried) == 3
    assert len(caplog.records) == failures - 1


def test_capture_without_memory_takes_that_of_graphs_for_other_shapes() -> None:
    held: list[int] = []

    def capture(work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory) -> Any:
        if sys.getrefcount(held) > reference:  # a graph is still there
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        replay, out = record(work)
        mine = held
        return (lambda: (mine, replay())), out

    reference = sys.getrefcount(held)
    graphs = CudaGraphs(on=True, capture=capture)
    add = graphs.wrap("it", lambda x: x + 1)
    for size in (1, 1, 2, 2, 2, 1):
        assert add(torch.zeros(size)).tolist() == [1.0] * size
    program = graphs.programs["it"]
    assert (program.reason, program.replays) == ("", 1)


def test_failed_end_of_capture_names_the_broken_operation() -> None:
    def capture(work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory) -> Any:
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        finally:  # as torch.cuda.graph does
            raise RuntimeError("operation failed due to a previous error during capture")

    program = graphed(lambda x: x + 1, capture)
    assert float(program(torch.tensor([1.0]))) == 2.0
    assert program.reason == "it cannot be captured: operation not permitted when stream is capturing"


def test_count_may_differ_by_near_ties_where_that_is_said() -> None:
    def capture(work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory) -> Any:
        out = work()
        return (lambda: out.copy_(work() + 1)), out

    hits = torch.tensor([90, 100])
    for share, reason in ((0.0, "result 0 of shape [2] by up to 1"), (0.01, "")):
        graphs = CudaGraphs(on=True, capture=capture)
        graphs.wrap("it", lambda x: x * 1, count_tolerance=share)(hits)
        assert graphs.programs["it"].reason == reason


class FakeCuda:
    """The part of torch.cuda that a capture calls; it notes the order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, current: str) -> None:
        self.calls: list[str] = []
        self.pools: list[object] = []
        self.current, self.captured_on, self.warning, self.fails = current, "", "", False
        for name in ("current_stream", "default_stream", "current_device", "stream", "graph", "CUDAGraph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, f"_{name}"))
        clear = lambda: self.calls.append("clear")  # noqa: E731
        monkeypatch.setattr(cuda_graphs, "clear_cublas_workspaces", clear)
        monkeypatch.setattr(cuda_graphs, "_side_stream", lambda device: FakeStream("new"))

    def _current_stream(self) -> Any:
        return FakeStream(self.current)

    def _default_stream(self) -> Any:
        return FakeStream("default")

    def _current_device(self) -> int:
        return 0

    @contextmanager
    def _stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.name
        try:
            yield
        finally:
            self.current = before

    def _CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: None, pool=lambda: (0, 1))

    @contextmanager
    def _graph(self, graph: Any, *, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        self.pools.append(pool)
        self.calls.append(f"capture on {stream.name}")
        before, self.current = self.current, stream.name
        yield
        if self.fails:  # torch 2.13 leaves its stream as it is then
            raise RuntimeError("operation failed due to a previous error during capture")
        self.current = before
        if self.warning:
            warnings.warn(self.warning, UserWarning, stacklevel=1)


@dataclass(frozen=True)
class FakeStream:
    name: str

    def wait_stream(self, other: Any) -> None: ...


@pytest.mark.parametrize(("current", "captured_on"), [("default", "new"), ("group 1", "group 1")])
def test_captures_are_on_the_groups_stream_and_share_memory(
    monkeypatch: pytest.MonkeyPatch, current: str, captured_on: str
) -> None:
    cuda = FakeCuda(monkeypatch, current)
    memory = GraphMemory()
    for _ in range(2):
        capture_cuda(lambda: None, lambda: None, memory)
    assert cuda.calls == ["clear", f"capture on {captured_on}", "clear"] * 2
    assert cuda.pools == [None, (0, 1)], "the second one takes the memory of the first"


def test_failed_capture_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch, "default")
    cuda.fails = True
    with pytest.raises(RuntimeError, match="previous error"):
        capture_cuda(lambda: None, lambda: None, GraphMemory())
    assert cuda.current == "default"


def test_capture_that_torch_calls_empty_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch, "default")
    cuda.warning = "The CUDA Graph is empty. This usually means that the graph was attempted to be captured"
    graphs = CudaGraphs(on=True)
    program = graphs.wrap("it", lambda x: x + 1)
    assert float(program(torch.tensor([1.0]))) == 2.0
    assert "empty" in graphs.programs["it"].reason


def test_tensors_are_found_and_exchanged_in_whatever_holds_them() -> None:
    row = torch.tensor([0])
    block = RowBlock(0, 1, row, False, True)
    segment = SeedSegment(row, 1, (block,), torch.tensor([False]))
    value = {"a": [segment, 3], "b": (torch.zeros(1), None)}
    assert [t.dtype for t in iter_tensors(value)] == [torch.int64, torch.int64, torch.bool, torch.float32]
    other = map_tensors(value, lambda x: x + 1)
    assert float(other["b"][0]) == 1
    assert other["a"][1] == 3
    assert bool(other["a"][0].audible)
    assert not bool(segment.audible), "the original is untouched"


def train(device: torch.device, *sets: str) -> Trainer:
    trainer = Trainer(settings.load(sets=[*SMALL, *sets]), load("digits", device), device)
    trainer.run(Quiet())  # type: ignore[arg-type]
    trainer.population.close()
    return trainer


def same(one: Trainer, other: Trainer, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(other.rollout.reward, one.rollout.reward, atol=tolerance, rtol=0)
    for name, value in one.population.state_dict()["weights"].items():
        found = other.population.state_dict()["weights"][name]
        torch.testing.assert_close(found, value, atol=tolerance, rtol=0)


OF_THE_GROUP = (
    *(f"the {part} of hosts 0 to 3" for part in ("gradients", "newborn", "plan")),
    "imagined kernels of hosts 0 to 3",
)
EACH_EPOCH = (
    "a minibatch of the policy",
    "the actions",
    "the contributions of hosts 0 to 3",
    "the draws",
    "the governor",
    "the policy",
    "the statistics of hosts 0 to 3",
    "the training step of hosts 0 to 3",
    "the transitions",
    "the validation of hosts 0 to 3",
)
"""Programs that two rounds of two epochs call often enough to replay them."""
EACH_UPDATE = ("the advantages", "the normalisers of the policy", "the statistics of an update")
"""Programs that are called once a round."""
OF_THE_EXPERIENCE = (
    *("advantage_mean", "advantage_std", "return_std", "value_nrmse", "op_fraction", "features"),
    *("explained_variance", "explained_variance_within"),
    *("observation_rms", "observation_clipped", "observation_missing"),
)
"""Statistics of an update that do not depend on its steps."""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["off", nightly("fp16")])
def test_policy_and_masked_step_replayed_train_as_they_do_without(
    monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    plain = train(CPU, f"amp.dtype={dtype}")
    assert plain.graphs.programs == {}
    monkeypatch.setattr(loop, "CudaGraphs", lambda on: CudaGraphs(on=True, capture=record))
    replayed = train(CPU, f"amp.dtype={dtype}")
    programs = replayed.graphs.programs
    assert set(programs) == {*OF_THE_GROUP, *EACH_EPOCH, *EACH_UPDATE}
    assert {p.reason for p in programs.values()} == {""}
    assert all(programs[name].replays >= 2 for name in EACH_EPOCH)
    same(plain, replayed)


def test_updates_report_the_same_from_their_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def learn() -> tuple[Trainer, list[dict[str, Any]]]:
        trainer, seen = Trainer(settings.load(sets=list(SMALL)), load("digits"), CPU), Recording()
        trainer.play(seen)
        updates = [trainer.learn(trainer.rollout, seen) for _ in range(NUM_CHECKED_CALLS + 2)]
        trainer.population.close()
        return trainer, [{name: vars(update)[name] for name in OF_THE_EXPERIENCE} for update in updates]

    _, plain = learn()
    monkeypatch.setattr(loop, "CudaGraphs", lambda on: CudaGraphs(on=True, capture=record))
    trainer, replayed = learn()
    assert {trainer.graphs.programs[name].replays for name in EACH_UPDATE} == {2}
    for found, expected in zip(replayed, plain, strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-9, err_msg=name)
    first, *_, last = plain
    assert not np.array_equal(first["features"], last["features"]), "the normalisers have learnt"


def test_program_that_changes_state_changes_it_once_a_call() -> None:
    state = torch.zeros(3)

    def count(x: torch.Tensor) -> torch.Tensor:
        state.add_(x)
        return state * 2

    def capture(work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory) -> Any:
        for _ in range(3):
            warm_up()
        return record(work)

    graphs = CudaGraphs(on=True, capture=capture)
    program = graphs.wrap("it", count, changes=lambda: [state])
    for calls in range(1, 6):
        assert program(torch.ones(3)).tolist() == [2.0 * calls] * 3
        assert state.tolist() == [float(calls)] * 3
    assert graphs.programs["it"].replays == 5 - NUM_CHECKED_CALLS


def test_graph_that_forgets_a_change_is_refused() -> None:
    state = torch.zeros(3)

    def capture(work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory) -> Any:
        out = work()
        return (lambda: None), out

    graphs = CudaGraphs(on=True, capture=capture)
    program = graphs.wrap("it", lambda x: state.add_(x).sum() * 0, changes=lambda: [state])
    for calls in range(1, 4):
        program(torch.ones(3))
        assert state.tolist() == [float(calls)] * 3
    assert graphs.programs["it"].reason


def test_argument_in_place_is_read_where_it_is() -> None:
    table, elsewhere = torch.zeros(2, 3), torch.full((2, 3), 7.0)
    graphs = CudaGraphs(on=True, capture=record)
    program = graphs.wrap("it", lambda rows, x: rows + x, in_place=(0,), lends=True)
    for value in (1.0, 2.0, 3.0):
        table.fill_(value)
        assert program(table, torch.ones(3))[0].tolist() == [value + 1] * 3
    assert program(elsewhere, torch.ones(3))[0].tolist() == [8.0] * 3
    assert program(table, torch.ones(3))[0].tolist() == [4.0] * 3
    assert program(table, torch.ones(3)) is program(table, torch.zeros(3)), "results are lent"
    assert not graphs.programs["it"].reason


@pytest.mark.gpu
@cuda
def test_real_graphs_train_as_without() -> None:
    device = torch.device("cuda", 0)
    sets = ("amp.dtype=off", "cuda.tf32=false")
    replayed = train(device, *sets)
    assert {p.reason for p in replayed.graphs.programs.values()} == {""}
    assert all(p.replays >= 2 for p in replayed.graphs.programs.values())
    same(train(device, *sets, "cuda.graphs=false"), replayed, tolerance=1e-4)


@pytest.mark.gpu
@cuda
def test_groups_on_streams_train_as_one_after_the_other() -> None:
    device = torch.device("cuda", 0)
    sets = ("amp.dtype=off", "envs.group_size=2", "cuda.graphs=false")
    streams = train(device, *sets)
    alone = Trainer(settings.load(sets=[*SMALL, *sets]), load("digits", device), device)
    alone.population._executor._streams = []
    alone.run(Quiet())  # type: ignore[arg-type]
    same(alone, streams, tolerance=1e-4)


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("debug", [False, True])
def test_host_waits_for_the_gpu_once_per_epoch(debug: bool) -> None:
    device = torch.device("cuda", 0)
    trainer = Trainer(settings.load(sets=[*SMALL, "episode_epochs=8"]), load("digits", device), device)

    class Strict(Quiet):
        def __init__(self) -> None:
            envs = trainer.cfg.envs.count
            self.layer_envs = torch.ones(envs, dtype=torch.bool, device=device) if debug else None

        def on_epoch_begin(self, epoch: int, epochs: int) -> None:
            if epoch == 3:
                torch.cuda.set_sync_debug_mode("error")

        def on_epoch_end(self, round: int, epoch: int) -> None:
            torch.cuda.set_sync_debug_mode("default")

    try:
        trainer.play(Strict())  # type: ignore[arg-type]
    finally:
        torch.cuda.set_sync_debug_mode("default")

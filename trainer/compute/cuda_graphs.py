"""CUDA graphs: a program whose operations never change is issued once and replayed.

Its inputs are copied into tensors of its own; weights, and what is declared to stay in one place, are used
where they are. A graph belongs to the shapes and addresses it was captured with; the least recently used one
is dropped when there are too many. The first two calls compare a graph with the program itself, after its
results were overwritten and what it changes was restored, so that an empty graph, or one with a constant
input, is found; where it differs the program goes on without a graph and the log says why. After a capture
that failed for want of memory twice its program goes on without; after any other failure no further one is
attempted, because torch's allocator may be in a bad state.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from esper_overwatch.protocol.errors import first_line

from .compiler import RELATIVE_TOLERANCE, first_mismatch
from .torch_private import clear_cublas_workspaces, copy_each_, memory_key

logger = logging.getLogger(__name__)

MAX_CACHED_GRAPHS = 48
"""Graphs kept of one program, which share their memory."""
NUM_WARM_UP_CALLS = 3
"""Calls before a capture, as torch advises: they choose kernels and allocate workspaces."""
NUM_CHECKED_CALLS = 2
"""Calls of a graph that are compared with the program, so that its inputs were others at least once."""
_EMPTY = "The CUDA Graph is empty"
"""Begins torch's warning of a capture that saw nothing of what was issued."""

P = ParamSpec("P")
R = TypeVar("R")
Replay = Callable[[], None]


@dataclass
class GraphMemory:
    """Memory of graphs of which one runs at a time: those of a program, or of several on one stream."""

    pool: Any = None
    """Torch's handle of it, once there is a graph."""
    num_graphs: int = 0

    def release(self, graphs: int) -> None:
        """So many graphs are gone; torch frees a pool that none uses."""
        self.num_graphs -= graphs
        if not self.num_graphs:
            self.pool = None


Capture = Callable[[Callable[[], Any], Callable[[], Any], GraphMemory], tuple[Replay, Any]]
"""Captures some work, after its warm-up, in this memory."""
Check = Callable[[list[Tensor], list[Tensor]], str]
Changes = Callable[[], Sequence[Tensor]]


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One for all captures: what is made once for a stream is made on few of them."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def capture_cuda(
    work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory
) -> tuple[Replay, Any]:
    """Capture what `work` issues on the current device; returns what replays it, and the tensors it fills.

    A graph keeps the address of its stream's cuBLAS workspace. Groups replay theirs at the same time, so each
    captures on the stream it runs on, with new workspaces in the graph's own memory. What a graph leaves in
    that memory but for its results is overwritten by the next one that shares it.

    Raises:
        RuntimeError: torch refuses, or nothing was captured.
    """
    here = torch.cuda.current_stream()
    side = here
    if here == torch.cuda.default_stream():  # which cannot be captured
        side = _side_stream(torch.cuda.current_device())
        side.wait_stream(here)
    with torch.cuda.stream(side):
        for _ in range(NUM_WARM_UP_CALLS):
            warm_up()
    here.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    clear_cublas_workspaces()
    # Where the end of a capture fails, torch's own exit leaves `side` current.
    with warnings.catch_warnings(), torch.cuda.stream(here):
        warnings.filterwarnings("error", message=_EMPTY)
        with torch.cuda.graph(graph, pool=memory.pool, stream=side, capture_error_mode="thread_local"):
            out = work()
    clear_cublas_workspaces()
    memory.pool = graph.pool()
    return graph.replay, out


class CudaGraphs:
    """Wraps programs; switched off it returns them unchanged.

    Attributes:
        on: whether programs are wrapped.
        programs: what was wrapped, by name.
        failure: of the capture after which there are no more; empty where none failed.
    """

    def __init__(self, *, on: bool, capture: Capture = capture_cuda) -> None:
        self.on, self._capture = on, capture
        self._shared: GraphMemory | None = None
        self.failure = ""
        self.programs: dict[str, CudaGraphProgram[Any, Any]] = {}

    def trial(self) -> CudaGraphs:
        """Others like these, for programs that will not last."""
        trial = CudaGraphs(on=self.on, capture=self._capture)
        trial.failure = self.failure
        return trial

    @contextmanager
    def sharing_memory(self) -> Iterator[None]:
        """Let the programs that are wrapped in the body share their memory: they never run at once."""
        self._shared = GraphMemory()
        yield
        self._shared = None

    def wrap(
        self,
        name: str,
        function: Callable[P, R],
        *,
        tolerance: float = RELATIVE_TOLERANCE,
        count_tolerance: float = 0.0,
        changes: Changes = tuple,
        in_place: Collection[int] = (),
        lends: bool = False,
    ) -> Callable[P, R]:
        """Let a function be captured and replayed.

        Args:
            function: of tensors and what holds them; reads nothing of the host that changes but the shapes
                and the numbers among its arguments, to which a graph belongs.
            tolerance, count_tolerance: of the check, see `first_mismatch`.
            changes: the tensors that it changes in place, always the same ones.
            in_place: numbers of the arguments whose tensors are not copied, as they stay in one place.
            lends: results are good until the next call, which writes into the same memory; else copies.
        """
        if not self.on:
            return function
        check = partial(first_mismatch, tolerance=tolerance, count_tolerance=count_tolerance)
        memory = self._shared or GraphMemory()
        program = CudaGraphProgram(name, function, self, check, memory, changes, in_place, lends=lends)
        self.programs[name] = program
        return program

    def capture(
        self, work: Callable[[], Any], warm_up: Callable[[], Any], memory: GraphMemory
    ) -> tuple[Replay, Any] | None:
        """Capture `work`: its replay and the tensors it fills; None where captures fail, see `failure`.

        Raises:
            torch.OutOfMemoryError: memory ran out twice, the second time with all that is free returned. By
                torch's source the capture is ended then, so others can follow.
        """
        if self.failure:
            return None
        try:
            try:
                return self._capture(work, warm_up, memory)
            except torch.OutOfMemoryError:
                pass  # the error holds what the capture has allocated
            gc.collect()
            torch.cuda.empty_cache()
            return self._capture(work, warm_up, memory)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, UserWarning) as error:
            # The end of a capture fails, too, after an operation that a capture does not allow.
            operation = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            self.failure = f"it cannot be captured: {first_line(operation)}"
            return None


@dataclass
class _Graph:
    inputs: list[Tensor]
    replay: Replay
    out: Any
    arguments: Any
    """The captured arguments, kept from being freed: some of them are used where they are."""
    num_checks: int = 0

    def run(self, inputs: list[Tensor]) -> None:
        """Replay it with these inputs; `out` holds the results until the next time."""
        copy_all_(self.inputs, inputs)
        self.replay()


class CudaGraphProgram(Generic[P, R]):
    """One program and its graphs; the parameters are those of `CudaGraphs.wrap`.

    Attributes:
        replays: how often a graph ran.
        reason: why the program runs without a graph; empty where it does not.
    """

    def __init__(
        self,
        name: str,
        function: Callable[P, R],
        owner: CudaGraphs,
        check: Check,
        memory: GraphMemory,
        changes: Changes = tuple,
        in_place: Collection[int] = (),
        *,
        lends: bool = False,
    ) -> None:
        self.name, self.replays, self.reason = name, 0, ""
        self._function, self._owner, self._check = function, owner, check
        self._changes, self._in_place, self._lends = changes, in_place, lends
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._memory = memory

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        assert not kwargs, "graphs take positional arguments"
        if self.reason:
            return self._function(*args, **kwargs)
        inputs = self._inputs(args)
        places = [memory_key(x) for i in self._in_place for x in iter_tensors(args[i])]
        numbers = [n for i, arg in enumerate(args) if i not in self._in_place for n in iter_numbers(arg)]
        key = (*((x.shape, x.dtype) for x in inputs), *places, *numbers)
        graph = self._graphs.get(key)
        if graph is None:
            return self._first(key, *args, **kwargs)
        self._graphs.move_to_end(key)
        if graph.num_checks < NUM_CHECKED_CALLS:
            before = self._state()
            return self._checked(graph, inputs, self._function(*args, **kwargs), before)
        graph.run(inputs)
        self.replays += 1
        return graph.out if self._lends else _copied(graph.out)  # type: ignore[no-any-return]

    def _inputs(self, args: Sequence[Any]) -> list[Tensor]:
        """The tensors that are copied for each replay."""
        copied = [arg for i, arg in enumerate(args) if i not in self._in_place]
        return [x for x in iter_tensors(copied) if not x.requires_grad]

    def _state(self) -> list[Tensor]:
        """Copies of what the program changes."""
        return [x.detach().clone() for x in self._changes()]

    def _put_back(self, state: list[Tensor]) -> None:
        copy_all_([x.detach() for x in self._changes()], state)

    def _first(self, key: Hashable, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run uncaptured, then capture and compare; returns the uncaptured result."""
        before = self._state()
        expected = self._function(*args, **kwargs)
        if self._owner.failure:
            self.reason = "" if self._graphs else self._owner.failure
            return expected
        mine = [
            arg if i in self._in_place else map_tensors(arg, lambda x: x if x.requires_grad else x.clone())
            for i, arg in enumerate(args)
        ]
        after = self._state()

        def work() -> R:
            return self._function(*mine)  # type: ignore[call-arg, arg-type]

        def warm_up() -> None:  # not twice from one state: what may be done once may be wrong the next time
            self._put_back(before)
            work()

        self._put_back(before)
        captured = self._captured(work, warm_up)
        self._put_back(after)
        if captured is None:
            return expected
        inputs = self._inputs(mine)
        self._memory.num_graphs += 1
        graph = self._graphs[key] = _Graph(inputs, *captured, mine)
        if len(self._graphs) > MAX_CACHED_GRAPHS:
            self._graphs.popitem(last=False)
            self._memory.release(1)
        return self._checked(graph, inputs, expected, before)

    def _captured(self, work: Callable[[], R], warm_up: Callable[[], None]) -> tuple[Replay, R] | None:
        """What is captured; None, and the log says so, where this program goes on without."""
        try:
            captured = self._owner.capture(work, warm_up, self._memory)
        except torch.OutOfMemoryError as error:
            if self._graphs:  # of other shapes; what runs now goes first
                self._drop_graphs()
                return self._captured(work, warm_up)
            self.reason = f"its capture does not fit into memory: {first_line(error)}"
            logger.warning("%s runs without a CUDA graph: %s", self.name, self.reason)
            return None
        if captured is None:
            self.reason = "" if self._graphs else self._owner.failure
            logger.warning(
                "%s runs without a CUDA graph, and no other is captured: %s", self.name, self._owner.failure
            )
        return captured

    def _drop_graphs(self) -> None:
        count = len(self._graphs)
        self._graphs.clear()
        self._memory.release(count)

    def _checked(self, graph: _Graph, inputs: list[Tensor], expected: R, before: list[Tensor]) -> R:
        """Compare a replay with the uncaptured result, which is returned and stays in force.

        Args:
            before: what the program changes, as it was before the uncaptured call.
        """
        after = self._state()
        results = list(iter_tensors(graph.out))
        try:
            for right, out in zip(iter_tensors(expected), results, strict=True):
                out.copy_(_wrong(right))
            self._put_back(before)
            graph.run(inputs)
            far = self._check([*iter_tensors(expected), *after], [*results, *self._changes()])
        except RuntimeError as error:
            far = f"it cannot be replayed: {first_line(error)}"
        self._put_back(after)
        graph.num_checks += 1
        if far:
            self.reason = far
            self._drop_graphs()
            logger.warning("%s runs without a CUDA graph: %s", self.name, far)
        return expected


@torch.no_grad()
def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, of the same dtype: in one operation for each dtype."""
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        mine, given = by_dtype.setdefault(target.dtype, ([], []))
        mine.append(target)
        given.append(source)
    for mine, given in by_dtype.values():
        copy_each_(mine, given)


def iter_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in containers and dataclasses, in order; other values are taken to be constant."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from iter_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iter_tensors(item)
    elif _holds(value):
        for field in fields(value):
            yield from iter_tensors(getattr(value, field.name))


def iter_numbers(value: Any) -> Iterator[float | str]:
    """The numbers and words of the host in containers and dataclasses, in order."""
    if isinstance(value, float | int | str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from iter_numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iter_numbers(item)
    elif _holds(value):
        for field in fields(value):
            yield from iter_numbers(getattr(value, field.name))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Copy containers and dataclasses with `change` applied to each tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: map_tensors(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [map_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if _holds(value):
        return replace(value, **{f.name: map_tensors(getattr(value, f.name), change) for f in fields(value)})
    return value


def _holds(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _wrong(right: Tensor) -> Tensor:
    """A tensor of the same shape and dtype that differs from `right` everywhere."""
    if right.is_floating_point():
        return right.isnan().to(right.dtype).masked_fill_(~right.isnan(), float("nan"))
    return ~right


def _copied(out: Any) -> Any:
    """A copy, since the next replay writes into the tensors of a graph again."""
    return map_tensors(out, torch.clone)

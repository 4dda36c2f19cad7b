"""CUDA graphs: a program whose operations never change is issued once and replayed.

Its inputs are copied into tensors of its own, its weights are used where they are. A graph belongs to the
shapes it was captured with; the least recently used one goes when there are too many. What was captured is
compared with the program itself; where it differs, or cannot be captured, the program goes on without a graph
and the log says why.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from protocol.errors import first_line

from .compiler import first_mismatch

logger = logging.getLogger(__name__)

MAX_CACHED_GRAPHS = 16
"""Graphs kept of one program; each holds the memory of its activations."""
NUM_WARM_UP_CALLS = 3
"""Calls before a capture, as torch advises: they choose kernels and allocate workspaces."""

P = ParamSpec("P")
R = TypeVar("R")
Replay = Callable[[], None]
Capture = Callable[[Callable[[], Any]], tuple[Replay, Any]]


def capture_cuda(work: Callable[[], Any]) -> tuple[Replay, Any]:
    """Capture what `work` issues on the current device: what replays it, and the tensors it fills."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(NUM_WARM_UP_CALLS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = work()
    return graph.replay, out


class CudaGraphs:
    """Wraps programs; switched off it returns them unchanged.

    Attributes:
        programs: what was wrapped, by name.
    """

    def __init__(self, *, on: bool, capture: Capture = capture_cuda) -> None:
        self._on, self._capture = on, capture
        self.programs: dict[str, CudaGraphProgram[Any, Any]] = {}

    def wrap(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        """Let a function be captured and replayed.

        Args:
            function: of tensors and what holds them; reads nothing of the host that changes but the shapes.
        """
        if not self._on:
            return function
        self.programs[name] = program = CudaGraphProgram(name, function, self._capture)
        return program


@dataclass(frozen=True)
class _Graph:
    inputs: list[Tensor]
    replay: Replay
    out: Any


class CudaGraphProgram(Generic[P, R]):
    """One program and its graphs.

    Attributes:
        replays: how often a graph ran.
        reason: why the program runs without a graph; empty where it does not.
    """

    def __init__(self, name: str, function: Callable[P, R], capture: Capture) -> None:
        self.name, self.replays, self.reason = name, 0, ""
        self._function, self._capture = function, capture
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        assert not kwargs, "graphs take positional arguments"
        if self.reason:
            return self._function(*args, **kwargs)
        inputs = [x for x in iter_tensors(args) if not x.requires_grad]
        key = tuple((x.shape, x.dtype) for x in inputs)
        graph = self._graphs.get(key)
        if graph is None:
            return self._first(key, *args, **kwargs)
        self._graphs.move_to_end(key)
        for mine, given in zip(graph.inputs, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        self.replays += 1
        return _copied(graph.out)  # type: ignore[no-any-return]

    def _first(self, key: Hashable, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run uncaptured, then capture and compare; returns the uncaptured result."""
        expected = self._function(*args, **kwargs)
        mine = map_tensors(args, lambda x: x if x.requires_grad else x.clone())
        try:
            replay, out = self._capture(lambda: self._function(*mine))  # type: ignore[call-arg]
            replay()
            far = first_mismatch(list(iter_tensors(expected)), list(iter_tensors(out)))
        except RuntimeError as error:
            far = f"it cannot be captured: {first_line(error)}"
        if far:
            self.reason = far
            self._graphs.clear()
            logger.warning("%s runs without a CUDA graph: %s", self.name, far)
            return expected
        inputs = [x for x in iter_tensors(mine) if not x.requires_grad]
        self._graphs[key] = _Graph(inputs, replay, out)
        if len(self._graphs) > MAX_CACHED_GRAPHS:
            self._graphs.popitem(last=False)
        return expected


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


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same containers and dataclasses with other tensors."""
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


def _copied(out: Any) -> Any:
    """A copy, since the next replay writes into the tensors of a graph again."""
    return map_tensors(out, torch.clone)

"""Counts what a program asks of a CUDA device: launches, copies between host and device, waits.

Each operation is also told to a `StreamOrder`, which knows what orders it.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .stream_order import StreamOrder, Touched

ROOT = Path(__file__).parents[2]
_TRAINER = str(ROOT / "esper_overwatch/trainer")
NO_LAUNCH = (
    *("empty", "new_empty", "empty_like", "empty_strided", "lift_fresh", "detach", "set_", "alias"),
    *("_unsafe_view", "device"),
)
"""Operations that allocate, look at memory otherwise, or ask where it is, beside what torch calls views."""
MAX_FOREACH_TENSORS = 48
"""Tensors of three lists that torch's multi_tensor_apply hands to one kernel."""
MIN_KERNEL_NS, BYTES_PER_NS = 2_000, 2_400
"""The model of an H100: a kernel lasts 2 microseconds, or as long as its bytes at 72 % of 3.35 TB/s."""
WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal")


class DeviceCalls(TorchDispatchMode):
    """What is asked of the device, counted by the section of the program that asks.

    Args:
        order: is told what each operation touches.

    Attributes:
        counts: by section and kind: `launches`, `copies` (between host and device, waited for or not),
            `waits` (of the host for the device), and what the device does: `kernels`, those of graphs too,
            the `bytes` that they read and write, each tensor of an operation once, and the `ns` that this
            takes by a model of an H100 on which no two kernels overlap.
        places: by section, "kind file:line" of each copy and wait.
    """

    def __init__(self, order: StreamOrder) -> None:
        super().__init__()
        self.order = order
        self.counts: dict[str, Counter[str]] = {}
        self.places: dict[str, Counter[str]] = {}

    @property
    def section(self) -> str:
        """What is counted now."""
        return self.order.section

    @section.setter
    def section(self, name: str) -> None:
        self.order.section = name

    def here(self) -> Counter[str]:
        """What was counted so far in the present section."""
        return self.counts.setdefault(self.section, Counter())

    def add_kernels(self, launches: int, num_bytes: int) -> None:
        """Count what these kernels compute."""
        ns = max(launches * MIN_KERNEL_NS, num_bytes // BYTES_PER_NS)
        self.here().update({"launches": launches, "kernels": launches, "bytes": num_bytes, "ns": ns})

    def add(self, *kinds: str) -> None:
        """Count one call, of these kinds."""
        self.here().update(kinds)
        frames = reversed(traceback.extract_stack())
        inside = (f for f in frames if f.filename.startswith(_TRAINER))
        place = next((f"{Path(f.filename).relative_to(_TRAINER)}:{f.lineno}" for f in inside), "?")
        self.places.setdefault(self.section, Counter())[f"{'+'.join(kinds)} {place}"] += 1

    def counted(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same work, whose launches are counted under a name of their own as well."""

        def counting(*args: Any, **kwargs: Any) -> Any:
            before = self.here()["launches"]
            out = work(*args, **kwargs)
            self.here()[name] += self.here()["launches"] - before
            return out

        return counting

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "_fused_" in str(func):  # of the optimizer, which has no fake implementation
            _check_fused(args)
            self._tell_order(func, args, kwargs, [], {"cuda"})
            self.add_kernels(1, _num_bytes(args))
            return None
        out = func(*args, **kwargs)
        ins = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        outs = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        devices = {x.device.type for x in (*ins, *outs)}
        if not func.is_view and func.overloadpacket.__name__ not in NO_LAUNCH:
            self._tell_order(func, args, kwargs, outs, devices)
        if "cuda" in devices:
            self._classify(func, args, kwargs, ins, outs, devices)
        return out

    def _tell_order(self, func: Any, args: Any, kwargs: Any, outs: list[Tensor], devices: set[str]) -> None:
        """What the operation reads and writes; of the host's memory that which the device has touched."""
        order, on_device = self.order, "cuda" in devices
        touched: list[Touched] = []
        given: set[int] = set()
        for i, argument in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            for x in tree_leaves(value):
                if isinstance(x, Tensor):
                    given.add(x.untyped_storage()._cdata)
                    if x.device.type == "cuda" or order.is_known(x) or (on_device and is_written):
                        touched.append(order.touched(x, is_written=is_written))
        for x in outs:
            if x.untyped_storage()._cdata not in given and on_device:
                touched.append(order.touched(x, is_written=True))
        what = f"{func.overloadpacket.__name__} of {_place()}"
        (order.issue if on_device else order.issue_on_host)(what, touched)

    def _classify(
        self, func: Any, args: Any, kwargs: Any, ins: list[Tensor], outs: list[Tensor], devices: set[str]
    ) -> None:
        name = func.overloadpacket.__name__
        if "copy" in name and devices == {"cuda", "cpu"}:
            queued = kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])
            self.add("copies", *(() if queued else ("waits",)))
            if not queued:
                self.order.wait_here()
        elif name in WAITING or (name.startswith("index") and _has_bool_index(args)):
            self.add("waits")
            self.add_kernels(1, _num_bytes((ins, outs)))
            self.order.wait_here()
        elif any(x.device.type == "cpu" and x.dim() > 0 for x in ins):
            raise AssertionError(f"{func} is given tensors of the CPU and of the device")
        elif name.startswith("_foreach_"):
            launches = _num_foreach_launches(args)
            self.add_kernels(launches, _num_bytes((ins, outs)))
        elif not func.is_view and name not in NO_LAUNCH:
            # A segmented sum subtracts the offsets first.
            self.add_kernels(2 if name == "segment_reduce" else 1, _num_bytes((ins, outs)))


def _place() -> str:
    """Where in the trainer the present operation comes from; a backward pass has no frames."""
    frame = sys._getframe(1)
    while frame is not None:  # type: ignore[redundant-expr]
        if frame.f_code.co_filename.startswith(_TRAINER):
            return f"{frame.f_code.co_filename[len(_TRAINER) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a backward pass"


def _num_foreach_launches(args: Any) -> int:
    """One for so many tensors, where dtypes are one and the lists lie alike; else one for each tensor."""
    lists = [part for part in args if isinstance(part, list | tuple) and part and isinstance(part[0], Tensor)]
    alike = len({t.dtype for part in lists for t in part}) == 1 and all(
        len({t.stride() for t in tensors}) == 1 for tensors in zip(*lists, strict=True)
    )
    return -(-len(lists[0]) // MAX_FOREACH_TENSORS) if alike else len(lists[0])


def _num_bytes(tensors: Any) -> int:
    """Bytes of tensors in containers, each once; of an expanded one those that lie in memory."""
    found = {}
    for x in tree_leaves(tensors):
        if isinstance(x, Tensor):
            sizes = [size for size, step in zip(x.shape, x.stride(), strict=True) if step]
            key = (x.untyped_storage()._cdata, x.storage_offset(), tuple(x.shape))
            found[key] = math.prod(sizes) * x.element_size()
    return sum(found.values())


def _has_bool_index(args: Any) -> bool:
    """Whether an index is a mask, whose size the host has to know."""
    import torch

    return any(isinstance(x, Tensor) and x.dtype == torch.bool for x in tree_leaves(args[1]))


def _check_fused(args: Any) -> None:
    """Assert what CUDA's fused optimizers ask: equal devices, dtypes, shapes and strides."""
    lists = [part for part in args if isinstance(part, list | tuple) and part and isinstance(part[0], Tensor)]
    for tensors in zip(*lists[:3], strict=True):
        assert len({(t.device, t.dtype, t.shape) for t in tensors}) == 1
        strides = {
            tuple(s for size, s in zip(t.shape, t.stride(), strict=True) if size != 1) for t in tensors
        }
        assert len(strides) == 1

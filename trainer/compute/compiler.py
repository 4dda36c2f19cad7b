"""torch.compile for the static programs of a run, each checked against itself uncompiled.

torch 2.13 has compiled programs on CPUs to silently wrong gradients. So the first call of a program, and the
first with other shapes, runs both ways; where losses, gradients or other results differ, or the compiler
gives up, the program goes on uncompiled and the log says why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from esper_overwatch.protocol.errors import first_line
from esper_overwatch.trainer.config.host_options import CompileMode

from . import torch_private
from .torch_private import tree_leaves, tree_map_only

logger = logging.getLogger(__name__)

RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE, MIXED_PRECISION_TOLERANCE = 1e-3, 1e-5, 5e-2
"""Tolerances of the check: float32 summed in another order; with autocast, rounded in other places."""
MAX_GRAPHS_PER_FUNCTION = 64
"""Graphs that may be compiled of one function: shapes, and values that it branches on."""
MAX_UNROLLED_EPOCHS = 256
"""Epochs of an episode up to which loops over it are unrolled and compiled."""

P = ParamSpec("P")
R = TypeVar("R")
Weights = Callable[[], Sequence[Tensor]]


class Compiler:
    """Wraps functions; with the mode `off` it returns them unchanged.

    Args:
        mode: `off`, or a mode of torch.compile.
        device: where the programs run.
        steps: epochs of an episode.

    Attributes:
        programs: what was wrapped, by name.
    """

    def __init__(self, mode: CompileMode, device: torch.device, steps: int = 0) -> None:
        self._mode, self._steps = mode, steps
        self._device = device
        self.programs: dict[str, CompiledProgram[Any, Any]] = {}
        if mode != "off":
            torch_private.limit_recompiles(MAX_GRAPHS_PER_FUNCTION)
            if device.type == "cpu":
                torch_private.use_plain_cpu_layouts()

    def wrap(
        self,
        name: str,
        function: Callable[P, R],
        *,
        weights: Weights = tuple,
        objective: Callable[[R], Tensor] | None = None,
        key: Callable[P, Hashable] | None = None,
        loops: bool = False,
        tolerance: float = RELATIVE_TOLERANCE,
        unless: str = "",
    ) -> Callable[P, R]:
        """Compile a function.

        Args:
            name: as the log shows it.
            function: of tensors and what holds them; without side effects.
            weights: what `objective` of the result is derived by, in the check.
            objective: the scalar to derive; None = the function is not differentiated.
            key: what distinguishes calls that compile to different graphs; by default the shapes of tensors
                among the arguments.
            loops: it has a loop over the epochs of an episode.
            tolerance: of the check, relative to the largest number of a tensor.
            unless: a reason to leave it uncompiled; logged.
        """
        if self._mode == "off":
            return function
        if loops and self._steps > MAX_UNROLLED_EPOCHS:
            unless = f"a loop over {self._steps} epochs would be unrolled; up to {MAX_UNROLLED_EPOCHS} are"
        check = CompileCheck(weights, objective, key or tensor_shapes, tolerance)
        program = CompiledProgram(name, function, self._mode, self._device, check)
        self.programs[name] = program
        if unless:
            program.give_up(unless)
        return program


@dataclass(frozen=True)
class CompileCheck:
    """Comparison of a program with itself; see `Compiler.wrap`."""

    weights: Weights
    objective: Callable[[Any], Tensor] | None
    key: Callable[..., Hashable]
    tolerance: float


class CompiledProgram(Generic[P, R]):
    """One compiled function.

    Attributes:
        calls: how often the compiled code ran since its check.
        reason: why the function runs uncompiled; empty where it does not.
    """

    def __init__(
        self,
        name: str,
        function: Callable[P, R],
        mode: CompileMode,
        device: torch.device,
        check: CompileCheck,
    ) -> None:
        self.name, self.calls, self.reason = name, 0, ""
        self._function, self._how = function, check
        self._compiled = torch.compile(function, fullgraph=True, dynamic=False, mode=mode)
        # CUDA graphs, which these modes make, write the next result into the memory of the last one.
        self._copies = device.type == "cuda" and mode != "default"
        self._right: set[Hashable] = set()
        self._lock = threading.Lock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.reason:
            return self._function(*args, **kwargs)
        key = (torch.is_grad_enabled(), self._how.key(*args, **kwargs))
        if key not in self._right:
            with self._lock:
                if self.reason or key not in self._right:
                    return self._check(key, *args, **kwargs)
        self.calls += 1
        out = self._compiled(*args, **kwargs)
        return tree_map_only(Tensor, _kept, out) if self._copies else out

    def give_up(self, reason: str) -> None:
        """Run uncompiled from now on."""
        self.reason = reason
        logger.warning("%s runs uncompiled: %s", self.name, reason)

    def _check(self, key: Hashable, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run both ways and compare; returns the uncompiled result."""
        expected, gradients = self._derived(self._function, *args, **kwargs)
        if self.reason:
            return expected
        try:
            found, found_gradients = self._derived(self._compiled, *args, **kwargs)
        except RuntimeError as error:
            self.give_up(f"torch.compile: {type(error).__name__}: {first_line(error)}")
            return expected
        tolerance = self._how.tolerance
        far = first_mismatch(tree_leaves(expected), tree_leaves(found), tolerance)
        if not far and (far := first_mismatch(gradients, found_gradients, tolerance)):
            far = f"gradients: {far}"
        if far:
            self.give_up(f"compiled, it computes something else ({far})")
        else:
            self._right.add(key)
            logger.info("%s is compiled and agrees with itself uncompiled", self.name)
        return expected

    def _derived(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[R, Sequence[Tensor]]:
        out = function(*args, **kwargs)
        if self._how.objective is None or not torch.is_grad_enabled():
            return out, ()
        weights = [w for w in self._how.weights() if w.requires_grad]
        gradients = torch.autograd.grad(
            self._how.objective(out), weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return out, gradients


def _kept(result: Tensor) -> Tensor:
    """A copy, but of what is derived: its gradient is computed before the next call."""
    return result if result.requires_grad else result.clone()


def first_mismatch(
    expected: Sequence[Any],
    found: Sequence[Any],
    tolerance: float = RELATIVE_TOLERANCE,
    count_tolerance: float = 0.0,
) -> str:
    """Describe the first pair of results that differ by more than rounding; empty where none do.

    Args:
        tolerance: relative to the largest number of a tensor, as what cancels leaves no digits.
        count_tolerance: the same for integers, which may then differ by 1 at least; 0 = they are equal.
    """
    for i, (one, other) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(one, Tensor):
            continue
        one, other = one.detach(), other.detach()
        most = one.abs().nan_to_num(0.0, 0.0, 0.0).amax() if one.is_floating_point() and one.numel() else 0.0
        limit = max(ABSOLUTE_TOLERANCE, tolerance * float(most)) if one.is_floating_point() else 0.0
        if count_tolerance and one.dtype == torch.int64 and one.numel():
            limit = max(1.0, count_tolerance * float(one.abs().amax()))
        if not bool(torch.isclose(other, one, rtol=0.0, atol=limit, equal_nan=True).all()):
            far = (other.double() - one.double()).abs().max()
            return f"result {i} of shape {list(one.shape)} by up to {float(far):.3g}"
    return ""


def tensor_shapes(*args: Any, **kwargs: Any) -> Hashable:
    """Shapes of the tensors among the arguments."""
    return tuple(a.shape for a in (*args, *kwargs.values()) if isinstance(a, Tensor))

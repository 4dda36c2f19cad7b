"""Formulas of one number at a time, each a single kernel on a GPU; elsewhere operation by operation.

NVIDIA's compiler for running programs (NVRTC), which comes with torch, compiles them when they are first
called. The first call with other types runs both ways; where results differ, or the compiler is missing, the
formula goes on operation by operation and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from esper_overwatch.protocol.errors import first_line

from .compiler import MIXED_PRECISION_TOLERANCE, RELATIVE_TOLERANCE, first_mismatch
from .torch_private import compile_pointwise

logger = logging.getLogger(__name__)


class FusedFormula:
    """A pointwise function of tensors that broadcast to one shape.

    Args:
        code: of a C++ function template of numbers `T`, results last by reference; a bool is 0 or 1.
        results: how many.
        plain: the same by torch's operations.

    Attributes:
        reason: why it goes operation by operation on a GPU; empty where it does not.
    """

    def __init__(self, code: str, results: int, plain: Callable[..., tuple[Tensor, ...]]) -> None:
        self.code, self.plain, self.reason = code, plain, ""
        self._num_results = results
        self._kernel: Callable[..., Tensor | tuple[Tensor, ...]] | None = None
        self._right: set[tuple[torch.dtype, ...]] = set()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if tensors[0].device.type != "cuda" or self.reason or torch.compiler.is_compiling():
            return self.plain(*tensors)
        if (types := tuple(tensor.dtype for tensor in tensors)) not in self._right:
            return self._check(types, *tensors)
        return self._fused(*tensors)

    def _fused(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self._kernel is None:
            self._kernel = compile_pointwise(self.code, self._num_results)
        made = self._kernel(*tensors)
        return (made,) if isinstance(made, Tensor) else made

    def _check(self, types: tuple[torch.dtype, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        expected = self.plain(*tensors)
        is_mixed = any(kind.is_floating_point and kind.itemsize < 4 for kind in types)
        tolerance = MIXED_PRECISION_TOLERANCE if is_mixed else RELATIVE_TOLERANCE
        try:
            made = [m.to(e.dtype) for m, e in zip(self._fused(*tensors), expected, strict=True)]
            far = first_mismatch(expected, made, tolerance)
        except RuntimeError as error:
            far = f"{type(error).__name__}: {first_line(error)}"
        if far:
            self.reason = far
            logger.warning("a formula is computed operation by operation: %s", far)
        self._right.add(types)
        return expected

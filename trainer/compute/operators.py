"""Operators of our own, defined by torch.library so that torch's profiler, tracer and compiler know them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_OPERATORS = torch.library.Library("esper", "DEF")  # type: ignore[no-untyped-call]


def define_operator(
    schema: str,
    *,
    on_cpu: Callable[..., Any],
    fake: Callable[..., Any],
    recorded: Callable[..., Any] | None = None,
) -> None:
    """Define `torch.ops.esper.NAME`.

    Args:
        schema: its name, arguments and results, as torch.library writes them.
        on_cpu: what it does on a CPU.
        fake: makes results of the right shape, for what traces programs.
        recorded: is called in the place of `on_cpu` first, and records it where gradients are wanted; takes
            two thirds of the time that torch.library.custom_op needs to do the same.
    """
    name = schema.partition("(")[0]
    _OPERATORS.define(schema)  # type: ignore[no-untyped-call]
    _OPERATORS.impl(name, on_cpu, "CPU")  # type: ignore[no-untyped-call]
    if recorded is not None:
        _OPERATORS.impl(name, recorded, "Autograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"esper::{name}", fake, lib=_OPERATORS)

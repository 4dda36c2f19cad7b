"""What slows a run down unseen, counted: waits for the GPU, graph breaks, recompilations, a full memory."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import CompileContext

_SYNC = "called a synchronizing CUDA operation"
"""Begins the warning that torch.cuda.set_sync_debug_mode("warn") has for each."""


@dataclass(frozen=True)
class Hindrances:
    """Counts of a round, as fields of `RoundFinished`; None where there is no GPU."""

    device_syncs: int | None = None
    graph_breaks: int = 0
    recompiles: int = 0
    allocator_retries: int | None = None


class Counters:
    """Counts from its making on; one per process, since what it watches is the process's.

    Args:
        device: of the run.
    """

    def __init__(self, device: torch.device) -> None:
        import torch._dynamo.utils as dynamo

        self._dynamo = dynamo
        self._device = device
        self._syncs = self._recompiles = 0
        dynamo.register_hook_for_recompile_user_context(self._compiles)
        if device.type == "cuda":
            self._show = warnings.showwarning
            warnings.filterwarnings("always", message=_SYNC)
            warnings.showwarning = self._warned
            torch.cuda.set_sync_debug_mode("warn")
        self._before = self._now(0)

    def take(self, transfers: int) -> Hindrances:
        """All since the last call.

        Args:
            transfers: how often the host has waited for the device on purpose, since the beginning.
        """
        before, self._before = self._before, self._now(transfers)
        waits, breaks, recompiles, retries = (
            now - then for now, then in zip(self._before, before, strict=True)
        )
        cuda = self._device.type == "cuda"
        return Hindrances(
            device_syncs=waits if cuda else None,
            graph_breaks=breaks,
            recompiles=recompiles,
            allocator_retries=retries if cuda else None,
        )

    def _now(self, transfers: int) -> tuple[int, ...]:
        retries = 0
        if self._device.type == "cuda":
            retries = torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0)
        breaks = sum(self._dynamo.counters["graph_break"].values())
        return transfers + self._syncs, breaks, self._recompiles, retries

    def _compiles(self) -> str:
        """Called by torch 2.13 before it compiles a function, for the first time or anew."""
        compiled = CompileContext.current_compile_id()
        self._recompiles += compiled is not None and bool(compiled.frame_compile_id)
        return "counted by telemetry"

    def _warned(self, message: Any, *args: Any, **kwargs: Any) -> None:
        if str(message).startswith(_SYNC):
            self._syncs += 1
        else:
            self._show(message, *args, **kwargs)

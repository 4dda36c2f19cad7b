"""Counts of hidden slowdowns: waits for the GPU, graph breaks, recompilations, a full memory."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from trainer.compute.torch_private import count_graph_breaks, is_recompiling, on_compile

_SYNC = "called a synchronizing CUDA operation"
"""Begins the warning that torch.cuda.set_sync_debug_mode("warn") has for each."""


@dataclass(frozen=True)
class StallCounts:
    """Counts of a round, as fields of `RoundFinished`; None where there is no GPU."""

    device_syncs: int | None = None
    graph_breaks: int = 0
    recompiles: int = 0
    allocator_retries: int | None = None


class StallCounters:
    """Counts from its making on; one per process, since what it watches is the process's.

    Args:
        device: of the run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._syncs = self._recompiles = 0
        on_compile(self._note_compilation)
        if device.type == "cuda":
            self._show = warnings.showwarning
            warnings.filterwarnings("always", message=_SYNC)
            warnings.showwarning = self._warned
            torch.cuda.set_sync_debug_mode("warn")
        self._before = self._now(0)

    def take(self, transfers: int) -> StallCounts:
        """All since the last call.

        Args:
            transfers: how often the host has waited for the device on purpose, since the beginning.
        """
        before, self._before = self._before, self._now(transfers)
        waits, breaks, recompiles, retries = (
            now - then for now, then in zip(self._before, before, strict=True)
        )
        cuda = self._device.type == "cuda"
        return StallCounts(
            device_syncs=waits if cuda else None,
            graph_breaks=breaks,
            recompiles=recompiles,
            allocator_retries=retries if cuda else None,
        )

    def _now(self, transfers: int) -> tuple[int, ...]:
        retries = 0
        if self._device.type == "cuda":
            retries = torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0)
        return transfers + self._syncs, count_graph_breaks(), self._recompiles, retries

    def _note_compilation(self) -> str:
        self._recompiles += is_recompiling()
        return "counted by telemetry"

    def _warned(self, message: Any, *args: Any, **kwargs: Any) -> None:
        if str(message).startswith(_SYNC):
            self._syncs += 1
        else:
            self._show(message, *args, **kwargs)

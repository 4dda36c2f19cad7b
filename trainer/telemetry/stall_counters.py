"""Counts of hidden slowdowns: waits for the GPU, graph breaks, recompilations, a full memory."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from esper_overwatch.trainer.compute.torch_private import (
    count_graph_breaks,
    is_compiler_loaded,
    is_recompiling,
    on_compile,
)

_SYNC = "called a synchronizing CUDA operation"
"""Begins the warning that torch.cuda.set_sync_debug_mode("warn") has for each."""
SYNCS_EVERY = 16
"""Waits for a GPU are counted in one round out of this many, since each costs a warning of Python's."""


@dataclass(frozen=True)
class StallCounts:
    """Counts of a round, as fields of `RoundFinished`; None where there is no GPU, `device_syncs` also where
    the round was not one of those that are counted."""

    device_syncs: int | None = None
    graph_breaks: int = 0
    recompiles: int = 0
    allocator_retries: int | None = None


class StallCounters:
    """Counts from its construction on; one per process, since what it watches is the process's.

    Args:
        syncs_every: rounds from one in which waits for a GPU are counted to the next, from the second on: the
            first one captures graphs.
    """

    def __init__(self, device: torch.device, *, syncs_every: int = SYNCS_EVERY) -> None:
        self._device, self._every = device, syncs_every
        self._rounds = self._syncs = self._recompiles = 0
        self._is_counting = False
        self._show = self._show_before = warnings.showwarning
        self._hears_compiler = False
        self._hear_compiler()
        self._before = self._now(0)

    def begin_round(self) -> None:
        """Have torch warn of waits in this round, or no longer."""
        self._hear_compiler()
        self._rounds += 1
        counts = self._device.type == "cuda" and (self._rounds - 2) % self._every == 0
        if counts and not self._is_counting:
            self._hear_warnings()
        elif self._is_counting and not counts:
            self._ignore_warnings()
        self._is_counting = counts

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
            device_syncs=waits if self._is_counting else None,
            graph_breaks=breaks,
            recompiles=recompiles,
            allocator_retries=retries if cuda else None,
        )

    def _now(self, transfers: int) -> tuple[int, ...]:
        retries = 0
        if self._device.type == "cuda":
            retries = torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0)
        return transfers + self._syncs, count_graph_breaks(), self._recompiles, retries

    def _hear_compiler(self) -> None:
        """Be told of compilations, once something compiles."""
        if not self._hears_compiler and is_compiler_loaded():
            self._hears_compiler = True
            on_compile(self._note_compilation)

    def _note_compilation(self) -> str:
        self._recompiles += is_recompiling()
        return "counted by telemetry"

    def _hear_warnings(self) -> None:
        """Count torch's warnings before anything else has them.

        Not from the making on: a daemon's log takes over Python's warnings after that, and each wait would
        be a line of it.
        """
        show = self._show_before = warnings.showwarning

        def count_or_show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            if str(message).startswith(_SYNC):
                self._syncs += 1
            else:
                show(message, *args, **kwargs)

        self._show = warnings.showwarning = count_or_show
        warnings.filterwarnings("always", message=_SYNC)
        torch.cuda.set_sync_debug_mode("warn")

    def _ignore_warnings(self) -> None:
        torch.cuda.set_sync_debug_mode("default")
        if warnings.showwarning is self._show:  # else who has come since goes on, and shows what it is given
            warnings.showwarning = self._show_before

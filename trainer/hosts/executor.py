"""Executes the work of host groups: on worker threads of a CPU, or each on its own stream of a GPU.

On a GPU one thread issues the work of all groups; what one group's stream computes overlaps with the others',
unless they run one after another on one stream, where memory is short: it goes from one to the next.
A stream begins when all that was issued before is done, and what is issued afterwards waits for all streams,
so that memory never passes from one stream to another in use.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from esper_overwatch.trainer.compute.device import keep_freed_memory

T = TypeVar("T")


class GroupExecutor:
    """Runs work for each of several groups.

    Args:
        threads: at most, on a CPU.
        is_serial: on a GPU all groups share one stream.

    Attributes:
        num_parallel: groups that run at once.
    """

    def __init__(self, groups: int, threads: int, device: torch.device, *, is_serial: bool = False) -> None:
        self.groups, self._device, self.is_serial = groups, device, is_serial
        cuda = device.type == "cuda"
        if not cuda:
            keep_freed_memory()
        self.num_parallel = min(threads, groups)
        if cuda:
            self.num_parallel = 1 if is_serial else groups
        self._streams: list[torch.cuda.Stream] = []
        if cuda and self.num_parallel > 1:
            self._streams = [torch.cuda.Stream(device) for _ in range(groups)]  # type: ignore[no-untyped-call]
        self._workers = (
            None if cuda else ThreadPoolExecutor(self.num_parallel, "hosts", lambda: torch.set_num_threads(1))
        )

    def map(self, work: Callable[[int], T], groups: int | None = None) -> list[T]:
        """Call `work` with the number of each group, or of the first `groups`; returns the results in
        order."""
        numbers = range(self.groups if groups is None else groups)
        if self._workers is not None:
            return list(self._workers.map(work, numbers))
        if not self._streams:
            return [work(number) for number in numbers]
        here = torch.cuda.current_stream(self._device)
        for stream in self._streams:
            stream.wait_stream(here)
        results = []
        for number in numbers:
            with torch.cuda.stream(self._streams[number]):
                results.append(work(number))
        for stream in self._streams:
            here.wait_stream(stream)
        return results

    def close(self) -> None:
        """End the worker threads."""
        if self._workers is not None:
            self._workers.shutdown()

"""Limits that a batch system or a container sets this process by control groups; needs no torch.

They kill, or slow down, at these limits, long before the machine is full. Limits of version 2 and version 1
count, and those of the groups around the own one. Where a container shows paths of its host, which it cannot
open, those of the folders above them hold.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files by version: limit, use, and the row of `memory.stat` of the file cache that can be freed."""


def count_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> tuple[int, int]:
    """(total, used) bytes of what this process may use: the machine's, or a group's where that is less.

    File cache that the kernel gives back on demand does not count as used.
    """
    machine = psutil.virtual_memory()
    total, used = machine.total, machine.total - machine.available
    for folder in _folders("memory", root, membership):
        for limit_file, use_file, cache in _MEMORY_FILES:
            try:
                limit = int((folder / limit_file).read_text())
                use = int((folder / use_file).read_text())
                rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                if limit < total:
                    total, used = limit, max(0, use - int(rows[cache]))
            except (OSError, ValueError, KeyError):
                pass  # not of this version, or without a limit ("max")
    return total, used


def cpu_quota(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Cores' worth of time that is granted; None = no limit."""
    quotas = [quota for folder in _folders("cpu", root, membership) for quota in _quotas(folder)]
    return min(quotas, default=None)


def granted_cores(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Cores that this process can keep busy."""
    quota = cpu_quota(root, membership)
    return count_cores() if quota is None else min(count_cores(), math.ceil(quota))


def _quotas(folder: Path) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of a group's files of either version."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
        except (OSError, ValueError):
            continue  # not of this version, or without a limit ("max")
        if quota > 0 and period > 0:
            yield quota / period


def _folders(controller: str, root: Path, membership: Path) -> Iterator[Path]:
    """Folders of the groups of this process that may limit it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = [root, root / "unified"]
        elif controller in controllers.split(","):
            mounts = [root / controller, root / controllers]
        else:
            continue
        group = PurePosixPath(path.strip("/"))
        groups = [PurePosixPath()] if ".." in group.parts else [group, *group.parents]
        yield from (mount / group for mount in mounts for group in groups)

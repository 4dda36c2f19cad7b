"""The CPU cores that this process may use; needs no torch."""

from __future__ import annotations

import os


def count_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

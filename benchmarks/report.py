"""The end of every benchmark: one line of JSON, and exit code 0 only if its targets hold."""

from __future__ import annotations

import json
import math
import operator
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NoReturn

_OPERATORS = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq}


def machine() -> dict[str, object]:
    """The machine that the figures are from, and the date."""
    import psutil

    return {
        "cpu": _cpu(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def finish(name: str, figures: Mapping[str, float], targets: Mapping[str, tuple[str, float]]) -> NoReturn:
    """Print `{name, figures, targets, held, machine}` as one line of JSON and exit.

    Args:
        name: the benchmark.
        figures: figure -> measured value; NaN becomes null.
        targets: figure -> (operator, bound); every one must be among the figures. NaN misses its target.
    """
    for key, (op, bound) in targets.items():
        mark = "ok  " if _OPERATORS[op](figures[key], bound) else "MISS"
        print(f"  {mark} {key} = {figures[key]:.6g} (target {op} {bound:g})")
    held = all(_OPERATORS[op](figures[key], bound) for key, (op, bound) in targets.items())
    line = {
        "name": name,
        "figures": {key: float(f"{v:.6g}") if math.isfinite(v) else None for key, v in figures.items()},
        "targets": {key: f"{op} {bound:g}" for key, (op, bound) in targets.items()},
        "held": held,
        "machine": machine(),
    }
    print(json.dumps(line), flush=True)
    sys.exit(0 if held else 1)

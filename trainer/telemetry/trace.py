"""Reading a Chrome trace: which operators the time went to."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

OPERATORS = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset")
"""Categories of kineto's events that are work; the rest is annotation and flow."""


def top_operators(trace: dict[str, Any], count: int = 12) -> list[dict[str, Any]]:
    """Operators by self time: their own duration less that of the operators they called.

    Args:
        trace: the parsed file, Chrome trace event format, durations in microseconds.
        count: how many.

    Returns:
        name, calls, self_us and share (of all operators' self time on the same kind of device: `on`).
    """
    lanes: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in OPERATORS:
            lanes[event["pid"], event["tid"]].append(event)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    self_us: dict[tuple[str, str], float] = defaultdict(float)
    for lane in lanes.values():
        for event, own in _self_times(lane):
            key = (event["name"], "cpu" if event["cat"] == "cpu_op" else "device")
            calls[key] += 1
            self_us[key] += own
    total: dict[str, float] = defaultdict(float)
    for (_, on), us in self_us.items():
        total[on] += us
    order = sorted(self_us, key=self_us.__getitem__, reverse=True)[:count]
    return [
        {
            "name": key[0],
            "on": key[1],
            "calls": calls[key],
            "self_us": round(self_us[key], 3),
            "share": round(self_us[key] / total[key[1]], 4) if total[key[1]] else 0.0,
        }
        for key in order
    ]


def _self_times(lane: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    """Each event of one thread with its duration less its direct children's; they nest, never cross."""
    lane.sort(key=lambda event: (event["ts"], -event["dur"]))
    own = [float(event["dur"]) for event in lane]
    stack: list[int] = []
    for i, event in enumerate(lane):
        while stack and lane[stack[-1]]["ts"] + lane[stack[-1]]["dur"] <= event["ts"]:
            stack.pop()
        if stack:
            own[stack[-1]] -= event["dur"]
        stack.append(i)
    return [(event, max(us, 0.0)) for event, us in zip(lane, own, strict=True)]

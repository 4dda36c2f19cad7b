"""Reading a Chrome trace: which operators the time went to, and what held them up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

OPERATOR_CATEGORIES = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset")
"""Categories of kineto's events that are work; the rest is annotation and flow."""

STEP_PREFIX = "ProfilerStep#"
"""Begins the annotation of an epoch, as TensorBoard's plugin wants it."""
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
CALL_CATEGORIES = ("cpu_op", "cuda_runtime", "cuda_driver", "xpu_runtime")
"""Categories of what a thread of the host runs."""
ALLOCATION_CALLS = frozenset(
    {
        "aten::empty",
        "aten::empty_strided",
        "aten::resize_",
        "cudaMalloc",
        "cudaFree",
        "cudaMallocAsync",
        "cudaFreeAsync",
        "cudaHostAlloc",
        "cudaMallocHost",
        "cuMemCreate",
        "cuMemMap",
    }
)


def utilisation(trace: dict[str, Any]) -> dict[str, float | int | None]:
    """Utilisation of the machine, as fields of `ProfilerFinished`.

    Args:
        trace: the parsed file, Chrome trace event format, times in microseconds.
    """
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    calls = [e for e in events if e.get("cat") in CALL_CATEGORIES]
    device = [e for e in events if e.get("cat") in DEVICE_CATEGORIES]
    steps = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith(STEP_PREFIX)]
    if not calls:
        return {}
    window = _union_length([_enclosing_span([*steps, *calls, *device])])
    return {
        "gpu_utilisation": round(_union_length(_spans(device)) / window, 4) if device else None,
        "kernels": sum(e["cat"] == "kernel" for e in device) if device else None,
        "allocator_seconds": sum(e["dur"] for e in calls if e["name"] in ALLOCATION_CALLS) / 1e6,
        "python_share": round(1.0 - _union_length(_spans(calls)) / window, 4),
    }


def _spans(events: Iterable[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(e["ts"], e["ts"] + e["dur"]) for e in events]


def _enclosing_span(events: list[dict[str, Any]]) -> tuple[float, float]:
    """Span from the first beginning to the last end."""
    spans = _spans(events)
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def _union_length(spans: list[tuple[float, float]]) -> float:
    """Length of the union of spans of time."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


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
        if event.get("ph") == "X" and event.get("cat") in OPERATOR_CATEGORIES:
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

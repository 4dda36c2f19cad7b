"""What happened in a run, without what the clock of the wall and the machine determine."""

from __future__ import annotations

from typing import Any

from .conftest import House

TIMES = {
    "seconds",
    "phases",
    "cpu_phases",
    "gpu_phases",
    "gpu_round",
    "gpu_epoch",
    "env_epochs_per_second",
    "since",
}
OF_THE_NETWORK = {"probability", "op_probability", "value"}
"""Equal to rounding: a network multiplies a half batch in another order."""
OF_THE_MACHINE = {"system", "telemetry"}
"""Sources of anomalies."""


def course(house: House, name: str, without: tuple[str, ...]) -> dict[str, list[Any]]:
    """The events of each stream, in order.

    Args:
        without: how the types begin that are left out.
    """
    streams: dict[str, list[Any]] = {}
    for event in house.journal(name):
        data = {key: value for key, value in event["data"].items() if key not in TIMES | OF_THE_NETWORK}
        if event["type"].startswith(without) or str(data.get("source")) in OF_THE_MACHINE:
            continue
        if event["type"] == "anomaly" and data["active"] and data.get("value") is None:
            continue  # told again by a boot that resumes
        if event["type"] == "incident":
            continue  # each boot has its own
        streams.setdefault(event["stream"], []).append((event["type"], event["ctx"], data))
    return streams


def assert_same(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> None:
    """The first event that differs is named."""
    assert one.keys() == other.keys()
    for stream, events in one.items():
        assert len(events) == len(other[stream]), stream
        for expected, got in zip(events, other[stream], strict=True):
            assert got == expected

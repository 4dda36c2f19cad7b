"""Metrics by name: the numbers of an event that a condition can be about, each with its source."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import EVENTS

EVENTS_WITH_METRICS: tuple[type, ...] = (
    ev.EpochFinished,
    ev.PPOUpdate,
    ev.Drift,
    ev.RoundFinished,
    ev.SystemSample,
)
"""Of a training; the first that has a field of a name is meant by it. Published runs have the last one."""
ALIASES = {"loss": "train_loss", "accuracy": "val_accuracy", "drift": "norm_drift", "return": "return_mean"}
"""Names of a training's metrics that are shorter than their fields."""
_TYPE_OF = {spec.cls: type_ for type_, spec in EVENTS.items()}


class MetricPath:
    """The field of an event that a name means; `of` finds it.

    Attributes:
        event: class of the event.
    """

    def __init__(self, event: type, field: str, key: str) -> None:
        self.event = event
        self._field, self._key = field, key

    @classmethod
    def of(cls, name: str, *, is_published: bool) -> MetricPath | None:
        """`val_loss`, `ppo.update.seconds`, `phases.train`; None where no event has it."""
        name = name if is_published else ALIASES.get(name, name)
        for event in (ev.SystemSample,) if is_published else EVENTS_WITH_METRICS:
            field, _, key = name.removeprefix(_TYPE_OF[event] + ".").partition(".")
            type_ = _fields(event).get(field)
            if type_ is not None and type_.startswith("dict[") == bool(key):
                return cls(event, field, key)
        return None

    def numbers(self, event: object, slots: list[str], env: int | None) -> Iterator[tuple[str, float]]:
        """What was measured, by source: `env03`, `env03.r0c1`, `policy`; "" where there is only one.

        Args:
            slots: names of the columns of what there is per seed; columns of anything else have numbers.
            env: which env the event is about, if any.
        """
        found = getattr(event, self._field, None)
        if isinstance(found, dict):
            found = found.get(self._key)
        sources = event.source if isinstance(event, ev.Drift) else None
        if not isinstance(found, list):
            found, sources = [found], ["" if env is None else f"env{env:02d}"]
        for index, item in enumerate(found):
            source = sources[index] if sources else f"env{index:02d}"
            if not isinstance(item, list):
                item, names = [item], [source]
            elif len(item) == len(slots):
                names = [f"{source}.{slot}" for slot in slots]
            else:  # of operations, gates or pairs of slots
                names = [f"{source}.{column}" for column in range(len(item))]
            for name, number in zip(names, item, strict=True):
                if isinstance(number, int | float):
                    yield name, float(number)


def _fields(event: Any) -> dict[str, str]:
    """Types of its fields by name; numbers of a dict are found by its key alone."""
    return {field.name: str(field.type) for field in fields(event)}


def near_metric(name: str) -> str:
    """The name of a training's metric that is most like this one; empty where none is."""
    typed = [item for event in EVENTS_WITH_METRICS for item in _fields(event).items()]
    known = [*ALIASES, *(f"{name}.KEY" if type_.startswith("dict[") else name for name, type_ in typed)]
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), "")

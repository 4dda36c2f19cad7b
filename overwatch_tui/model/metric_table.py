"""The newest of all that a published run has logged, by name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from esper_overwatch.protocol.messages.events import (
    Artifact,
    Histogram,
    LoggedTable,
    LoggedText,
    MetricStatistics,
    Scalars,
    Summary,
)

_T = TypeVar("_T")

MAX_METRICS = 10_000
"""Limit of a publisher; a summary that names more is cut."""


@dataclass
class MetricTable:
    """Statistics by name, and the newest histogram by name."""

    statistics: dict[str, MetricStatistics] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    by_hand: dict[str, float | str] = field(default_factory=dict)
    """Summary values that the loop has set."""
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    """Files, the newest of each name."""
    images: dict[str, Artifact] = field(default_factory=dict)
    """Those of the files that are images."""
    tables: dict[str, LoggedTable] = field(default_factory=dict)
    texts: dict[str, LoggedText] = field(default_factory=dict)
    """The newest of each name."""
    step: int | None = None
    """The newest."""

    def copy(self) -> MetricTable:
        copied: dict[str, Any] = {
            name: dict(each) for name, each in vars(self).items() if isinstance(each, dict)
        }
        return replace(self, **copied)

    def fold(self, event: object) -> None:
        """Take in an event of a published run; but for numbers the newest of each name is kept."""
        match event:
            case Scalars():
                self._fold_scalars(event)
            case Summary():
                self._fold_summary(event)
            case Histogram():
                _keep(self.histograms, event.name, event)
            case Artifact():
                _keep(self.artifacts, event.name, event)
                if event.kind == "image":
                    _keep(self.images, event.name, event)
            case LoggedTable():
                _keep(self.tables, event.name, event)
            case LoggedText():
                _keep(self.texts, event.name, event)

    def _fold_scalars(self, event: Scalars) -> None:
        self.step = event.step
        for name, value in event.values.items():
            old = self.statistics.get(name)
            if old is None and len(self.statistics) >= MAX_METRICS:
                continue
            new = MetricStatistics(step=event.step, last=value, count=0) if old is None else replace(old)
            new.add(event.step, value)
            self.statistics[name] = new

    def _fold_summary(self, event: Summary) -> None:
        """Take over the publisher's counts, which include what came before this viewer."""
        for name, one in event.metrics.items():
            if name in self.statistics or len(self.statistics) < MAX_METRICS:
                self.statistics[name] = one
        if event.metrics:
            self.step = event.step
        self.by_hand = {**event.numbers, **event.texts}


def _keep(table: dict[str, _T], name: str, value: _T) -> None:
    if name in table or len(table) < MAX_METRICS:
        table[name] = value

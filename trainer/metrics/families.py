"""Metric families of one run: the label `run` on each, and nothing for what was not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

Labelled: TypeAlias = Mapping[Any, float | None]
"""Values by the text of the one label, or by a tuple of the labels' texts; None was not measured."""


class Families:
    """Collects the families of one scrape, in order.

    Args:
        run: name of the run.
    """

    def __init__(self, run: str) -> None:
        self.all: list[Metric] = []
        self._run = run

    def gauge(self, name: str, about: str, value: float | None) -> None:
        """A value that goes up and down."""
        self.gauges(name, about, (), {(): value})

    def counter(self, name: str, about: str, value: float | None) -> None:
        """A count that starts at 0 with each boot; `name` ends in `_total`."""
        self.counters(name, about, (), {(): value})

    def gauges(self, name: str, about: str, labels: Sequence[str], values: Labelled) -> None:
        """A gauge with labels beside `run`."""
        self._add(GaugeMetricFamily(f"esper_{name}", about, labels=["run", *labels]), values)

    def counters(self, name: str, about: str, labels: Sequence[str], values: Labelled) -> None:
        """A counter with labels beside `run`."""
        assert name.endswith("_total"), name
        self._add(CounterMetricFamily(f"esper_{name}", about, labels=["run", *labels]), values)

    def summary(self, name: str, about: str, count: int, total: float) -> None:
        """A number of measurements and their sum; nothing where there are none."""
        if count:
            family = SummaryMetricFamily(f"esper_{name}", about, labels=["run"])
            family.add_metric([self._run], count, total)
            self.all.append(family)

    def _add(self, family: GaugeMetricFamily | CounterMetricFamily, values: Labelled) -> None:
        for key, value in values.items():
            if value is not None:
                labels = (key,) if isinstance(key, str) else key
                family.add_metric([self._run, *labels], value)
        if family.samples:
            self.all.append(family)

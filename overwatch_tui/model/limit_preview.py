"""Numbers of anomalies that other limits would have raised, counted over the curves that are kept.

A curve holds the least and the greatest value of each bucket: the worse one is judged, as the daemon's check
judges readings: `raise_after` breaches in a row raise, `clear_after` calm ones end. Where a bucket holds
several values the count is a little too high or too low.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from esper_overwatch.protocol.messages.thresholds import Threshold

from .limits import kind_of_daemon
from .time_series import History, HistorySpan

_SIGNALS = {
    "norm_drift": "norm_drift",
    "health_drift": "health_drift",
    "kl_spike": "kl",
    "clip_fraction": "clip_fraction",
    "entropy_collapse": "entropy",
    "value_collapse": "value_collapse",
    "ratio_explosion": "ratio_explosion",
    "ratio_collapse": "ratio_collapse",
    "lstm_saturated": "lstm_rms",
    "memory": "memory",
}
"""Row in the table of thresholds, by kind."""
_OF_POLICY = {"gradient_exploding": "total_grad_norm"}
_CURVES = {
    "norm_drift": ("drift/",),
    "health_drift": ("health/",),
    "kl": ("ppo.approx_kl",),
    "clip_fraction": ("ppo.clip_fraction",),
    "entropy": ("ppo.entropy", "entropy."),
    "value_collapse": ("ppo.explained_variance",),
    "ratio_explosion": ("ppo.ratio_max",),
    "ratio_collapse": ("ppo.ratio_min",),
    "lstm_rms": ("ppo.lstm_h_rms", "ppo.lstm_c_rms"),
    "total_grad_norm": ("ppo.grad_norm",),
    "memory": ("memory",),
}
"""Curves by row of the table; `drift/` and `entropy.` stand for all that begin so."""
MOVING = {"kl": "ppo.target_kl", "value_collapse": "the share of the run that is done"}
"""Rows whose limits follow something else, so that no fixed ones can take their place."""


def limit_signal(source: str, kind: str) -> str | None:
    """The row of thresholds that an anomaly is judged by; None where no curve of its signal is kept."""
    kind = kind_of_daemon(kind)
    return _OF_POLICY.get(kind) if source == "policy" and kind in _OF_POLICY else _SIGNALS.get(kind)


def limit_curves(signal: str, names: Sequence[str]) -> list[str]:
    """Curves that a row of thresholds is compared with."""
    wanted = _CURVES[signal]
    return [
        name for name in names if any(name == w or (w[-1] in "/." and name.startswith(w)) for w in wanted)
    ]


class RaisedCount(NamedTuple):
    """Numbers of anomalies that would have been raised."""

    warnings: int
    criticals: int
    """Anomalies raised as critical, or risen to it."""


def count_raised(spans: Sequence[HistorySpan], limit: Threshold) -> RaisedCount:
    """Number of anomalies that a curve, its oldest span first, would have raised."""
    sign = -1.0 if limit.low else 1.0
    at = (sign * limit.warning, sign * limit.critical)
    hold = (at[0] * limit.clear_ratio, at[1] * limit.clear_ratio)
    active = breaches = calm = 0
    raised = [0, 0, 0]
    for span in spans:
        worst, best = (-span.low, -span.high) if limit.low else (span.high, span.low)
        severity = (worst >= at[0]) + (worst >= at[1])
        if severity:
            breaches += span.size if best >= at[0] else 1
        else:
            breaches = 0
        if severity > active and (active or breaches >= limit.raise_after):
            active, calm = severity, 0
            raised[active] += 1
            continue
        held = (worst >= hold[0]) + (worst >= hold[1])
        calm = calm + span.size if active > held else 0
        if active > held and calm >= limit.clear_after:
            active, calm = held, 0
    return RaisedCount(raised[1], raised[2])


class LimitPreview:
    """Counts over all curves of a row of thresholds."""

    def __init__(self, limit: Threshold, histories: Mapping[str, History]) -> None:
        self.limit = limit
        names = limit_curves(limit.signal, list(histories))
        self._curves = [spans for name in names if (spans := histories[name].spans())]
        self.num_curves = len(self._curves)
        firsts = [spans[0].ts for spans in self._curves]
        self.span = max(s[-1].ts for s in self._curves) - min(firsts) if self._curves else 0
        """Time from the oldest value to the newest, microseconds."""

    def count(self, limit: Threshold) -> RaisedCount:
        """Numbers of anomalies that these limits would have raised."""
        found = [count_raised(spans, limit) for spans in self._curves if self._reaches(spans, limit)]
        return RaisedCount(sum(each.warnings for each in found), sum(each.criticals for each in found))

    @staticmethod
    def _reaches(spans: Sequence[HistorySpan], limit: Threshold) -> bool:
        if limit.low:
            return min(span.low for span in spans) <= limit.warning
        return max(span.high for span in spans) >= limit.warning

    def parse(self, text: str) -> Threshold:
        """The limits with a typed pair of values: `0.8 1.5`.

        Raises:
            ValueError: it is not a pair of numbers, or the critical one is the milder.
        """
        words = text.replace(",", " ").split()
        try:
            values = [float(word) for word in words]
        except ValueError:
            values = []
        if len(values) != 2 or not all(map(math.isfinite, values)):
            raise ValueError("type two numbers: from which on it is a warning, and critical")
        warning, critical = values
        if (critical > warning) if self.limit.low else (critical < warning):
            side = "above" if self.limit.low else "below"
            raise ValueError(f"the critical limit must not be {side} that of warnings")
        return replace(self.limit, warning=warning, critical=critical)

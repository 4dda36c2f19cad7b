"""Properties of each curve as a chart: name, unit, limits, and the curves it can be laid over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from esper_overwatch.overwatch_tui.model.state import State

_POLICY_LABELS = {
    "approx_kl": "KL",
    "clip_fraction": "clip fraction",
    "explained_variance": "explained variance",
    "explained_variance_within": "explained variance between envs",
    "return_std": "standard deviation of returns",
    "seconds": "seconds of an update",
    "lstm_h_rms": "LSTM h rms",
    "lstm_c_rms": "LSTM c rms",
}
_OF_SOURCE = {"drift": "norm drift", "norm": "gradient norm", "health": "health drift"}
_OF_RUN = {
    "evaluation.return": ("held-out return", 1.0),
    "evaluation.accuracy": ("held-out test accuracy %", 100.0),
    "evaluation.parameters": ("held-out added parameters", 1.0),
    "cpu": ("CPU % of a core, this run", 1.0),
    "cpu.machine": ("CPU % of the machine", 1.0),
    "rss": ("memory of this run, GiB", 2.0**-30),
    "memory": ("memory used %", 100.0),
    "gpu": ("GPU %", 1.0),
    "speed": ("env-epochs per second", 1.0),
}
_OF_ROUNDS = {"return": "return of a round", "accuracy": "final accuracy %"}
_DIGITS = re.compile(r"\d+")
_GROUPS = ("entropy.", "lead.", "drift/policy.", "norm/policy.", "health/policy.")
"""Curves whose names begin so belong together: one a head, or a rival."""


class Signal(NamedTuple):
    """A curve as a chart."""

    name: str
    label: str
    scale: float = 1.0
    form: str = "{:.3g}"
    floor: float | None = None
    """A value that its axis always holds."""
    limits: tuple[tuple[float, str], ...] = ()
    """(value, severity), before the scale."""


def signal_of(state: State, name: str) -> Signal:
    """Way to draw a curve; `overwatch_tui.model.curves` has the names."""
    kind, slash, which = name.partition("/")
    if slash and kind == "accuracy":
        return Signal(name, f"env{int(which):02d} accuracy %", 100.0, "{:.1f}")
    if slash and kind == "return":
        return Signal(name, f"env{int(which):02d} return")
    if slash and kind in _OF_SOURCE:
        label = f"{which} {_OF_SOURCE[kind]}"
        limit = state.drift_limit(which, "norm_drift" if kind == "drift" else "health_drift")
        limits = () if kind == "norm" or limit is None else ((limit, "info"),)
        return Signal(name, label, floor=0.0, limits=limits)
    if slash:
        return Signal(name, which)
    family, _, field = name.partition(".")
    if family == "ppo":
        label = _POLICY_LABELS.get(field, field.replace("_", " "))
        return Signal(name, label, limits=_policy_limits(state, field))
    if family == "entropy":
        return Signal(name, f"entropy of {field}", limits=_policy_limits(state, "entropy"))
    if family == "lead":
        return Signal(name, f"lead in held-out return over {field}", floor=0.0)
    if family in _OF_ROUNDS:
        percent = family == "accuracy"
        label = f"{_OF_ROUNDS[family]}, {field}"
        return Signal(name, label, 100.0 if percent else 1.0, "{:.1f}" if percent else "{:.3g}")
    label, scale = _OF_RUN.get(name, (name, 1.0))
    return Signal(name, label, scale, floor=None if family == "evaluation" else 0.0)


def _policy_limits(state: State, field: str) -> tuple[tuple[float, str], ...]:
    return tuple(zip(state.policy_limits(field), ("warning", "critical"), strict=False))


def siblings(names: Sequence[str], name: str) -> list[str]:
    """Curves of the same number of other envs, seeds, heads or groups, in their order; itself among them."""
    group = next((group for group in _GROUPS if name.startswith(group)), None)
    if group is not None:
        found = [other for other in names if other.startswith(group)]
    elif "/" in name and _DIGITS.search(name):
        shape = _DIGITS.sub("#", name)
        found = [other for other in names if _DIGITS.sub("#", other) == shape]
    else:
        found = []
    return sorted(found, key=lambda other: [(len(part), part) for part in _DIGITS.findall(other)])


def mark_of(name: str) -> str:
    """Mark of a curve among its siblings: the number of its env, or the first letters of its head."""
    digits = _DIGITS.findall(name.partition("/")[2])
    if digits:
        return str(int(digits[0]))
    return name.rpartition(".")[2][:2]

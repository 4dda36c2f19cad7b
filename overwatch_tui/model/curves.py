"""Courses of all curves by name, folded from events.

Names: `accuracy/ENV`, `return/ENV`; `accuracy.mean`, `return.p50` per round; `ppo.FIELD`, `entropy.HEAD`;
`evaluation.FIELD`, `lead.RIVAL`;
`drift/SOURCE`, `norm/SOURCE`, `health/SOURCE`; `cpu`, `cpu.machine`, `rss`, `memory`, `gpu`; `speed`;
`metric/NAME` of a published run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages import events as ev

from .columns import zip_columns
from .step_series import STEP, StepHistory
from .time_series import RESOLUTIONS, SHORT_RESOLUTIONS, History

MAX_METRIC_CURVES = 1000
"""Limit for a published run; further numbers appear in the table only."""
PPO_SIGNALS = (
    "approx_kl",
    "entropy",
    "clip_fraction",
    "explained_variance",
    "explained_variance_within",
    "return_std",
    "ratio_max",
    "ratio_min",
    "policy_loss",
    "value_loss",
    "grad_norm",
    "seconds",
    "advantage_std",
    "lstm_h_rms",
    "lstm_c_rms",
)
"""Fields of `PPOUpdate` of which a curve is kept, as `ppo.<name>`."""

ROUND_SIGNALS = {
    "return.p10": "return_p10",
    "return.p50": "return_p50",
    "return.p90": "return_p90",
    "return.mean": "return_mean",
    "accuracy.mean": "accuracy_mean",
    "accuracy.best": "accuracy_best",
    "speed": "env_epochs_per_second",
}
"""Curves of the rounds, and the field of `RoundFinished` that each shows."""

EVALUATION_SIGNALS = {
    "evaluation.return": "return_mean",
    "evaluation.accuracy": "test_accuracy_mean",
    "evaluation.parameters": "added_parameters_mean",
}
"""Curves of the run's policy on the held-out hosts, and the field of `EvaluationFinished` that each shows."""


@dataclass
class Curves:
    """Histories by name, by time and by step; a late value falls into the bucket of its time."""

    histories: dict[str, History] = field(default_factory=dict)
    steps: dict[str, StepHistory] = field(default_factory=dict)
    step: int = 0
    """Of the newest event: the step that a published run logged, or epochs of a training since its begin."""
    reached: History = field(default_factory=History)
    """The greatest step by time."""
    first_step: int | None = None
    epochs_per_round: int = 0
    """Of a training; 0 for a published run."""

    def copy(self) -> Curves:
        return replace(
            self,
            histories={name: each.copy() for name, each in self.histories.items()},
            steps={name: each.copy() for name, each in self.steps.items()},
            reached=self.reached.copy(),
        )

    def cut(self, until: int) -> Curves:
        """Curves of the values before a time, microseconds, at which a minute ends.

        Those by step hold later values as well, which lie beyond the step that was reached then.
        """
        cut = {name: each.cut(until) for name, each in self.histories.items() if each.first_ts < until}
        histories = {name: each for name, each in cut.items() if each.last_ts}
        steps = {name: self.steps[name].copy() for name in histories if name in self.steps}
        return replace(self, histories=histories, steps=steps, reached=self.reached.cut(until))

    @property
    def max_step(self) -> int:
        """The greatest step that was reached."""
        return 0 if isnan(self.reached.last) else round(self.reached.last)

    def fold(self, event: Event) -> None:
        self._move(event)
        enter = _HANDLERS.get(type(event.data))
        if enter is not None:
            enter(self, event, event.data)

    def _move(self, event: Event) -> None:
        """Know the step that the run is at."""
        data, ctx = event.data, event.ctx
        if isinstance(data, ev.RunStarted):
            self.epochs_per_round = data.episode_epochs
        elif isinstance(data, ev.Scalars):
            self._reach(data.step, event)
        elif isinstance(data, ev.RunRewound):
            self.step = max(0, data.round - 1) * self.epochs_per_round + data.epoch
            for each in self.steps.values():
                each.cut_behind(self.step * STEP)
            self.reached.add(event.ts, self.step)
        elif self.epochs_per_round and ctx.round and not ctx.rank:
            self._reach((ctx.round - 1) * self.epochs_per_round + ctx.epoch, event)

    def _reach(self, step: int, event: Event) -> None:
        if step == self.step and self.first_step is not None:
            return
        self.step = step
        self.first_step = step if self.first_step is None else min(step, self.first_step)
        if step >= self.max_step:
            self.reached.add(event.ts, step)

    def add(self, name: str, event: Event, value: float | None, *, brief: bool = False) -> None:
        """Add an event's value; None is a gap, and does not begin a curve."""
        history = self.histories.get(name)
        if history is None:
            if value is None:
                return
            history = self.histories[name] = History(SHORT_RESOLUTIONS if brief else RESOLUTIONS)
        history.add(event.ts, value, event.seq)
        if brief:
            return
        steps = self.steps.get(name)
        if steps is None:
            steps = self.steps[name] = StepHistory()
        steps.add(self.step * STEP, value, event.seq)


@dataclass
class ComparedRun:
    """A run drawn under a letter, by the time since it began, over the run that is watched."""

    mark: str
    """Letter; the run that is watched is `a`."""
    name: str
    begin: int
    """Begin of the run, microseconds."""
    curves: Curves = field(default_factory=Curves)
    config: dict[str, Any] = field(default_factory=dict)
    """With which its newest boot was started, or what its loop has made of that."""

    def fold(self, event: Event) -> None:
        self.begin = min(self.begin, event.ts)
        if isinstance(event.data, ev.RunStarted | ev.RunConfigured):
            self.config = event.data.config
        self.curves.fold(event)


def _round(curves: Curves, event: Event, data: ev.RoundFinished) -> None:
    for name, source in ROUND_SIGNALS.items():
        curves.add(name, event, getattr(data, source))


def _evaluation(curves: Curves, event: Event, data: ev.EvaluationFinished) -> None:
    if data.is_rival:
        return
    for name, source in EVALUATION_SIGNALS.items():
        curves.add(name, event, getattr(data, source))
    for rival, lead in data.leads.items():
        curves.add(f"lead.{rival}", event, lead.get("mean"))


def _epoch(curves: Curves, event: Event, data: ev.EpochFinished) -> None:
    for env, (accuracy, total) in enumerate(zip_columns(data.val_accuracy, data.episode_return)):
        curves.add(f"accuracy/{env}", event, accuracy)
        curves.add(f"return/{env}", event, total)


def _ppo(curves: Curves, event: Event, data: ev.PPOUpdate) -> None:
    for name in PPO_SIGNALS:
        curves.add(f"ppo.{name}", event, getattr(data, name))
    for head, entropy in data.head_entropy.items():
        curves.add(f"entropy.{head}", event, entropy)


def _drift(curves: Curves, event: Event, data: ev.Drift) -> None:
    for source, norm, norm_drift, health in zip_columns(
        data.source, data.norm, data.norm_drift, data.health_drift
    ):
        brief = source.startswith("env") and "." in source
        curves.add(f"drift/{source}", event, norm_drift, brief=brief)
        if not brief:
            curves.add(f"norm/{source}", event, norm)
            curves.add(f"health/{source}", event, health)


def _system(curves: Curves, event: Event, data: ev.SystemSample) -> None:
    if event.ctx.rank:
        return
    curves.add("cpu", event, data.cpu_percent)
    curves.add("cpu.machine", event, data.machine_cpu_percent)
    curves.add("rss", event, data.rss)
    curves.add("memory", event, data.memory_used / data.memory_total if data.memory_total else None)
    curves.add("gpu", event, data.gpu_percent)


def metric_curve(name: str) -> str:
    """The curve of a number that a published run logs."""
    return f"metric/{name}"


def _scalars(curves: Curves, event: Event, data: ev.Scalars) -> None:
    for name, value in data.values.items():
        curve = metric_curve(name)
        if curve in curves.histories or len(curves.histories) < MAX_METRIC_CURVES:
            curves.add(curve, event, value)


_HANDLERS: dict[type, Callable[[Curves, Event, Any], None]] = {
    ev.RoundFinished: _round,
    ev.EpochFinished: _epoch,
    ev.EvaluationFinished: _evaluation,
    ev.PPOUpdate: _ppo,
    ev.Drift: _drift,
    ev.SystemSample: _system,
    ev.Scalars: _scalars,
}

_BRIEF = (
    ev.RunStarted,
    ev.RunConfigured,
    ev.RunRewound,
    ev.RoundFinished,
    ev.PPOUpdate,
    ev.EvaluationFinished,
)
BRIEF_TYPES = tuple(ev.spec_of(cls).type for cls in (*_BRIEF, ev.Scalars))
"""Types of events that tell how a run learns, without the many of each env, layer and second."""

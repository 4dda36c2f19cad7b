"""Judges the rules on what is published, in the I/O thread: no loop waits for it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.anomaly_guide import title_of
from esper_overwatch.protocol.messages.events import Context, EventSpec
from esper_overwatch.protocol.messages.roles import Peer
from esper_overwatch.protocol.messages.vocabulary import Severity
from esper_overwatch.protocol.server.emitter import Emitted
from esper_overwatch.protocol.server.rate_limiter import RateLimiter

from .condition import END_WORDS, SECONDS
from .metrics import MetricPath, near_metric
from .rules import Rule

BURST_ALERTS, ALERTS_PER_SECOND = 10.0, 1 / 60
"""Of a rule: what comes beyond is counted in the next alert."""
MAX_SHOWN_SOURCES = 3
_END_LEVELS: dict[str, Severity] = {"failed": "critical", "stopped": "warning", "completed": "info"}


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An alert that a rule has raised."""

    rule: Rule
    id: str
    level: Severity
    title: str
    text: str
    ns: int
    ctx: Context
    step: int | None
    value: float | None = None


@dataclass
class _Watch:
    """A rule with what is known of it."""

    rule: Rule
    metric: MetricPath | None = None
    since: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By source where the condition holds: the run's clock and the seconds from which on."""
    active: set[str] = field(default_factory=set)
    """Sources that have an anomaly of the kind that the rule names."""
    is_raised: bool = False
    num_left_out: int = 0

    @property
    def event(self) -> type:
        """Class of the events that it is about; `scalar` has metrics, too."""
        subject = self.rule.when.subject
        if self.rule.when.is_of_metric:
            return ev.Scalars if self.metric is None else self.metric.event
        others = {"incident.severity": ev.Incident, "alert.level": ev.Alert}
        return ev.RunStopped if subject in END_WORDS else others.get(subject, ev.Anomaly)


class RuleJudge:
    """Raises alerts by the rules; `observe` is to be given every event.

    A rule is raised when its condition comes to hold, and again after it has ceased to.

    Args:
        rules: of the user.
        run: id of the run, which the ids of its alerts are made of.
        raise_alert: takes what is raised.
        warn: takes a line about a rule that can never be raised.
        monotonic: gives seconds; how long a condition has held does not depend on a clock that may be set.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        run: str,
        raise_alert: Callable[[Raised], None],
        warn: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._raise, self._warn = run, raise_alert, warn
        self._watches = [_Watch(rule) for rule in rules]
        self._monotonic = monotonic
        self._limiter = RateLimiter(ALERTS_PER_SECOND, BURST_ALERTS)
        self._slots: list[str] = []
        self._per_round = 1
        self._step: int | None = None
        self._clock = 0.0
        self._judges: dict[type, Callable[[_Watch, Emitted], None]] = {
            ev.Incident: self._judge_incident,
            ev.Alert: self._judge_loop_alert,
            ev.Anomaly: self._judge_anomaly,
            ev.RunStopped: self._judge_end,
        }

    def observe(self, spec: EventSpec, events: Sequence[Emitted]) -> None:
        """Take in events of one type; an `Observer` of the publisher."""
        if spec.cls is ev.RunStarted:
            self._start(cast(ev.RunStarted, events[-1].event))
        watches = [
            watch
            for watch in self._watches
            if watch.event is spec.cls or (spec.cls is ev.Scalars and watch.rule.when.is_of_metric)
        ]
        judge = self._judges.get(spec.cls, self._judge_metric)
        for item in events:
            self._tick(item)
            for watch in watches:
                judge(watch, item)

    def _start(self, started: ev.RunStarted) -> None:
        self._slots, self._per_round = started.slots, started.episode_epochs
        is_published = started.kind == "published"
        for watch in self._watches:
            name = watch.rule.when.subject
            if not watch.rule.when.is_of_metric:
                continue
            watch.metric = MetricPath.of(name, is_published=is_published)
            if watch.metric is None and not is_published:
                near = near_metric(name)
                hint = f"; did you mean {near}?" if near else ""
                self._warn(f"alerts.{watch.rule.name}: a training has no metric {name}{hint}")

    def _tick(self, item: Emitted) -> None:
        """Move the run's clock on: to the step of a published run, to the epoch of a training."""
        if isinstance(item.event, ev.Scalars):
            self._step = item.event.step
            self._clock = float(self._step)
        elif self._step is None:
            self._clock = max(item.ctx.round - 1, 0) * self._per_round + item.ctx.epoch

    def _judge_metric(self, watch: _Watch, item: Emitted) -> None:
        when, event = watch.rule.when, item.event
        if isinstance(event, ev.Scalars):
            if when.subject not in event.values:
                return
            numbers: Iterator[tuple[str, float]] = iter([("", float(event.values[when.subject]))])
        else:
            assert watch.metric is not None
            numbers = watch.metric.numbers(event, self._slots, item.env)
        held = [(source, number) for source, number in numbers if self._has_held(watch, source, number)]
        if held and not watch.is_raised:
            shown = ", ".join(source for source, _ in held[:MAX_SHOWN_SOURCES] if source)
            more = f" and {len(held) - MAX_SHOWN_SOURCES} more" if len(held) > MAX_SHOWN_SOURCES else ""
            text = f"{when.subject} = {held[0][1]:.6g}" + (f" in {shown}{more}" if shown else "")
            self._admit(watch, item, title=str(when), text=text, level="warning", value=held[0][1])
        watch.is_raised = bool(held)

    def _has_held(self, watch: _Watch, source: str, number: float) -> bool:
        """Whether the condition holds of a source, and has held long enough."""
        when = watch.rule.when
        if not when.holds(number):
            watch.since.pop(source, None)
            return False
        now = self._monotonic()
        clock, begun = watch.since.setdefault(source, (self._clock, now))
        if self._clock < clock:  # the loop's steps have gone back
            clock, begun = watch.since[source] = self._clock, now
        seconds = SECONDS.get(when.unit)
        passed = self._clock - clock + 1 if seconds is None else (now - begun) / seconds
        return passed >= when.hold

    def _judge_incident(self, watch: _Watch, item: Emitted) -> None:
        incident = cast(ev.Incident, item.event)
        if incident.change in ("began", "worse") and watch.rule.when.holds_severity(incident.severity):
            text = incident.scope + (f" after {incident.suspect}" if incident.suspect else "")
            self._admit(watch, item, incident.kind, title=incident.title, text=text, level=incident.severity)

    def _judge_loop_alert(self, watch: _Watch, item: Emitted) -> None:
        alert = cast(ev.Alert, item.event)
        if not alert.rule and watch.rule.when.holds_severity(alert.level):
            self._admit(watch, item, alert.id, title=alert.title, text=alert.text, level=alert.level)

    def _judge_end(self, watch: _Watch, item: Emitted) -> None:
        stopped = cast(ev.RunStopped, item.event)
        word = stopped.final_state.lower()
        if word == watch.rule.when.subject:
            text = stopped.error or stopped.reason
            self._admit(watch, item, title=f"the run {word}", text=text, level=_END_LEVELS[word])

    def _judge_anomaly(self, watch: _Watch, item: Emitted) -> None:
        anomaly = cast(ev.Anomaly, item.event)
        if anomaly.kind != watch.rule.when.subject:
            return
        if not anomaly.active:
            watch.active.discard(anomaly.source)
            return
        if not watch.active:
            text = f"{anomaly.source}: {anomaly.hint}" if anomaly.hint else anomaly.source
            self._admit(watch, item, title=title_of(anomaly.kind), text=text, level=anomaly.severity)
        watch.active.add(anomaly.source)

    def _admit(self, watch: _Watch, item: Emitted, *subject: str, **told: Any) -> None:
        """Raise an alert, if the rule has not raised too many."""
        rule = watch.rule
        if self._limiter.admit(rule.name.encode(), Peer()) > 0.0:
            watch.num_left_out += 1
            return
        if watch.num_left_out:
            told["text"] += f" (and {watch.num_left_out} before it that were too many)"
            watch.num_left_out = 0
        place = (item.ctx.round, item.ctx.epoch) if self._step is None else (self._step,)
        key = "\n".join(map(str, (self._run, rule.name, rule.when, *subject, told["level"], *place)))
        id_ = hashlib.sha256(key.encode()).hexdigest()[:16]
        self._raise(Raised(rule=rule, id=id_, ns=item.ns, ctx=item.ctx, step=self._step, **told))

"""Groups anomalies into incidents: what belongs together, since when, after which change.

An observer of the publisher, in its I/O thread: it sees the events of trainer, publisher and loop in their
order, so that all of them are judged in one place, and what it emits reaches every reader alike. Time is
counted in epochs (of a published run in steps), since pauses and slow machines prove nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.anomaly_guide import title_of
from esper_overwatch.protocol.messages.commands import AcknowledgeParams, MuteParams
from esper_overwatch.protocol.messages.events import EventSpec
from esper_overwatch.protocol.messages.incidents import group_of, is_of_env
from esper_overwatch.protocol.messages.vocabulary import SEVERITIES, SEVERITY_RANK

from .alarm import ALARMS
from .changes import Change, Changes
from .emitter import Emitted

LINGER_EPOCHS = 12
"""Epochs for which an incident without a raised signal waits for one to return: a new round's hosts and seeds
are not judged in their first epochs."""
LINGER_STEPS = 5
TOGETHER_EPOCHS = 2
"""Signals of one kind that begin within this many epochs belong together."""
WIDE_SHARES, MIN_WIDE_ENVS = (0.25, 0.5, 1.0), 2
"""Share of the envs, by severity, and their number, from which on what they show at once is a step worse."""
_STEP_ORDER = (
    "nonfinite",
    "rollback",
    "vanishing",
    "exploding",
    "gradient_health",
    "degraded",
)
"""Parts of kinds: the first that fits names an incident whose signals are equally severe."""
SignalKey = tuple[str, str]
"""(source, kind)."""


class _Signal(NamedTuple):
    """A raised anomaly, and where it is."""

    anomaly: ev.Anomaly
    env: int | None
    blueprint: str | None


@dataclass
class _Open:
    """An incident that goes on."""

    id: str
    group: str
    since: int
    suspect: Change | None
    raised: dict[SignalKey, _Signal] = field(default_factory=dict)
    seen: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Sources by kind, of all signals since it began."""
    envs: set[int] = field(default_factory=set)
    severity: str = "info"
    last_raise: int = 0
    """On the clock of epochs, as all others here."""
    quiet_since: int | None = None
    is_changed: bool = True
    """Signals came or went since it was told last."""
    told: ev.Incident | None = None
    told_at: int = -1
    worst: _Signal | None = None


class IncidentKeeper:
    """Keeps the incidents of a boot; `observe` is to be given every event.

    Args:
        emit: takes `incident` events.
        boot: id of the boot, which the ids of its incidents begin with.
    """

    def __init__(self, emit: Callable[[object], None], boot: str) -> None:
        self._emit = emit
        self._boot = boot
        self._changes = Changes()
        self._open: list[_Open] = []
        """The newest last."""
        self._count = 0
        self._clock = 0
        self._per_round = 1
        self._is_published = False
        self._num_envs = 0
        self._blueprints: dict[str, str | None] = {}
        """Of the newest seed in each slot, by its source."""

    def observe(self, spec: EventSpec, events: Sequence[Emitted]) -> None:
        """Take in events of one type."""
        self._tick(spec, events)
        if spec.cls is ev.Anomaly:
            touched = {
                incident.id: incident
                for item in events
                if (incident := self._fold(cast(ev.Anomaly, item.event), item.env, item.ns // 1000))
            }
            for incident in touched.values():
                self._judge(incident)
        elif spec.cls is ev.SeedStage:
            for item in events:
                stage = cast(ev.SeedStage, item.event)
                self._blueprints[f"env{item.env or 0:02d}.{stage.slot}"] = stage.blueprint
        elif spec.cls is ev.RunStarted:
            self._num_envs = cast(ev.RunStarted, events[-1].event).envs
        self._changes.observe(spec, events, self._clock)
        self._tell()

    def find(self, named: AcknowledgeParams | MuteParams) -> ev.Incident | None:
        """The open incident that a command names, by id or by a signal in it; None where there is none."""
        for incident in reversed(self._open):
            if named.incident == incident.id or (named.source, named.kind) in incident.raised:
                return incident.told
        return None

    def _tick(self, spec: EventSpec, events: Sequence[Emitted]) -> None:
        """Move the clock on: to the events' epoch, of a published run by the number of its steps."""
        if spec.cls is ev.Scalars:
            self._clock += len(events)
        elif spec.cls is ev.RunStarted:
            started = cast(ev.RunStarted, events[-1].event)
            self._per_round = started.episode_epochs
            self._is_published = started.kind == "published"
        elif not self._is_published:
            ctx = events[-1].ctx
            self._clock = max(self._clock, max(ctx.round - 1, 0) * self._per_round + ctx.epoch)
        linger = LINGER_STEPS if self._is_published else LINGER_EPOCHS
        over = [i for i in self._open if i.quiet_since is not None and self._clock - i.quiet_since >= linger]
        for incident in over:
            self._open.remove(incident)
            self._tell_one(incident, "over", events[-1].ns // 1000)

    def _fold(self, anomaly: ev.Anomaly, env: int | None, ts: int) -> _Open | None:
        """Take in a signal; returns the incident that has changed."""
        key = (anomaly.source, anomaly.kind)
        incident = next((i for i in self._open if key in i.raised), None)
        if not anomaly.active:
            if incident is not None:
                del incident.raised[key]
                incident.quiet_since = None if incident.raised else self._clock
            return incident
        signal = _Signal(anomaly, env, self._blueprints.get(anomaly.source))
        if incident is None:
            incident = self._incident_for(signal, ts)
            incident.last_raise = self._clock
            incident.quiet_since = None
            if env is not None:
                incident.envs.add(env)
        incident.raised[key] = signal
        incident.seen[anomaly.kind].add(anomaly.source)
        return incident

    def _incident_for(self, signal: _Signal, ts: int) -> _Open:
        """The open incident that a signal belongs to, or a new one."""
        group = group_of(signal.anomaly.source, signal.anomaly.kind)
        for incident in reversed(self._open):
            if self._belongs(signal, group, incident):
                return incident
        self._count += 1
        suspect = self._changes.suspect(group, signal.env, self._clock)
        incident = _Open(f"{self._boot[:4]}-{self._count}", group, ts, suspect)
        self._open.append(incident)
        return incident

    def _belongs(self, signal: _Signal, group: str, incident: _Open) -> bool:
        """True where they have one cause, as far as that can be told.

        What follows a change of the whole run belongs to it; symptoms of the machine belong to a full disk or
        memory; of the hosts, what befalls the same env, or begins at the same time with the same kind.
        """
        trains = ("hosts", "policy")
        if incident.suspect is not None and incident.suspect.of_run and {group, incident.group} <= {*trains}:
            return True
        if group == "machine" and incident.group in ("disk", "memory"):
            return True
        if group != incident.group:
            return False
        if group != "hosts":
            return True
        at_once = self._clock - incident.last_raise <= TOGETHER_EPOCHS
        return signal.env in incident.envs or (at_once and signal.anomaly.kind in incident.seen)

    def _judge(self, incident: _Open) -> None:
        """Find the incident's worst signal, and its severity: what is wide is a step worse."""
        incident.is_changed = True
        envs = defaultdict[str, set[int | None]](set)
        counts = Counter[str]()
        for signal in incident.raised.values():
            envs[signal.anomaly.kind].add(signal.env)
            counts[signal.anomaly.kind] += 1

        def rank(signal: _Signal) -> tuple[int, int, int]:
            kind, own = signal.anomaly.kind, SEVERITY_RANK[signal.anomaly.severity]
            if signal.env is not None:
                is_wide = len(envs[kind]) >= max(MIN_WIDE_ENVS, WIDE_SHARES[own] * self._num_envs)
                own = min(own + is_wide, len(SEVERITIES) - 1)
            order = next((i for i, part in enumerate(_STEP_ORDER) if part in kind), len(_STEP_ORDER))
            return own, -order, counts[kind]

        if not incident.raised:
            return  # its last one stays what it was
        incident.worst = max(incident.raised.values(), key=rank)
        found, _, _ = rank(incident.worst)
        if found > SEVERITY_RANK[incident.severity]:
            incident.severity = SEVERITIES[found]
            if incident.suspect is None:  # it was of no account, and something may have changed since
                incident.suspect = self._changes.suspect(incident.group, incident.worst.env, self._clock)

    def _tell(self) -> None:
        """Emit incidents that have begun or grown worse; their other changes once an epoch."""
        for incident in self._open:
            told = incident.told
            if told is None:
                self._tell_one(incident, "began")
            elif told.severity != incident.severity:
                self._tell_one(incident, "worse")
            elif incident.is_changed and incident.told_at < self._clock:
                self._tell_one(incident, "changed")

    def _tell_one(self, incident: _Open, change: ev.IncidentChange, over: int = 0) -> None:
        told = self._event(incident, change, over)
        incident.is_changed, incident.told_at = False, self._clock
        if incident.told is None or replace(told, change=incident.told.change) != incident.told:
            incident.told = told
            self._emit(told)

    def _event(self, incident: _Open, change: ev.IncidentChange, over: int = 0) -> ev.Incident:
        worst, suspect = incident.worst, incident.suspect
        assert worst is not None
        anomaly = worst.anomaly
        raised = list(incident.raised.values())
        return ev.Incident(
            id=incident.id,
            change=change,
            active=not over,
            severity=incident.severity,  # type: ignore[arg-type]
            since=incident.since,
            kind=anomaly.kind,
            title=title_of(anomaly.kind),
            source=anomaly.source,
            scope=_details(anomaly) or scope_words(raised or [worst], self._num_envs),
            value=anomaly.value,
            threshold=anomaly.threshold,
            kinds={kind: len(sources) for kind, sources in incident.seen.items()},
            envs=sorted({signal.env for signal in raised if signal.env is not None}),
            signals=len(raised),
            suspect=suspect.text if suspect is not None else "",
            suspect_ts=suspect.ts if suspect is not None else 0,
            undo=suspect.undo if suspect is not None else "",
            over=over,
        )


def _details(anomaly: ev.Anomaly) -> str:
    """What the server's own checks say of their one source, without the title; empty of all others."""
    if (anomaly.source, anomaly.kind) not in ALARMS and anomaly.source != "loop":
        return ""
    return anomaly.hint.removeprefix(title_of(anomaly.kind) + ": ")


def scope_words(signals: Sequence[_Signal], num_envs: int) -> str:
    """`env03`, `env03.r0c1 (lora)`, `4 of 8 envs, 12 seeds, all lora`, `policy`, `loss, accuracy`."""
    sources = list(dict.fromkeys(signal.anomaly.source for signal in signals))
    seeds = {signal.anomaly.source: signal.blueprint for signal in signals if "." in signal.anomaly.source}
    seeds = {source: blueprint for source, blueprint in seeds.items() if is_of_env(source)}
    envs = {signal.env for signal in signals if signal.env is not None}
    if not envs:
        return ", ".join(sources[:3]) + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")
    blueprints = {blueprint for blueprint in seeds.values() if blueprint}
    alike = next(iter(blueprints)) if len(blueprints) == 1 and len(seeds) == len(sources) else ""
    if len(sources) == 1:
        return f"{sources[0]} ({alike})" if alike else sources[0]
    words = [f"env{min(envs):02d}" if len(envs) == 1 else f"{len(envs)} of {num_envs} envs"]
    if seeds:
        words.append(f"{len(seeds)} seed{'s' * (len(seeds) > 1)}")
    return ", ".join([*words, f"all {alike}"] if alike else words)

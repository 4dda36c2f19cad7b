"""State of the screen, folded from events. Pure: no terminal, no clock, no socket.

Live and replayed events take the same path: each event of a stream once, in the order of its numbers. What
was before all of them `fold_late` adds to curves and log. What no event has brought yet is None, panels write
`--`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, NamedTuple

from esper_overwatch.protocol.codec.json_lines import Event, Unknown
from esper_overwatch.protocol.journal.seed_counts import SeedCounts
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Context
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS, UPDATE_SIGNALS, severity_of
from esper_overwatch.protocol.messages.vocabulary import WITH_SEED, Stage

from .anomalies import Anomalies, fold_anomaly
from .columns import zip_columns
from .commands import OPEN_STATES, Commands, TrackedCommand
from .curves import Curves
from .escalations import OpenEscalations
from .incidents import Incidents
from .log_entries import LogEntry, log_entry
from .metric_table import MetricTable
from .seed_stories import SeedStories

MAX_LOG_ENTRIES = 2000
MAX_ENVS = 4096
_COMMANDS_WITH_KEYS = frozenset(("escalate", "profile", "pause", "checkpoint", "stop"))


class SourceDrift(NamedTuple):
    """Gradient drift of one source."""

    norm: float | None
    norm_ema: float | None
    norm_drift: float | None
    health: float | None
    health_ema: float | None
    health_drift: float | None


@dataclass
class State:
    """Everything folded from one run's events; an event of a new kind needs a field and a handler here."""

    run: ev.RunStarted | None = None
    run_state: str | None = None
    stopped: ev.RunStopped | None = None
    ctx: Context = field(default_factory=Context)
    ts: int = 0
    """Newest event, microseconds."""
    rounds_planned: int = 0
    rounds_done: int = 0
    """Highest round whose end was received."""
    epoch: ev.EpochFinished | None = None
    epoch_ctx: Context = field(default_factory=Context)
    epoch_ts: int = 0
    previous_epoch: ev.EpochFinished | None = None
    """The epoch before, where it belongs to the same round."""
    best_accuracy: list[float] = field(default_factory=list)
    """Per env, best validation accuracy of this episode."""
    ppo: ev.PPOUpdate | None = None
    ppo_ts: int = 0
    drift: dict[str, SourceDrift] = field(default_factory=dict)
    """Drift by source; envs and policy come in different events."""
    drift_limits: dict[str, float] = field(default_factory=dict)
    """Drift from which on it is noted, by scope and signal (`seed.norm_drift`)."""
    system: ev.SystemSample | None = None
    """Sample of the first rank, as are the curves: another rank may run on another machine."""
    system_ts: int = 0
    stride: ev.TelemetryStride | None = None
    layers: ev.LayerStatistics | None = None
    layers_ctx: Context = field(default_factory=Context)
    rank_seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of the newest epoch on each rank except the first."""
    shapley: ev.ShapleyComputed | None = None
    shapley_ctx: Context = field(default_factory=Context)
    episodes: dict[int, tuple[int, ev.EpisodeFinished]] = field(default_factory=dict)
    """(round, newest finished episode) by env."""
    evaluations: dict[str, tuple[int, ev.EvaluationFinished]] = field(default_factory=dict)
    """(round before it, newest evaluation) by policy."""
    profile: ev.ProfilerFinished | None = None
    profiling: ev.ProfilerStarted | None = None
    escalations: OpenEscalations = field(default_factory=OpenEscalations)
    last_round: ev.RoundFinished | None = None
    gates: dict[tuple[int, str], ev.SeedGate] = field(default_factory=dict)
    seed_counts: SeedCounts = field(default_factory=SeedCounts)
    stories: SeedStories = field(default_factory=SeedStories)
    anomalies: Anomalies = field(default_factory=dict)
    incidents: Incidents = field(default_factory=Incidents)
    commands: Commands = field(default_factory=Commands)
    metrics: MetricTable = field(default_factory=MetricTable)
    """Metrics of a published run."""
    loop_commands: dict[str, Any] = field(default_factory=dict)
    """Commands of a published run with help and parameters, as its newest `status` lists them."""
    log: deque[LogEntry] = field(default_factory=lambda: deque(maxlen=MAX_LOG_ENTRIES))
    curves: Curves = field(default_factory=Curves)
    unknown: int = 0
    """Events of types this version does not know."""
    numbers: dict[str, int] = field(default_factory=dict)
    """The newest number of each stream that was folded, over all boots."""
    _newest: tuple[str, int] = ("", 0)
    """Stream and time of the event that `ctx` is of."""

    @property
    def position(self) -> int:
        """Number of events that the run has told by then, received or not."""
        return sum(self.numbers.values())

    def fold(self, event: Event) -> None:
        """Take in an event; of what a snapshot repeats, only what `rejoin` has dropped."""
        self.ts = max(self.ts, event.ts)
        known = self.numbers.get(event.stream, 0)
        if event.seq > known:
            if event.stream == "life" and event.seq != known + 1:
                self.seed_counts.is_whole = False
            self.numbers[event.stream] = event.seq
            self._take_in(event)
        elif type(event.data) in _OPEN:
            HANDLERS[type(event.data)](self, event)

    def _take_in(self, event: Event) -> None:
        if isinstance(event.data, Unknown):
            self.unknown += 1
            return
        # Between streams by the run's clock, since the machine's may step back.
        stream, ts = self._newest
        older = self.ctx.round, self.ctx.epoch, ts
        if event.stream == stream or (event.ctx.round, event.ctx.epoch, event.ts) >= older:
            self.ctx, self._newest = event.ctx, (event.stream, event.ts)
            self.stories.round = event.ctx.round
        handler = HANDLERS.get(type(event.data))
        if handler is not None:
            handler(self, event)
        self.commands.fold(event.data, ts=event.ts)
        self.curves.fold(event)
        row = log_entry(event)
        if row is not None:
            self.log.append(row)

    def rejoin(self, reason: str, *, now: int) -> None:
        """Prepare for a snapshot of the same boot: what was open may have ended unheard."""
        self.anomalies.clear()
        self.incidents.drop()
        self.escalations = OpenEscalations()
        self.note(reason, now=now)

    def reset_copy(self, reason: str, *, now: int) -> State:
        """A state for another boot; log, commands, curves, counts and acknowledgements stay."""
        fresh = State(
            ts=self.ts,
            incidents=self.incidents,
            commands=self.commands,
            log=self.log,
            curves=self.curves,
            seed_counts=self.seed_counts,
            stories=self.stories,
            numbers=self.numbers,
        )
        fresh.incidents.drop()
        fresh.commands.mark_daemon_lost("the daemon restarted before it was executed")
        fresh.note(reason, now=now)
        return fresh

    def note(self, text: str, *, now: int, severity: str | None = "info") -> None:
        """Put a line of the viewer's own into the log."""
        self.log.append(LogEntry(now, "view", 0, "view", "VIEW", severity, 0, 0, text))

    def frozen_copy(self) -> State:
        """A copy that later events do not change; what nothing ever changes, such as events, is shared."""
        return replace(self, **{each.name: _frozen(getattr(self, each.name)) for each in fields(self)})

    def policy_limits(self, name: str) -> list[float]:
        """The limits of a field of `PPOUpdate` that were in force in the newest; empty where none were."""
        return (self.ppo.limits or {}).get(name, []) if self.ppo is not None else []

    def policy_severity(self, name: str, value: float | None) -> str | None:
        """Severity of a value of a field of `PPOUpdate` by those limits: a colour, no alarm."""
        limits = self.policy_limits(name)
        if value is None or not limits:
            return None
        return severity_of(value, [*limits, None][:2], low=THRESHOLDS[UPDATE_SIGNALS[name]].low)

    def drift_of(self, source: str) -> float | None:
        found = self.drift.get(source)
        return None if found is None else found.norm_drift

    def drift_limit(self, source: str, signal: str) -> float | None:
        """The drift of a source from which on it is noted; None while what is usual is not known."""
        whole, dot, _ = source.partition(".")
        parts = {"policy": "head"} if dot else {"policy": "policy", "critic": "critic"}
        part = parts.get(whole, "seed" if dot else "env")
        return self.drift_limits.get(f"{part}.{signal}")

    def detector_severity(self, source: str, kind: str) -> str | None:
        """Severity that the daemon has raised for a signal; None where it has not."""
        raised = self.anomalies.get((source, kind))
        return None if raised is None else raised[1].severity

    @property
    def is_published(self) -> bool:
        """True if a user's own loop publishes the run: it has metrics instead of envs."""
        return self.run is not None and self.run.kind == "published"

    @property
    def missing_commands(self) -> frozenset[str]:
        """Commands with a key that the run lacks."""
        return _COMMANDS_WITH_KEYS - self.loop_commands.keys() if self.is_published else frozenset()

    @property
    def is_measured(self) -> bool:
        """True once an epoch was received, or a number of a published run."""
        return self.epoch is not None or self.metrics.step is not None

    @property
    def num_envs(self) -> int:
        """Number of envs, at most `MAX_ENVS` whatever the event claims."""
        if self.epoch is not None:
            return len(self.epoch.val_accuracy)
        return max(0, min(self.run.envs, MAX_ENVS)) if self.run is not None else 0

    @property
    def slots(self) -> list[str]:
        if self.run is not None:
            return self.run.slots
        width = max((len(row) for row in self.epoch.stage), default=0) if self.epoch else 0
        return [f"s{i}" for i in range(width)]

    def escalation_left(self, command: str | None = None) -> int | None:
        """Epochs until the escalations fall back, or the one that the command with this id asked for."""
        return self.escalations.left(self.clock(self.ctx), command)

    def epochs_left(self, command: TrackedCommand) -> int | None:
        """Epochs until the escalation falls back that a command asked for; None where it asked for none."""
        is_open = command.state in OPEN_STATES and command.method == "telemetry.escalate"
        return self.escalation_left(command.id) if is_open else None

    def clock(self, ctx: Context) -> int:
        """Epochs since the run began."""
        per_round = self.run.episode_epochs if self.run is not None else 0
        return max(ctx.round - 1, 0) * per_round + ctx.epoch

    def stage_name(self, code: int) -> str:
        """Name of a stage's code, `#7` where it is unknown."""
        return _named(self.run.stages if self.run else _STAGES, code)

    def blueprint_name(self, code: int | None) -> str:
        """Name of a blueprint's code, `--` where the slot is empty."""
        return "--" if code is None else _named(self.run.blueprints if self.run else (), code)

    def tell_epoch(self, event: Event) -> None:
        """Fold an epoch into the seed stories."""
        codes = enumerate(self.run.stages if self.run else _STAGES)
        self.stories.epoch(event, self.slots, frozenset(i for i, name in codes if name in _WITH_SEED))

    def op_name(self, code: int) -> str:
        return _named(self.run.ops if self.run else (), code)


_WITH_SEED = frozenset(stage.name for stage in WITH_SEED)
_STAGES = tuple(stage.name for stage in Stage)
"""Until the run's own names are received."""


def _frozen(value: Any) -> Any:
    """A copy of whatever can be copied; the values of a dict too."""
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    return value.copy() if hasattr(value, "copy") else value


def _named(names: list[str] | tuple[str, ...], code: int) -> str:
    return names[code] if 0 <= code < len(names) else f"#{code}"


_Handler = Callable[[State, Event], None]


def _run_config(state: State, event: Event) -> None:
    if state.run is not None:
        state.run = replace(state.run, config=event.data.config)


def _run_started(state: State, event: Event) -> None:
    if state.run is not None and state.run.boot != event.data.boot:
        state.anomalies.clear()
        state.incidents.begin_boot()
    state.run = event.data
    state.rounds_planned = event.data.rounds
    state.stopped = None
    state.escalations = OpenEscalations()
    if state.run_state is None:
        state.run_state = "STARTING"
    if event.data.resumed_round is not None:
        state.rounds_done = max(state.rounds_done, event.data.resumed_round)


def _round_started(state: State, event: Event) -> None:
    state.rounds_planned = event.data.rounds
    state.previous_epoch = None
    state.best_accuracy = []
    state.gates.clear()


def _round_finished(state: State, event: Event) -> None:
    data: ev.RoundFinished = event.data
    state.seed_counts.finish_round(event.ctx.round, data.germinated)
    state.last_round = data
    state.rounds_done = max(state.rounds_done, event.ctx.round)


def _episode_finished(state: State, event: Event) -> None:
    if event.ctx.env is not None:
        state.episodes[event.ctx.env] = event.ctx.round, event.data


def _epoch(state: State, event: Event) -> None:
    data: ev.EpochFinished = event.data
    state.seed_counts.epoch(event, state.slots)
    state.tell_epoch(event)
    same = state.epoch is not None and state.epoch_ctx.round == event.ctx.round
    state.previous_epoch = state.epoch if same and state.epoch_ctx.epoch < event.ctx.epoch else None
    if not same:
        state.best_accuracy = []
    state.epoch, state.epoch_ctx = data, event.ctx
    state.epoch_ts = event.ts
    state.best_accuracy += [-1.0] * (len(data.val_accuracy) - len(state.best_accuracy))
    for env, accuracy in enumerate(data.val_accuracy):
        if accuracy is not None and accuracy == accuracy:
            state.best_accuracy[env] = max(state.best_accuracy[env], accuracy)


def _drift(state: State, event: Event) -> None:
    """What an event of the same kind (envs or policy) no longer names was not measured."""
    data: ev.Drift = event.data
    measured = set(data.source)
    of_envs = {source.startswith("env") for source in measured}
    for source in [s for s in state.drift if s not in measured and s.startswith("env") in of_envs]:
        del state.drift[source]
    columns = (data.norm, data.norm_ema, data.norm_drift, data.health, data.health_ema, data.health_drift)
    for source, *values in zip_columns(data.source, *columns):
        state.drift[source] = SourceDrift(*values)
    state.drift_limits |= event.data.limits


def _system(state: State, event: Event) -> None:
    if event.ctx.rank == 0:
        state.system, state.system_ts = event.data, event.ts


def _seed_stage(state: State, event: Event) -> None:
    data: ev.SeedStage = event.data
    state.seed_counts.stage(event)
    state.stories.note(event)
    if data.to_stage == "GERMINATED" and event.ctx.env is not None:
        state.gates.pop((event.ctx.env, data.slot), None)


def _seed_ended(state: State, event: Event) -> None:
    state.seed_counts.end(event)
    state.stories.note(event)


def _rewound(state: State, event: Event) -> None:
    state.seed_counts.rewind(event.data)
    state.stories.note(event)


def _gate(state: State, event: Event) -> None:
    state.stories.note(event)
    if event.ctx.env is not None:
        state.gates[event.ctx.env, event.data.slot] = event.data


def _profiler_finished(state: State, event: Event) -> None:
    state.profiling, state.profile = None, event.data


def _keep(**fields: str) -> _Handler:
    """A handler that sets fields of the state to parts of the event, such as `data`, `ts` or `data.state`."""

    def keep(state: State, event: Event) -> None:
        for name, part in fields.items():
            setattr(state, name, attrgetter(part)(event))

    return keep


HANDLERS: dict[type, _Handler] = {
    ev.RunConfigured: _run_config,
    ev.RunStarted: _run_started,
    ev.RunStateChanged: _keep(run_state="data.state"),
    ev.RunStopped: _keep(stopped="data", run_state="data.final_state"),
    ev.RunRewound: _rewound,
    ev.RoundStarted: _round_started,
    ev.RoundFinished: _round_finished,
    ev.EpisodeFinished: _episode_finished,
    ev.EvaluationFinished: lambda state, event: state.evaluations.update(
        {event.data.policy: (event.ctx.round, event.data)}
    ),
    ev.EpochFinished: _epoch,
    ev.RankEpoch: lambda state, event: state.rank_seconds.update({event.ctx.rank: event.data.seconds}),
    ev.Drift: _drift,
    ev.SystemSample: _system,
    ev.SeedStage: _seed_stage,
    ev.SeedEnded: _seed_ended,
    ev.SeedGate: _gate,
    ev.PPOUpdate: _keep(ppo="data", ppo_ts="ts"),
    ev.TelemetryStride: _keep(stride="data"),
    ev.LayerStatistics: _keep(layers="data", layers_ctx="ctx"),
    ev.ProfilerStarted: _keep(profiling="data"),
    ev.ProfilerFinished: _profiler_finished,
    ev.ShapleyComputed: _keep(shapley="data", shapley_ctx="ctx"),
    ev.Anomaly: lambda state, event: fold_anomaly(state.anomalies, event.data, ts=event.ts),
    ev.Incident: lambda state, event: state.incidents.fold(event.data),
    ev.AnomalyAcknowledged: lambda state, event: state.incidents.fold_acknowledged(event.data, event.ts),
    ev.AnomalyMuted: lambda state, event: state.incidents.fold_muted(event.data),
    ev.TelemetryLevel: lambda state, event: state.escalations.fold(event.data, state.clock(event.ctx)),
    **dict.fromkeys(
        (ev.Scalars, ev.Summary, ev.Histogram, ev.Artifact, ev.LoggedTable, ev.LoggedText),
        lambda state, event: state.metrics.fold(event.data),
    ),
}
"""Handlers by the class of the event."""

_OPEN = (ev.Anomaly, ev.Incident, ev.AnomalyAcknowledged, ev.AnomalyMuted, ev.TelemetryLevel)
"""What `rejoin` drops and a snapshot brings again."""


def fold_late(state: State, events: Sequence[Event]) -> None:
    """Take in events from before the terminal joined, in the order of their numbers.

    They add to curves, log, counts and seed stories only: all else shows newer events.
    """
    for event in events:
        state.curves.fold(event)
        if isinstance(event.data, ev.SeedStage | ev.SeedGate | ev.SeedEnded | ev.RunRewound):
            state.stories.note(event)
        elif isinstance(event.data, ev.EpochFinished):
            state.tell_epoch(event)
    entries = [entry for event in events if (entry := log_entry(event)) is not None]
    if entries:
        merged = sorted((*entries, *state.log), key=lambda entry: entry.ts)
        state.log.clear()
        state.log.extend(merged)

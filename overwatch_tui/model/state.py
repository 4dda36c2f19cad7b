"""What the screen needs to know, folded from events. Pure: no terminal, no clock, no socket.

Live and replayed events take the same path. Any order of events is taken without an error; what has not
been heard of yet is None, and the panels write `--`.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from protocol import events as ev
from protocol.events import Context
from protocol.thresholds import THRESHOLDS, Threshold
from protocol.wire import Event, Unknown

from .anomalies import Anomalies
from .describe import Entry, entry
from .history import BRIEF, RESOLUTIONS, SECOND, History
from .orders import Orders

LOG_ROWS = 2000
ROUNDS = 1000
MOST_ENVS = 4096
ROLLBACK_SHOWN = 60 * SECOND


@dataclass
class Rollback:
    """The governor's last word on an env."""

    reason: str
    ts: int


@dataclass
class BlueprintTally:
    """What became of the seeds of one blueprint, as far as we have heard."""

    germinated: int = 0
    fossilized: int = 0
    pruned: int = 0


@dataclass
class Gate:
    """A seed's newest gate."""

    gate: str
    passed: bool
    checks: dict[str, bool]


class DriftOf(NamedTuple):
    """Gradient drift of one source."""

    ts: int
    norm: float | None
    norm_ema: float | None
    norm_drift: float | None
    health: float | None
    health_ema: float | None
    health_drift: float | None


@dataclass
class State:
    """Everything folded from one run's events."""

    thresholds: dict[str, Threshold] = field(default_factory=lambda: dict(THRESHOLDS))
    run: ev.RunStarted | None = None
    run_state: str | None = None
    stopped: ev.RunStopped | None = None
    ctx: Context = field(default_factory=Context)
    ts: int = 0
    """Newest event, microseconds."""
    rounds_asked: int = 0
    rounds_done: int = 0
    """Highest round of which we heard the end."""
    epoch: ev.EpochFinished | None = None
    epoch_ctx: Context = field(default_factory=Context)
    epoch_ts: int = 0
    before: ev.EpochFinished | None = None
    """The epoch before, where it belongs to the same round."""
    best: list[float] = field(default_factory=list)
    """Per env, best validation accuracy of this episode."""
    ppo: ev.PPOUpdate | None = None
    ppo_ts: int = 0
    drift: dict[str, DriftOf] = field(default_factory=dict)
    """By source; envs and policy are told of by different events, which name those that were measured."""
    system: ev.SystemSample | None = None
    system_ts: int = 0
    stride: ev.TelemetryStride | None = None
    layers: ev.LayerStatistics | None = None
    layers_ctx: Context = field(default_factory=Context)
    rank_seconds: dict[int, float] = field(default_factory=dict)
    """Of the newest epoch on each rank beside the first."""
    shapley: ev.ShapleyComputed | None = None
    shapley_round: int = 0
    profile: ev.ProfilerFinished | None = None
    profiling: ev.ProfilerStarted | None = None
    level_until: int | None = None
    """Clock at which the escalation falls back; see `clock`."""
    rounds: deque[ev.RoundFinished] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    rollbacks: dict[int, Rollback] = field(default_factory=dict)
    gates: dict[tuple[int, str], Gate] = field(default_factory=dict)
    tallies: dict[str, BlueprintTally] = field(default_factory=dict)
    anomalies: Anomalies = field(default_factory=Anomalies)
    orders: Orders = field(default_factory=Orders)
    log: deque[Entry] = field(default_factory=lambda: deque(maxlen=LOG_ROWS))
    histories: dict[str, History] = field(default_factory=dict)
    unknown: int = 0
    """Events of types this version does not know."""
    _logged: dict[str, int] = field(default_factory=dict)

    # --- folding -----------------------------------------------------------------------------------

    def fold(self, event: Event) -> None:
        """Take in one event."""
        self.ts = max(self.ts, event.ts)
        if isinstance(event.data, Unknown):
            self.unknown += 1
            return
        if event.ts >= self.ts:
            self.ctx = event.ctx
        handler = _HANDLERS.get(type(event.data))
        if handler is not None:
            handler(self, event)
        self.orders.fold(event.data, ts=event.ts)
        self._write_log(event)

    def _write_log(self, event: Event) -> None:
        if event.seq <= self._logged.get(event.stream, 0):
            return
        row = entry(
            event.data,
            ts=event.ts,
            stream=event.stream,
            seq=event.seq,
            round=event.ctx.round,
            epoch=event.ctx.epoch,
            env=event.ctx.env,
        )
        if row is not None:
            self._logged[event.stream] = event.seq
            self.log.append(row)

    def renewed(self, reason: str, *, now: int) -> State:
        """A state for the snapshot that follows; log, commands, curves and acknowledgements stay."""
        fresh = State(
            thresholds=self.thresholds,
            anomalies=self.anomalies,
            orders=self.orders,
            log=self.log,
            histories=self.histories,
            _logged=self._logged,
        )
        fresh.anomalies.drop()
        fresh.note(reason, now=now)
        return fresh

    def note(self, text: str, *, now: int, severity: str | None = "info") -> None:
        """Put a line of the viewer's own into the log."""
        self.log.append(Entry(now, "view", 0, "view", "VIEW", severity, text, 0, 0, None))

    def frozen(self) -> State:
        """A copy that later events do not change."""
        still = copy.copy(self)
        still.histories = {name: history.copy() for name, history in self.histories.items()}
        for name in ("best", "drift", "rounds", "rollbacks", "gates", "log"):
            setattr(still, name, copy.copy(getattr(self, name)))
        for name in ("tallies", "anomalies", "orders"):
            setattr(still, name, copy.deepcopy(getattr(self, name)))
        return still

    # --- asking ------------------------------------------------------------------------------------

    def severity(self, signal: str, value: float | None) -> str | None:
        """By the table of thresholds that the daemon sent; None where it is fine or not measured."""
        threshold = self.thresholds.get(signal)
        return None if value is None or threshold is None else threshold.severity(value)

    def history(self, name: str) -> History | None:
        return self.histories.get(name)

    def drift_of(self, source: str) -> float | None:
        """Newest norm drift of a source."""
        found = self.drift.get(source)
        return None if found is None else found.norm_drift

    def judged(self, source: str, kind: str) -> str | None:
        """What the daemon's detector says of a signal whose limits only it knows, such as drift."""
        record = self.anomalies.get((source, kind))
        return record.severity if record is not None and record.active else None

    @property
    def envs(self) -> int:
        """How many there are; never more than a daemon can have, whatever it says."""
        if self.epoch is not None:
            return len(self.epoch.val_accuracy)
        return max(0, min(self.run.envs, MOST_ENVS)) if self.run is not None else 0

    @property
    def slots(self) -> list[str]:
        if self.run is not None:
            return self.run.slots
        width = max((len(row) for row in self.epoch.stage), default=0) if self.epoch else 0
        return [f"s{i}" for i in range(width)]

    @property
    def level_left(self) -> int | None:
        """Epochs until an escalation falls back."""
        if self.level_until is None or self.level_until <= self.clock(self.ctx):
            return None
        return self.level_until - self.clock(self.ctx)

    def clock(self, ctx: Context) -> int:
        """Epochs since the run began."""
        per_round = self.run.episode_epochs if self.run is not None else 0
        return max(ctx.round - 1, 0) * per_round + ctx.epoch

    def stage_name(self, code: int) -> str:
        return _named(self.run.stages if self.run else _STAGES, code)

    def blueprint_name(self, code: int | None) -> str:
        return "--" if code is None else _named(self.run.blueprints if self.run else (), code)

    def op_name(self, code: int) -> str:
        return _named(self.run.ops if self.run else (), code)

    def _record(self, name: str, ts: int, value: float | None, *, brief: bool = False) -> None:
        history = self.histories.get(name)
        if history is None:
            if value is None:
                return
            history = self.histories[name] = History(BRIEF if brief else RESOLUTIONS)
        history.add(ts, value)


_STAGES = (
    "DORMANT", "GERMINATED", "TRAINING", "BLENDING", "HOLDING", "FOSSILIZED", "PRUNED", "EMBARGOED",
    "RESETTING",
)  # fmt: skip
"""Until the run's own names are heard."""


def _named(names: list[str] | tuple[str, ...], code: int) -> str:
    return names[code] if 0 <= code < len(names) else f"#{code}"


def at_or_none(column: list[Any] | None, index: int) -> Any:
    """A column's value, None where the column is shorter."""
    return column[index] if column is not None and 0 <= index < len(column) else None


# --- one handler per event that changes what is known ----------------------------------------------


def _run_started(state: State, event: Event) -> None:
    state.run = event.data
    state.rounds_asked = event.data.rounds
    state.stopped = None
    if state.run_state is None:
        state.run_state = "STARTING"
    if event.data.resumed_round is not None:
        state.rounds_done = max(state.rounds_done, event.data.resumed_round)


def _run_state(state: State, event: Event) -> None:
    state.run_state = event.data.state


def _run_stopped(state: State, event: Event) -> None:
    state.stopped = event.data
    state.run_state = "STOPPED"


def _round_started(state: State, event: Event) -> None:
    state.rounds_asked = event.data.rounds
    state.before = None
    state.best = []
    state.gates.clear()


def _round_finished(state: State, event: Event) -> None:
    data: ev.RoundFinished = event.data
    state.rounds.append(data)
    state.rounds_done = max(state.rounds_done, event.ctx.round)
    state._record("return.p10", event.ts, data.return_p10)
    state._record("return.p50", event.ts, data.return_p50)
    state._record("return.p90", event.ts, data.return_p90)
    state._record("return.mean", event.ts, data.return_mean)
    state._record("accuracy.mean", event.ts, data.accuracy_mean)
    state._record("accuracy.best", event.ts, data.accuracy_best)
    state._record("speed", event.ts, data.env_epochs_per_second)


def _epoch(state: State, event: Event) -> None:
    data: ev.EpochFinished = event.data
    if event.ts < state.epoch_ts:
        return
    same = state.epoch is not None and state.epoch_ctx.round == event.ctx.round
    state.before = state.epoch if same and state.epoch_ctx.epoch < event.ctx.epoch else None
    if not same:
        state.best = []
    state.epoch, state.epoch_ctx, state.epoch_ts = data, event.ctx, event.ts
    state.best += [-1.0] * (len(data.val_accuracy) - len(state.best))
    for env, accuracy in enumerate(data.val_accuracy):
        state._record(f"accuracy/{env}", event.ts, accuracy)
        state._record(f"return/{env}", event.ts, at_or_none(data.episode_return, env))
        if accuracy is not None and accuracy == accuracy:
            state.best[env] = max(state.best[env], accuracy)


def _ppo(state: State, event: Event) -> None:
    data: ev.PPOUpdate = event.data
    state.ppo, state.ppo_ts = data, event.ts
    for name in PPO_SIGNALS:
        state._record(f"ppo.{name}", event.ts, getattr(data, name))
    for head, entropy in data.head_entropy.items():
        state._record(f"entropy.{head}", event.ts, entropy)


PPO_SIGNALS = (
    "approx_kl", "entropy", "clip_fraction", "explained_variance", "ratio_max", "ratio_min", "policy_loss",
    "value_loss", "grad_norm", "seconds", "advantage_std", "lstm_h_rms", "lstm_c_rms",
)  # fmt: skip
"""Fields of `PPOUpdate` of which a history is kept, as `ppo.<name>`."""


def _drift(state: State, event: Event) -> None:
    data: ev.Drift = event.data
    told = set(data.source)
    of_envs = {source.startswith("env") for source in told}
    for source in [s for s in state.drift if s not in told and s.startswith("env") in of_envs]:
        if state.drift[source].ts <= event.ts:
            del state.drift[source]
    columns = (data.norm, data.norm_ema, data.norm_drift, data.health, data.health_ema, data.health_drift)
    for i, source in enumerate(data.source):
        known = state.drift.get(source)
        if known is not None and event.ts < known.ts:
            continue
        found = DriftOf(event.ts, *(at_or_none(column, i) for column in columns))
        state.drift[source] = found
        brief = source.startswith("env") and "." in source
        state._record(f"drift/{source}", event.ts, found.norm_drift, brief=brief)
        if not brief:
            state._record(f"norm/{source}", event.ts, found.norm)


def _system(state: State, event: Event) -> None:
    data: ev.SystemSample = event.data
    state.system, state.system_ts = data, event.ts
    state._record("cpu", event.ts, data.cpu_percent)
    state._record("rss", event.ts, data.rss)
    state._record("memory", event.ts, data.memory_used / data.memory_total if data.memory_total else None)
    state._record("gpu", event.ts, data.gpu_percent)


def _seed_stage(state: State, event: Event) -> None:
    data: ev.SeedStage = event.data
    if data.blueprint is None:
        return
    tally = state.tallies.setdefault(data.blueprint, BlueprintTally())
    tally.germinated += data.to_stage == "GERMINATED"
    tally.fossilized += data.to_stage == "FOSSILIZED"
    tally.pruned += data.to_stage == "PRUNED"
    if data.to_stage == "GERMINATED" and event.ctx.env is not None:
        state.gates.pop((event.ctx.env, data.slot), None)


def _gate(state: State, event: Event) -> None:
    if event.ctx.env is not None:
        data: ev.SeedGate = event.data
        state.gates[event.ctx.env, data.slot] = Gate(data.gate, data.passed, data.checks)


def _anomaly(state: State, event: Event) -> None:
    state.anomalies.fold(event.data, ts=event.ts, env=event.ctx.env)


def _rollback(state: State, event: Event) -> None:
    if event.ctx.env is not None:
        data: ev.GovernorRollback = event.data
        state.rollbacks[event.ctx.env] = Rollback(data.reason, event.ts)


def _level(state: State, event: Event) -> None:
    data: ev.TelemetryLevel = event.data
    state.level_until = None if data.epochs is None else state.clock(event.ctx) + data.epochs


def _stride(state: State, event: Event) -> None:
    state.stride = event.data


def _layers(state: State, event: Event) -> None:
    state.layers, state.layers_ctx = event.data, event.ctx


def _rank(state: State, event: Event) -> None:
    state.rank_seconds = {**state.rank_seconds, event.ctx.rank: event.data.seconds}


def _shapley(state: State, event: Event) -> None:
    state.shapley, state.shapley_round = event.data, event.ctx.round


def _profiler_started(state: State, event: Event) -> None:
    state.profiling = event.data


def _profiler_finished(state: State, event: Event) -> None:
    state.profiling, state.profile = None, event.data


_HANDLERS = {
    ev.RunStarted: _run_started,
    ev.RunStateChanged: _run_state,
    ev.RunStopped: _run_stopped,
    ev.RoundStarted: _round_started,
    ev.RoundFinished: _round_finished,
    ev.EpochFinished: _epoch,
    ev.PPOUpdate: _ppo,
    ev.Drift: _drift,
    ev.SystemSample: _system,
    ev.SeedStage: _seed_stage,
    ev.SeedGate: _gate,
    ev.Anomaly: _anomaly,
    ev.GovernorRollback: _rollback,
    ev.TelemetryLevel: _level,
    ev.TelemetryStride: _stride,
    ev.LayerStatistics: _layers,
    ev.RankEpoch: _rank,
    ev.ShapleyComputed: _shapley,
    ev.ProfilerStarted: _profiler_started,
    ev.ProfilerFinished: _profiler_finished,
}

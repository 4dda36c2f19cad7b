"""Counters for Prometheus beside the server's own: folded from the events as they come.

The I/O thread writes, scrapes read. Nothing here grows with time: a key is one of a set that is known when
the run starts (stages, blueprints, kinds of anomalies), or one of a bounded number (ranks, phases).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES
from esper_overwatch.protocol.messages.events import (
    CheckpointFailed,
    CheckpointSaved,
    CommandAccepted,
    CommandDone,
    CommandFailed,
    CommandRefused,
    Drift,
    EpochFinished,
    EvaluationFinished,
    EventSpec,
    GovernorRollback,
    Incident,
    PPOUpdate,
    RoundFinished,
    SeedEnded,
    SeedStage,
    SystemSample,
    TelemetryLost,
)
from esper_overwatch.protocol.messages.vocabulary import SEVERITIES, STREAMS, WITH_SEED, Stage
from esper_overwatch.protocol.server.emitter import Emitted
from esper_overwatch.trainer.governor import RollbackReason

SCOPES = ("env", "seed", "policy", "head", "critic")
"""Kinds of things that drift."""
MAX_RANKS = 64
MAX_PHASES = 32
OUTCOMES = tuple(stage.name for stage in (*WITH_SEED, Stage.PRUNED, Stage.DORMANT))
"""All that `seed.ended` may say in `how`."""
_COMMAND_OUTCOMES: dict[type, str] = {
    CommandAccepted: "accepted",
    CommandRefused: "refused",
    CommandDone: "done",
    CommandFailed: "failed",
}
_T = TypeVar("_T")


def scope_of(source: str) -> str:
    """The scope of a drift's source: `env07.r0c1` is a seed, `policy.blueprint` a head."""
    owner, dot, _ = source.partition(".")
    if owner.startswith("env"):
        return "seed" if dot else "env"
    return "head" if dot else owner


class RunTotals:
    """Totals of one boot, and the newest event of each type.

    Args:
        blueprints: that the policy may plant.
        checkpoint_time: Unix time of the checkpoint that the boot began with, if any.
    """

    def __init__(self, blueprints: Sequence[str] = (), checkpoint_time: float | None = None) -> None:
        self.events: Counter[str] = Counter(dict.fromkeys(STREAMS, 0))
        """Published, by stream."""
        self.samples: dict[int, SystemSample] = {}
        """The newest by rank."""
        self.drifts: dict[str, Drift] = {}
        """The newest of the envs and of the policy, by the scope of the first source."""
        self.incidents: Counter[tuple[str, str]] = Counter(
            {(kind, severity): 0 for kind in ANOMALY_GUIDES for severity in SEVERITIES}
        )
        """Incidents that began or grew worse, by the kind of their worst signal then, and severity."""
        self.open: dict[str, tuple[str, str]] = {}
        """(kind, severity) of the incidents that go on, by id."""
        self.stage_entries: Counter[str] = Counter({stage.name: 0 for stage in Stage})
        self.outcomes: Counter[tuple[str, str]] = Counter(
            {(outcome, blueprint): 0 for outcome in OUTCOMES for blueprint in blueprints}
        )
        """Seeds by outcome and blueprint."""
        self.rollbacks: Counter[str] = Counter(
            {reason.name.lower(): 0 for reason in RollbackReason if reason}
        )
        self.commands: Counter[str] = Counter(dict.fromkeys(_COMMAND_OUTCOMES.values(), 0))
        self.checkpoints: Counter[str] = Counter({"saved": 0, "failed": 0})
        self.checkpoint_time = checkpoint_time
        self.evaluations: dict[str, EvaluationFinished] = {}
        """The newest by policy."""
        self.journal_lost = self.rounds = self.updates = 0
        self.epochs_measured = 0
        """Epochs whose events were seen; at telemetry level OFF there are none."""
        self.epoch_seconds = 0.0
        self.phase_seconds: defaultdict[str, float] = defaultdict(float)
        self._newest: dict[type, Any] = {}

    def observe(self, spec: EventSpec, events: Sequence[Emitted]) -> None:
        """Take in events of one type; see `protocol.server.publisher.Observer`."""
        self.events[spec.stream] += len(events)
        self._newest[spec.cls] = events[-1].event
        for item in events:
            self._count(item)

    def newest(self, cls: type[_T]) -> _T | None:
        """The newest event of a type; None where there was none in this boot."""
        return self._newest.get(cls)

    @property
    def open_incidents(self) -> dict[tuple[str, str], int]:
        """Numbers of incidents that go on, by kind and severity; of those that never were, 0."""
        return {**dict.fromkeys(self.incidents, 0), **Counter(self.open.values())}

    def _count(self, item: Emitted) -> None:
        match item.event:
            case Incident() as event:
                if event.change in ("began", "worse"):
                    self.incidents[event.kind, event.severity] += 1
                self.open.pop(event.id, None)
                if event.active:
                    self.open[event.id] = event.kind, event.severity
            case CheckpointSaved():
                self.checkpoints["saved"] += 1
                self.checkpoint_time = item.ns / 1e9
            case CheckpointFailed():
                self.checkpoints["failed"] += 1
            case Drift() as event if event.source and scope_of(event.source[0]) in SCOPES:
                self.drifts[scope_of(event.source[0])] = event
            case EpochFinished() as event:
                self.epochs_measured += 1
                self.epoch_seconds += event.seconds
                for phase, seconds in event.phases.items():
                    if phase in self.phase_seconds or len(self.phase_seconds) < MAX_PHASES:
                        self.phase_seconds[phase] += seconds
            case EvaluationFinished() as event:
                self.evaluations[event.policy] = event
            case GovernorRollback() as event if event.reason in self.rollbacks:
                self.rollbacks[event.reason] += 1
            case PPOUpdate():
                self.updates += 1
            case RoundFinished():
                self.rounds += 1
            case SeedStage() as event if event.by != "governor" and event.to_stage in self.stage_entries:
                self.stage_entries[event.to_stage] += 1
            case SeedEnded() as event if (event.how, event.blueprint) in self.outcomes:
                self.outcomes[event.how, event.blueprint or ""] += 1
            case SystemSample() as event if item.ctx.rank < MAX_RANKS:
                self.samples[item.ctx.rank] = event
            case TelemetryLost() as event if event.stream == "journal":
                self.journal_lost += event.count
            case event if type(event) in _COMMAND_OUTCOMES:
                self.commands[_COMMAND_OUTCOMES[type(event)]] += 1

"""Lines of the log: which events have one, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages import events as ev


@dataclass(frozen=True)
class LogEntry:
    """A line of the log; its text is made when it is drawn."""

    ts: int
    """Microseconds."""
    stream: str
    seq: int
    source: str
    """Env, part of the policy or of the daemon."""
    tag: str
    """Kind of the line, at most six letters."""
    severity: str | None
    round: int
    epoch: int
    data: Any
    """The event's own dataclass; the text itself of a line that the viewer wrote."""


ORIGINS: dict[type, tuple[str, str]] = {
    ev.SeedStage: ("seed", "SEED"),
    ev.Incident: ("", "INC"),
    ev.Alert: ("alert", "ALERT"),
    ev.AnomalyAcknowledged: ("", "INC"),
    ev.AnomalyMuted: ("", "INC"),
    ev.PPOUpdate: ("policy", "PPO"),
    ev.TeacherRound: ("policy", "TEACH"),
    ev.RoundFinished: ("round", "ROUND"),
    ev.GovernorRollback: ("env", "GOV"),
    ev.GovernorVeto: ("env", "GOV"),
    ev.LogLine: ("", "LOG"),
    ev.RunStarted: ("run", "RUN"),
    ev.RunConfigured: ("run", "RUN"),
    ev.RunStateChanged: ("run", "RUN"),
    ev.RunStopped: ("run", "RUN"),
    ev.PostmortemWritten: ("run", "RUN"),
    ev.RankLost: ("run", "RANK"),
    ev.CheckpointSaved: ("run", "CKPT"),
    ev.CheckpointFailed: ("run", "CKPT"),
    ev.TelemetryStride: ("telem", "TELEM"),
    ev.TelemetryLevel: ("telem", "TELEM"),
    ev.TelemetryLost: ("telem", "TELEM"),
    ev.JournalRemoved: ("telem", "TELEM"),
    ev.ProfilerStarted: ("prof", "PROF"),
    ev.ProfilerFinished: ("prof", "PROF"),
    ev.CommandAccepted: ("cmd", "CMD"),
    ev.CommandRefused: ("cmd", "CMD"),
    ev.CommandDone: ("cmd", "CMD"),
    ev.CommandFailed: ("cmd", "CMD"),
    ev.CommandProgress: ("cmd", "CMD"),
    ev.ParamChanged: ("cmd", "PARAM"),
    ev.Mark: ("mark", "MARK"),
    ev.LoggedTable: ("text", "TEXT"),
    ev.LoggedText: ("text", "TEXT"),
    ev.Artifact: ("file", "FILE"),
    ev.Lease: ("cmd", "LEASE"),
}
"""(source, tag) of the events that have a line; an empty source stands in the event."""

_SEVERITIES: dict[type, str] = {
    ev.GovernorRollback: "info",
    ev.GovernorVeto: "info",
    ev.PostmortemWritten: "warning",
    ev.RankLost: "critical",
    ev.CheckpointFailed: "critical",
    ev.TelemetryStride: "info",
    ev.TelemetryLevel: "info",
    ev.TelemetryLost: "warning",
    ev.JournalRemoved: "info",
    ev.CommandRefused: "warning",
    ev.ParamChanged: "info",
    ev.Mark: "info",
    ev.Lease: "info",
}
"""Severities of events that always have the same; see `_severity` for the others."""
_LOG_LEVELS = {"WARNING": "warning", "ERROR": "critical", "CRITICAL": "critical"}
_AUTOMATIC_STAGES = ("EMBARGOED", "RESETTING", "DORMANT")
"""A slot passes these alone after a pruning: no line for them."""


def has_log_entry(data: Any) -> bool:
    if isinstance(data, ev.SeedStage):
        return data.to_stage not in _AUTOMATIC_STAGES
    if isinstance(data, ev.Incident):
        return data.change != "changed"
    return type(data) in ORIGINS


def log_entry(event: Event) -> LogEntry | None:
    """The log's line for an event, or None where it has none."""
    data, ctx = event.data, event.ctx
    if not has_log_entry(data):
        return None
    _, tag = ORIGINS[type(data)]
    return LogEntry(
        ts=event.ts,
        stream=event.stream,
        seq=event.seq,
        source=_source(data, ctx.env),
        tag=tag,
        severity=_severity(data),
        round=ctx.round,
        epoch=ctx.epoch,
        data=data,
    )


def _source(data: Any, env: int | None) -> str:
    if isinstance(data, ev.Incident | ev.AnomalyAcknowledged | ev.AnomalyMuted):
        return data.source
    if isinstance(data, ev.LogLine):
        return data.logger.rsplit(".", 1)[-1]
    source, _ = ORIGINS[type(data)]
    if env is None or source not in ("seed", "env"):
        return source
    return f"env{env:02d} {data.slot}" if isinstance(data, ev.SeedStage) else f"env{env:02d}"


def _severity(data: Any) -> str | None:
    match data:
        case ev.Incident():
            return data.severity if data.active else None
        case ev.Alert():
            return data.level if data.change == "raised" else None if data.change == "sent" else "warning"
        case ev.PPOUpdate():
            return "warning" if data.skipped_nonfinite else None
        case ev.LogLine():
            return _LOG_LEVELS.get(data.level)
        case ev.RunStopped():
            return "critical" if data.exit_code else None
        case ev.ProfilerFinished():
            return "critical" if data.error else None
        case ev.CommandFailed():
            return None if data.kind == "cancelled" else "critical"
    return _SEVERITIES.get(type(data))

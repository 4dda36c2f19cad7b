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


ORIGINS: dict[type, tuple[str, str, str | None]] = {
    ev.SeedStage: ("seed", "SEED", None),
    ev.Incident: ("", "INC", None),
    ev.Alert: ("alert", "ALERT", None),
    ev.AnomalyAcknowledged: ("", "INC", None),
    ev.AnomalyMuted: ("", "INC", None),
    ev.PPOUpdate: ("policy", "PPO", None),
    ev.TeacherRound: ("policy", "TEACH", None),
    ev.RoundFinished: ("round", "ROUND", None),
    ev.GovernorRollback: ("env", "GOV", "info"),
    ev.GovernorVeto: ("env", "GOV", "info"),
    ev.LogLine: ("", "LOG", None),
    ev.RunStarted: ("run", "RUN", None),
    ev.RunConfigured: ("run", "RUN", None),
    ev.RunStateChanged: ("run", "RUN", None),
    ev.RunStopped: ("run", "RUN", None),
    ev.PostmortemWritten: ("run", "RUN", "warning"),
    ev.RankLost: ("run", "RANK", "critical"),
    ev.CheckpointSaved: ("run", "CKPT", None),
    ev.CheckpointFailed: ("run", "CKPT", "critical"),
    ev.TelemetryStride: ("telem", "TELEM", "info"),
    ev.TelemetryLevel: ("telem", "TELEM", "info"),
    ev.TelemetryLost: ("telem", "TELEM", "warning"),
    ev.JournalRemoved: ("telem", "TELEM", "info"),
    ev.ProfilerStarted: ("prof", "PROF", None),
    ev.ProfilerFinished: ("prof", "PROF", None),
    ev.CommandAccepted: ("cmd", "CMD", None),
    ev.CommandRefused: ("cmd", "CMD", "warning"),
    ev.CommandDone: ("cmd", "CMD", None),
    ev.CommandFailed: ("cmd", "CMD", None),
    ev.CommandProgress: ("cmd", "CMD", None),
    ev.ParamChanged: ("cmd", "PARAM", "info"),
    ev.Mark: ("mark", "MARK", "info"),
    ev.LoggedTable: ("text", "TEXT", None),
    ev.LoggedText: ("text", "TEXT", None),
    ev.Artifact: ("file", "FILE", None),
    ev.Lease: ("cmd", "LEASE", "info"),
}
"""(source, tag, severity) of the events that have a line.

An empty source stands in the event, and so may a severity: see `_severity`.
"""
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
    _, tag, _ = ORIGINS[type(data)]
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
    source, *_ = ORIGINS[type(data)]
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
    return ORIGINS[type(data)][2]

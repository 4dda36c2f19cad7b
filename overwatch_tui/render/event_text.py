"""Events in words: the text that the log shows of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from esper_overwatch.protocol.messages import events as ev

from .format import (
    SHORT_STAGE_NAMES,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_number,
    format_points,
)


def event_text(data: Any) -> str:
    """One line about an event, or the viewer's own text; "" for events that the log does not show."""
    if isinstance(data, str):
        return data
    tell = _TEXTS.get(type(data))
    text = "" if tell is None else tell(data)
    return text if "\n" not in text else " ".join(text.split())


def _update_text(update: ev.PPOUpdate) -> str:
    return (
        f"update kl {update.approx_kl:.3f} ent {update.entropy:.2f} clip {update.clip_fraction:.2f} "
        f"ev {format_number(update.explained_variance)}  {update.seconds * 1000:.0f} ms"
    )


def _round_text(finished: ev.RoundFinished) -> str:
    return (
        f"return {finished.return_mean:+.2f}  acc {100 * finished.accuracy_mean:.1f} best "
        f"{100 * finished.accuracy_best:.1f} env{finished.best_env:02d}  {format_duration(finished.seconds)}"
    )


def _incident_text(incident: ev.Incident) -> str:
    after = f" after {incident.suspect}" if incident.suspect else ""
    return f"{incident.title} over" if incident.over else f"{incident.title}: {incident.scope}{after}"


def _muted_text(mute: ev.AnomalyMuted) -> str:
    what = f"muted until {format_clock(mute.until)}" if mute.until else "no longer muted"
    return f"{mute.kind} {what}, by {mute.by}{_behind(': ', mute.reason)}"


def _teacher_text(report: ev.TeacherRound) -> str:
    text = f"{report.stage} worth {sum(report.worth.values()) / max(1, len(report.worth)):+.2f}"
    if report.recognised is not None:
        text += f" recognised {100 * report.recognised:.0f}%"
    return text if report.imitation_loss is None else f"{text} imitated {report.imitation_loss:.3f}"


def _alert_text(alert: ev.Alert) -> str:
    who = f"{alert.rule}: " if alert.rule else ""
    if alert.change == "raised":
        return f"{who}{alert.title}" + (f": {alert.text}" if alert.text else "")
    if alert.change == "sent":
        tried = f" at attempt {alert.attempts}" if alert.attempts > 1 else ""
        return f"{who}{alert.action} has told it{tried}"
    what = "is tried again" if alert.change == "failing" else "failed"
    return f"{who}{alert.action} {what}: {alert.error}"


def _seed_text(stage: ev.SeedStage) -> str:
    before, after = (SHORT_STAGE_NAMES.get(each, each) for each in (stage.from_stage, stage.to_stage))
    words = [f"{before} > {after}", stage.blueprint or ""]
    if stage.to_stage in ("BLENDING", "HOLDING"):
        words.append(f"a {stage.alpha:.2f}")
    if stage.to_stage == "GERMINATED" and stage.parameters:
        words.append(f"{format_count(stage.parameters)} params")
    if stage.contribution is not None:
        words.append(f"{format_points(stage.contribution)} pp")
    if stage.by != "auto":
        words.append(f"by {stage.by}")
    return " ".join(word for word in words if word)


def _start_text(run: ev.RunStarted) -> str:
    if run.kind == "published":
        return f"{run.name}: published, pid {run.pid} {' '.join(run.tags)}".rstrip()
    again = "" if run.resumed_round is None else f", resumed after round {run.resumed_round}"
    return f"{run.name}: {run.envs} envs of {run.task} on {run.device}, pid {run.pid}{again}"


def _stride_text(stride: ev.TelemetryStride) -> str:
    took = f"it took {stride.share:.1%} of the time, {stride.budget:.1%} allowed"
    return f"drift each {stride.new} epochs, was {stride.old}: {took}"


def _level_text(change: ev.TelemetryLevel) -> str:
    duration = "" if change.epochs is None else f" for {change.epochs} epochs"
    where = "" if change.env is None else f" in env{change.env:02d}"
    return f"{change.previous} > {change.level}{where}{duration} ({change.reason})"


def _accepted_text(command: ev.CommandAccepted) -> str:
    values = " ".join(f"{k}={v}" for k, v in command.params.items() if v not in (None, ""))
    return f"{command.method} {values} by {command.client or '?'}".replace("  ", " ")


def _lease_text(lease: ev.Lease) -> str:
    note = f" ({lease.note})" if lease.note else ""
    return f"{lease.state}{_behind(' by ', lease.by)}: {lease.holder}{note}"


def _behind(word: str, text: str) -> str:
    """A text behind a word; nothing where there is none."""
    return f"{word}{text}" if text else ""


def _file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


_TEXTS: dict[type, Callable[[Any], str]] = {
    ev.SeedStage: _seed_text,
    ev.Incident: _incident_text,
    ev.Alert: _alert_text,
    ev.AnomalyAcknowledged: lambda e: f"{e.kind} acknowledged by {e.by}{_behind(': ', e.reason)}",
    ev.AnomalyMuted: _muted_text,
    ev.PPOUpdate: _update_text,
    ev.TeacherRound: _teacher_text,
    ev.RoundFinished: _round_text,
    ev.GovernorRollback: lambda e: (
        f"rollback: {e.cause}, loss {e.loss:.3g}, back to epoch {e.restored_epoch}"
    ),
    ev.GovernorVeto: lambda e: f"veto: {' '.join(e.ops)} {e.slot}, {e.reason}",
    ev.LogLine: lambda e: e.message,
    ev.RunStarted: _start_text,
    ev.RunConfigured: lambda e: f"configuration changed: {', '.join(e.config)}",
    ev.RunStateChanged: lambda e: e.state + (f" ({e.reason})" if e.reason else ""),
    ev.RunStopped: lambda e: f"stopped: {e.error or e.reason} (exit {e.exit_code})",
    ev.PostmortemWritten: lambda e: f"post-mortem ({e.reason}) in {e.path}",
    ev.RankLost: lambda e: f"{e.error}; {e.checkpoint or 'no checkpoint'}",
    ev.CheckpointSaved: lambda e: f"{_file_name(e.path)} {format_bytes(e.bytes)} ({e.reason})",
    ev.CheckpointFailed: lambda e: f"failed: {e.error} ({e.path})",
    ev.LoggedText: lambda e: f"{e.name}: {e.text} (step {e.step})",
    ev.LoggedTable: lambda e: f"{e.name}: table of {e.size} rows (step {e.step})",
    ev.Artifact: lambda e: f"{e.name}: {e.kind} {e.path} {format_bytes(e.bytes)} (step {e.step})",
    ev.TelemetryStride: _stride_text,
    ev.TelemetryLevel: _level_text,
    ev.TelemetryLost: lambda e: f"{e.count} events of {e.stream} refused: queue full",
    ev.JournalRemoved: lambda e: f"{e.segment} {format_bytes(e.bytes)} removed: journal.keep_bytes",
    ev.ProfilerStarted: lambda e: f"recording {e.epochs} epochs",
    ev.ProfilerFinished: lambda e: e.error or f"{_file_name(e.path)} {format_bytes(e.bytes)}",
    ev.CommandAccepted: _accepted_text,
    ev.CommandRefused: lambda e: f"{e.method} refused: {e.message}",
    ev.CommandDone: lambda e: f"{e.method} done in {format_duration(e.seconds)}",
    ev.CommandFailed: lambda e: f"{e.method}{'' if e.kind == 'cancelled' else ' failed:'} {e.message}",
    ev.CommandProgress: lambda e: f"{e.method} {e.done} of {e.total} epochs",
    ev.ParamChanged: lambda e: f"{e.key} {e.old:g} > {e.new:g} (by {e.by})",
    ev.Mark: lambda e: f"{e.text} (by {e.client})",
    ev.Lease: _lease_text,
}
"""What is told of an event, by its class."""

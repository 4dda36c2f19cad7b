"""Events in words: the text that the log shows of each."""

from __future__ import annotations

from typing import Any

from esper_overwatch.protocol.messages import events as ev

from .format import (
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_number,
    format_points,
    short_stage_name,
)


def event_text(data: Any) -> str:
    """One line about an event, or the viewer's own text; "" for events that the log does not show."""
    if isinstance(data, str):
        return data
    text = _training_text(data) or _run_text(data) or _telemetry_text(data) or _command_text(data) or ""
    return text if "\n" not in text else " ".join(text.split())


def _training_text(data: Any) -> str | None:
    match data:
        case ev.SeedStage():
            return _seed_text(data)
        case ev.Incident():
            after = f" after {data.suspect}" if data.suspect else ""
            return f"{data.title} over" if data.over else f"{data.title}: {data.scope}{after}"
        case ev.Alert():
            return _alert_text(data)
        case ev.AnomalyAcknowledged():
            return f"{data.kind} acknowledged by {data.by}" + (f": {data.reason}" if data.reason else "")
        case ev.AnomalyMuted():
            what = f"muted until {format_clock(data.until)}" if data.until else "no longer muted"
            return f"{data.kind} {what}, by {data.by}" + (f": {data.reason}" if data.reason else "")
        case ev.PPOUpdate():
            return (
                f"update kl {data.approx_kl:.3f} ent {data.entropy:.2f} clip {data.clip_fraction:.2f} "
                f"ev {format_number(data.explained_variance)}  {data.seconds * 1000:.0f} ms"
            )
        case ev.TeacherRound():
            return _teacher_text(data)
        case ev.RoundFinished():
            return (
                f"return {data.return_mean:+.2f}  acc {100 * data.accuracy_mean:.1f} best "
                f"{100 * data.accuracy_best:.1f} env{data.best_env:02d}  {format_duration(data.seconds)}"
            )
        case ev.GovernorRollback():
            return f"rollback: {data.cause}, loss {data.loss:.3g}, back to epoch {data.restored_epoch}"
        case ev.GovernorVeto():
            return f"veto: {' '.join(data.ops)} {data.slot}, {data.reason}"
    return None


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
    words = [
        f"{short_stage_name(stage.from_stage)} > {short_stage_name(stage.to_stage)}",
        stage.blueprint or "",
    ]
    if stage.to_stage in ("BLENDING", "HOLDING"):
        words.append(f"a {stage.alpha:.2f}")
    if stage.to_stage == "GERMINATED" and stage.parameters:
        words.append(f"{format_count(stage.parameters)} params")
    if stage.contribution is not None:
        words.append(f"{format_points(stage.contribution)} pp")
    if stage.by != "auto":
        words.append(f"by {stage.by}")
    return " ".join(word for word in words if word)


def _run_text(data: Any) -> str | None:
    match data:
        case ev.LogLine():
            return data.message
        case ev.RunStarted(kind="published"):
            return f"{data.name}: published, pid {data.pid} {' '.join(data.tags)}".rstrip()
        case ev.RunConfigured():
            return f"configuration changed: {', '.join(data.config)}"
        case ev.LoggedText():
            return f"{data.name}: {data.text} (step {data.step})"
        case ev.LoggedTable():
            return f"{data.name}: table of {data.size} rows (step {data.step})"
        case ev.Artifact():
            size = format_bytes(data.bytes)
            return f"{data.name}: {data.kind} {data.path} {size} (step {data.step})"
        case ev.RunStarted():
            again = "" if data.resumed_round is None else f", resumed after round {data.resumed_round}"
            return f"{data.name}: {data.envs} envs of {data.task} on {data.device}, pid {data.pid}{again}"
        case ev.RunStateChanged():
            return data.state + (f" ({data.reason})" if data.reason else "")
        case ev.RunStopped():
            return f"stopped: {data.error or data.reason} (exit {data.exit_code})"
        case ev.PostmortemWritten():
            return f"post-mortem ({data.reason}) in {data.path}"
        case ev.RankLost():
            return f"{data.error}; {data.checkpoint or 'no checkpoint'}"
        case ev.CheckpointSaved():
            return f"{_file_name(data.path)} {format_bytes(data.bytes)} ({data.reason})"
        case ev.CheckpointFailed():
            return f"failed: {data.error} ({data.path})"
    return None


def _telemetry_text(data: Any) -> str | None:
    match data:
        case ev.TelemetryStride():
            took = f"it took {data.share:.1%} of the time, {data.budget:.1%} allowed"
            return f"drift each {data.new} epochs, was {data.old}: {took}"
        case ev.TelemetryLevel():
            duration = "" if data.epochs is None else f" for {data.epochs} epochs"
            where = "" if data.env is None else f" in env{data.env:02d}"
            return f"{data.previous} > {data.level}{where}{duration} ({data.reason})"
        case ev.TelemetryLost():
            return f"{data.count} events of {data.stream} refused: queue full"
        case ev.JournalRemoved():
            return f"{data.segment} {format_bytes(data.bytes)} removed: journal.keep_bytes"
        case ev.ProfilerStarted():
            return f"recording {data.epochs} epochs"
        case ev.ProfilerFinished():
            return data.error or f"{_file_name(data.path)} {format_bytes(data.bytes)}"
    return None


def _command_text(data: Any) -> str | None:
    match data:
        case ev.CommandAccepted():
            values = " ".join(f"{k}={v}" for k, v in data.params.items() if v not in (None, ""))
            return f"{data.method} {values} by {data.client or '?'}".replace("  ", " ")
        case ev.CommandRefused():
            return f"{data.method} refused: {data.message}"
        case ev.CommandDone():
            return f"{data.method} done in {format_duration(data.seconds)}"
        case ev.CommandFailed(kind="cancelled"):
            return f"{data.method} {data.message}"
        case ev.CommandFailed():
            return f"{data.method} failed: {data.message}"
        case ev.CommandProgress():
            return f"{data.method} {data.done} of {data.total} epochs"
        case ev.ParamChanged():
            return f"{data.key} {data.old:g} > {data.new:g} (by {data.by})"
        case ev.Mark():
            return f"{data.text} (by {data.client})"
        case ev.Lease():
            by = f" by {data.by}" if data.by else ""
            note = f" ({data.note})" if data.note else ""
            return f"{data.state}{by}: {data.holder}{note}"
    return None


def _file_name(path: str) -> str:
    return path.rsplit("/", 1)[-1]

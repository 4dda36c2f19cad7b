"""Events in words: what the log shows of each."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from protocol import events as ev

SHORT_STAGE = {
    "DORMANT": "DORM", "GERMINATED": "GERM", "TRAINING": "TRAIN", "BLENDING": "BLEND", "HOLDING": "HOLD",
    "FOSSILIZED": "FOSSIL", "PRUNED": "PRUNED", "EMBARGOED": "EMBARGO", "RESETTING": "RESET",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A line of the log."""

    ts: int
    stream: str
    seq: int
    source: str
    tag: str
    severity: str | None
    text: str
    round: int
    epoch: int
    data: Any
    """The event itself, for the raw view."""


def number(value: float | None, form: str = ".2f") -> str:
    """A measured number; `--` where it was not measured, `nan` and `inf` as such."""
    return "--" if value is None else format(value, form)


def size(count: float | None) -> str:
    """Bytes in the unit that fits."""
    if count is None:
        return "--"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def amount(count: float | None) -> str:
    """A count in three or four characters: 950, 5.4K, 1.2M."""
    if count is None:
        return "--"
    if abs(count) < 1000:
        return f"{count:.0f}"
    for divisor, unit in ((1e3, "K"), (1e6, "M"), (1e9, "G")):
        if abs(count) < divisor * 1000 or unit == "G":
            break
    return f"{count / divisor:.1f}{unit}"


def span(seconds: float | None) -> str:
    """A duration in at most six characters: 41s, 2m04s, 3h12m, 5d."""
    if seconds is None or not isfinite(seconds):
        return "--" if seconds is None else str(seconds)
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def _seed_stage(e: ev.SeedStage) -> tuple[str, str, str | None, str] | None:
    """Not the three stages that a slot passes by itself after a pruning."""
    if e.to_stage in ("EMBARGOED", "RESETTING", "DORMANT"):
        return None
    arrow = f"{SHORT_STAGE.get(e.from_stage, e.from_stage)} > {SHORT_STAGE.get(e.to_stage, e.to_stage)}"
    words = [arrow, e.blueprint or ""]
    if e.to_stage in ("BLENDING", "HOLDING"):
        words.append(f"a {e.alpha:.2f}")
    if e.to_stage == "GERMINATED" and e.parameters:
        words.append(f"{amount(e.parameters)} params")
    if e.contribution is not None:
        words.append(f"{100 * e.contribution:+.1f} pp")
    if e.by != "auto":
        words.append(f"by {e.by}")
    return "seed", "SEED", None, " ".join(w for w in words if w)


def _anomaly(e: ev.Anomaly) -> tuple[str, str, str | None, str]:
    if not e.active:
        return e.source, "ANOM", None, f"{e.kind} cleared"
    limit = "" if e.threshold is None else f" (limit {e.threshold:.3g})"
    return e.source, "ANOM", e.severity, f"{e.kind} {number(e.value, '.3g')}{limit}"


def words(data: Any) -> tuple[str, str, str | None, str] | None:
    """(source, tag, severity, text) of an event, or None for those the log does not show."""
    match data:
        case ev.SeedStage():
            return _seed_stage(data)
        case ev.Anomaly():
            return _anomaly(data)
        case ev.PPOUpdate():
            text = (
                f"update kl {data.approx_kl:.3f} ent {data.entropy:.2f} clip {data.clip_fraction:.2f} "
                f"ev {number(data.explained_variance)}  {data.seconds * 1000:.0f} ms"
            )
            return "policy", "PPO", "warning" if data.skipped_nonfinite else None, text
        case ev.RoundFinished():
            text = (
                f"return {data.return_mean:+.2f}  acc {100 * data.accuracy_mean:.1f} "
                f"best {100 * data.accuracy_best:.1f} env{data.best_env:02d}  {span(data.seconds)}"
            )
            return "round", "ROUND", None, text
        case ev.GovernorRollback():
            text = f"rollback: {data.reason}, loss {data.loss:.3g}, back to epoch {data.restored_epoch}"
            return "env", "GOV", "critical", text
        case ev.LogLine():
            severity = {"WARNING": "warning", "ERROR": "critical", "CRITICAL": "critical"}.get(data.level)
            return data.logger.rsplit(".", 1)[-1], "LOG", severity, data.message
    return _run_words(data) or _command_words(data)


def _run_words(data: Any) -> tuple[str, str, str | None, str] | None:
    match data:
        case ev.RunStarted():
            again = "" if data.resumed_round is None else f", resumed after round {data.resumed_round}"
            text = f"{data.name}: {data.envs} envs of {data.task} on {data.device}, pid {data.pid}{again}"
            return "run", "RUN", None, text
        case ev.RunStateChanged():
            return "run", "RUN", None, data.state + (f" ({data.reason})" if data.reason else "")
        case ev.RunStopped():
            severity = "critical" if data.exit_code else None
            return "run", "RUN", severity, f"stopped: {data.error or data.reason} (exit {data.exit_code})"
        case ev.PostmortemWritten():
            return "run", "RUN", "warning", f"post-mortem ({data.reason}) in {data.path}"
        case ev.RankLost():
            return "run", "RANK", "critical", f"{data.error}; {data.checkpoint or 'no checkpoint'}"
        case ev.CheckpointSaved():
            name = data.path.rsplit("/", 1)[-1]
            return "run", "CKPT", None, f"{name} {size(data.bytes)} ({data.reason})"
        case ev.CheckpointFailed():
            return "run", "CKPT", "critical", f"failed: {data.error} ({data.path})"
        case ev.TelemetryStride():
            took = f"it took {data.share:.1%} of the time, {data.budget:.1%} allowed"
            return "telem", "TELEM", "info", f"drift each {data.new} epochs, was {data.old}: {took}"
        case ev.TelemetryLevel():
            span_ = "" if data.epochs is None else f" for {data.epochs} epochs"
            where = "" if data.env is None else f" in env{data.env:02d}"
            return "telem", "TELEM", "info", f"{data.previous} > {data.level}{where}{span_} ({data.reason})"
        case ev.TelemetryLost():
            return "telem", "TELEM", "warning", f"{data.count} events of {data.stream} refused: queue full"
        case ev.JournalRemoved():
            return "telem", "TELEM", "info", f"{data.segment} {size(data.bytes)} removed: journal.keep_bytes"
        case ev.ProfilerStarted():
            return "prof", "PROF", None, f"recording {data.epochs} epochs"
        case ev.ProfilerFinished():
            if data.error:
                return "prof", "PROF", "critical", data.error
            return "prof", "PROF", None, f"{data.path.rsplit('/', 1)[-1]} {size(data.bytes)}"
    return None


def _command_words(data: Any) -> tuple[str, str, str | None, str] | None:
    match data:
        case ev.CommandAccepted():
            values = " ".join(f"{k}={v}" for k, v in data.params.items() if v not in (None, ""))
            return "cmd", "CMD", None, f"{data.method} {values} by {data.client or '?'}".replace("  ", " ")
        case ev.CommandRefused():
            return "cmd", "CMD", "warning", f"{data.method} refused: {data.message}"
        case ev.CommandDone():
            return "cmd", "CMD", None, f"{data.method} done in {span(data.seconds)}"
        case ev.CommandFailed(kind="cancelled"):
            return "cmd", "CMD", None, f"{data.method} {data.message}"
        case ev.CommandFailed():
            return "cmd", "CMD", "critical", f"{data.method} failed: {data.message}"
        case ev.CommandProgress():
            return "cmd", "CMD", None, f"{data.method} {data.done} of {data.total} epochs"
        case ev.ParamChanged():
            return "cmd", "PARAM", "info", f"{data.key} {data.old:g} > {data.new:g} (by {data.by})"
        case ev.Mark():
            return "mark", "MARK", "info", f"{data.text} (by {data.client})"
        case ev.Lease():
            by = f" by {data.by}" if data.by else ""
            note = f" ({data.note})" if data.note else ""
            return "cmd", "LEASE", "info", f"{data.state}{by}: {data.holder}{note}"
    return None


def entry(
    data: Any, *, ts: int, stream: str, seq: int, round: int, epoch: int, env: int | None
) -> Entry | None:
    """The log's line for an event, or None where it has none."""
    said = words(data)
    if said is None:
        return None
    source, tag, severity, text = said
    if env is not None and source in ("seed", "env"):
        source = f"env{env:02d}"
        if isinstance(data, ev.SeedStage):
            source = f"{source} {data.slot}"
    return Entry(ts, stream, seq, source, tag, severity, text, round, epoch, data)

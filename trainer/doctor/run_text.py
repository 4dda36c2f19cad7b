"""A diagnosis as lines of text."""

from __future__ import annotations

import time

from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES, advice
from esper_overwatch.protocol.messages.events import Incident

from .run import Diagnosis


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """The diagnosis as lines of text."""
    boot = f", boot {found.boot}" if found.boot else ""
    boot += f" on {found.device}" if found.device else ""
    lines = [f"run {found.run} ({found.id}){boot}", _ending(found)]
    if found.last_at is not None:
        where = f", epoch {found.epoch} of round {found.round}" if found.kind == "training" else ""
        lines.append(f"last event: {found.last_event}, {_ago(found.last_at)}{where}")
    if found.damage:
        lines.append(f"damaged: {found.damage}")
    if found.damaged_lines:
        lines.append(f"journal: {found.damaged_lines} damaged lines were skipped")
    if found.checkpoint is not None and found.checkpoint.error is None:
        name = found.checkpoint.path.rpartition("/")[2]
        lines.append(f"checkpoint: {name}, {_ago(found.checkpoint.at)}, complete")
    when = "now" if found.ending == "alive" else "at the end"
    lines.append(f"incidents {when}: {len(found.incidents) or 'none'}")
    for incident in found.incidents:
        after = f", after {incident.suspect}" if incident.suspect else ""
        lines.append(f"  {incident.severity}: {incident.title}, {incident.scope}{after}")
        lines += _advice(incident)
    if found.last_rollback is not None:
        r = found.last_rollback
        lines.append(
            f"rollbacks: {found.rollbacks}, the last of env{r.env:02d} in round {r.round}, epoch {r.epoch} "
            f"({r.cause}, loss {r.loss:.3g})"
        )
    if found.bundle is not None:
        lines.append(f"post-mortem: {found.bundle}")
        if found.report is not None:
            lines += [f"  without {part}: {why}" for part, why in found.report.missing.items()]
    return lines + [f"next: {line}" for line in found.advice]


def _advice(incident: Incident) -> list[str]:
    """Meaning of an incident's worst signal, its usual causes and what to try."""
    guide = ANOMALY_GUIDES.get(incident.kind)
    if guide is None:
        return []
    causes = [] if incident.suspect else ["    usually: " + "; ".join(guide.causes)]
    steps = "; ".join(advice(incident.kind, incident.undo))
    return [f"    means: {guide.meaning}", *causes, f"    try: {steps}"]


def _ending(found: Diagnosis) -> str:
    if found.ending == "alive":
        how = "is alive, but stopped by SIGSTOP or Ctrl-Z" if found.is_stopped else "is alive"
        return f"it {how}: pid {found.pid}"
    if found.ending == "never started":
        return "it never started: its journal holds no event"
    if found.ending == "killed":
        memory = "" if found.memory_share is None else f"; memory was {100 * found.memory_share:.0f} % full"
        return (
            "it was killed: no final event and its lock is free (kill -9, the kernel's out-of-memory "
            f"killer, a power loss){memory}"
        )
    if found.ending == "untold":
        return "it ended and was not killed, but the disk, full or sick, took its last events no more"
    if found.stopped_by:
        return f"it was stopped by {found.stopped_by}"
    because = found.reason or ""
    if found.error and found.error != found.reason:
        because = found.error if because in ("failed", "interrupted") else f"{because}: {found.error}"
    verb = {"in order": "it is complete", "failed": "it failed", "interrupted": "it was interrupted"}
    code = "" if found.kind == "published" else f" (exit code {found.exit_code})"  # a loop has its own
    return f"{verb[found.ending]}: {because}{code}"


def _ago(us: int) -> str:
    seconds = max(0.0, time.time() - us / 1e6)
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"

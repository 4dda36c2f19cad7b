"""Writes docs/prometheus/alerts.yml from the checks and thresholds: `python -m tools.alert_rules`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "prometheus" / "alerts.yml"
TRAINING = 'ignoring (state) esper_run_state{state="TRAINING"} == 1'


@dataclass(frozen=True)
class AlertRule:
    """One rule; `summary` and `description` are Prometheus templates."""

    name: str
    expr: str
    severity: str
    summary: str
    description: str
    seconds: int = 0
    """How long the condition holds before the alert fires."""


OF_THE_RUN = (
    AlertRule(
        "EsperTrainerSilent",
        f"esper_trainer_beat_age_seconds > 600 and {TRAINING}",
        "critical",
        "run {{ $labels.run }} finishes no epoch",
        "The last one ended {{ $value | humanizeDuration }} ago: esper-daemon doctor {{ $labels.run }}",
    ),
    AlertRule(
        "EsperCheckpointFailed",
        'increase(esper_checkpoints_total{outcome="failed"}[15m]) > 0',
        "critical",
        "run {{ $labels.run }} cannot save a checkpoint",
        "Free space on the disk of its folder; the checkpoints before it are intact",
    ),
    AlertRule(
        "EsperCheckpointOld",
        f"time() - esper_checkpoint_time_seconds > 3600 and {TRAINING}",
        "warning",
        "run {{ $labels.run }} has an old checkpoint",
        "Saved {{ $value | humanizeDuration }} ago; checkpoint.every_seconds sets the interval",
    ),
    AlertRule(
        "EsperJournalLost",
        "increase(esper_journal_events_lost_total[5m]) > 0",
        "critical",
        "run {{ $labels.run }} has lost events of its journal",
        "The disk refused them for too long: free space on it",
    ),
    AlertRule(
        "EsperEventsDropped",
        "increase(esper_events_dropped_total[5m]) > 0",
        "warning",
        "run {{ $labels.run }} has dropped events of stream {{ $labels.stream }}",
        "Its queue was full: lower the telemetry level, or look for a machine that is too busy",
    ),
    AlertRule(
        "EsperWireFailing",
        "esper_wire_failing_steps > 0",
        "warning",
        "run {{ $labels.run }}: a step of the wire fails",
        "esper-daemon status {{ $labels.run }} names it under wire; training goes on",
        seconds=60,
    ),
    AlertRule(
        "EsperDiskFull",
        "esper_disk_free_bytes < 1e9",
        "warning",
        "less than 1 GB free for run {{ $labels.run }}",
        "{{ $value | humanize1024 }}B are left on the disk of its folder",
        seconds=60,
    ),
)


def incident_rules() -> Iterator[AlertRule]:
    """One for each severity that asks for somebody; sees also what began and ended between scrapes."""
    for severity, about in (("critical", "act now, or work is lost"), ("warning", "look when you can")):
        labels = f'{{severity="{severity}"}}'
        yield AlertRule(
            f"EsperIncident{severity.capitalize()}",
            f"esper_incidents_open{labels} > 0 or increase(esper_incidents_total{labels}[5m]) > 0",
            severity,
            f"run {{{{ $labels.run }}}}: {{{{ $labels.kind }}}} is {severity}",
            f"{about}: esper-daemon doctor {{{{ $labels.run }}}} says what came before it and what to try",
        )


def page() -> str:
    """The whole file, as Prometheus reads it."""
    groups = {"esper-run": OF_THE_RUN, "esper-incidents": tuple(incident_rules())}
    lines = [
        "# Made by `make docs` from tools/alert_rules.py; do not edit.",
        "groups:",
    ]
    for group, rules in groups.items():
        lines += [f"  - name: {group}", "    rules:"]
        for rule in rules:
            lines += [f"      - alert: {rule.name}", f"        expr: {json.dumps(rule.expr)}"]
            lines += [f"        for: {rule.seconds}s"] if rule.seconds else []
            lines += ["        labels:", f"          severity: {rule.severity}", "        annotations:"]
            lines += [f"          summary: {json.dumps(rule.summary)}"]
            lines += [f"          description: {json.dumps(rule.description)}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

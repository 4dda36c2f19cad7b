"""Writes docs/prometheus/alerts.yml from the checks and thresholds: `python -m tools.alert_rules`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.protocol.server.alarm import ALARMS
from esper_overwatch.trainer.telemetry.anomalies import CHECKS, AnomalyCheck

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
        "EsperConnectionsDenied",
        "increase(esper_connections_denied_total[5m]) > 20",
        "warning",
        "run {{ $labels.run }} turns many connections away",
        "Somebody without an authorized key tries its TCP port; daemon.log names addresses",
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


def anomaly_rule(scope: str, kind: str, about: str) -> AlertRule:
    """The rule of one kind of anomaly of one scope; sees also what was raised and cleared between scrapes."""
    labels = f'{{scope="{scope}",kind="{kind}",severity="critical"}}'
    return AlertRule(
        f"Esper{_camel(scope)}{_camel(kind)}",
        f"esper_anomalies_active{labels} > 0 or increase(esper_anomalies_total{labels}[5m]) > 0",
        "critical",
        f"run {{{{ $labels.run }}}}: {scope}.{kind} is critical",
        about,
    )


def anomaly_rules() -> Iterator[AlertRule]:
    """One for each check that is critical from some value on, and for what the server raises."""
    for check in CHECKS:
        yield anomaly_rule(check.scope, check.kind, f"{THRESHOLDS[check.threshold].hint} ({_limit(check)})")
    for source, kind in ALARMS:
        yield anomaly_rule(source, kind, ANOMALY_GUIDES[kind].meaning)


def page() -> str:
    """The whole file, as Prometheus reads it."""
    groups = {"esper-run": OF_THE_RUN, "esper-anomalies": tuple(anomaly_rules())}
    lines = [
        "# Made by `make docs` from tools/alert_rules.py and protocol/messages/thresholds.py; do not edit.",
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


def _limit(check: AnomalyCheck) -> str:
    threshold = THRESHOLDS[check.threshold]
    side = "at most" if threshold.low else "at least"
    return f"critical where {threshold.signal} is {side} {threshold.critical:g}"


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

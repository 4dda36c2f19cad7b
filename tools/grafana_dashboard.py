"""Writes docs/grafana/esper.json, a dashboard of one run: `python -m tools.grafana_dashboard`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "grafana" / "esper.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
"""Width of a dashboard in Grafana's units."""


@dataclass(frozen=True)
class DashboardPanel:
    """One panel; queries by legend, where `{{label}}` is a label's value."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    """Grafana's name of the unit."""
    width: int = 8
    height: int = 7
    kind: str = "timeseries"
    stacked: bool = False


ROWS: dict[str, tuple[DashboardPanel, ...]] = {
    "Run": (
        DashboardPanel("State", {"{{state}}": "esper_run_state{R} == 1"}, width=4, height=4, kind="stat"),
        DashboardPanel("Round", {"round": "esper_round{R}"}, width=4, height=4, kind="stat"),
        DashboardPanel(
            "Best test accuracy",
            {"accuracy": "esper_round_test_accuracy_best_ratio{R}"},
            "percentunit",
            width=4,
            height=4,
            kind="stat",
        ),
        DashboardPanel(
            "Critical incidents",
            {"critical": 'sum(esper_incidents_open{R,severity="critical"})'},
            width=4,
            height=4,
            kind="stat",
        ),
        DashboardPanel(
            "Since the last epoch", {"age": "esper_trainer_beat_age_seconds{R}"}, "s", 4, 4, kind="stat"
        ),
        DashboardPanel(
            "Age of the checkpoint", {"age": "time() - esper_checkpoint_time_seconds{R}"}, "s", 4, 4, "stat"
        ),
    ),
    "Learning": (
        DashboardPanel(
            "Validation accuracy",
            {
                "best env": "esper_validation_accuracy_best_ratio{R}",
                "mean": "esper_validation_accuracy_mean_ratio{R}",
            },
            "percentunit",
        ),
        DashboardPanel(
            "Return of a round",
            {"mean": "esper_round_return_mean{R}", "{{percentile}} %": "esper_round_return{R}"},
        ),
        DashboardPanel(
            "Loss, mean of the envs",
            {
                "training": "esper_training_loss_mean_nats{R}",
                "validation": "esper_validation_loss_mean_nats{R}",
            },
        ),
        DashboardPanel(
            "Slots by stage", {"{{stage}}": 'esper_slots{R,stage!="DORMANT"}'}, width=8, stacked=True
        ),
        DashboardPanel(
            "Seeds per hour, by outcome",
            {"{{outcome}} {{blueprint}}": "rate(esper_seed_outcomes_total{R}[$__rate_interval]) * 3600"},
        ),
        DashboardPanel("Parameters of a host and its seeds", {"mean": "esper_parameters_mean{R}"}),
    ),
    "Policy": (
        DashboardPanel(
            "PPO losses", {"policy": "esper_ppo_policy_loss{R}", "value": "esper_ppo_value_loss{R}"}
        ),
        DashboardPanel(
            "KL divergence and clipped share",
            {"KL in nats": "esper_ppo_kl_nats{R}", "clipped": "esper_ppo_clipped_ratio{R}"},
        ),
        DashboardPanel(
            "Entropy and explained variance",
            {"entropy": "esper_ppo_entropy_ratio{R}", "explained": "esper_ppo_explained_variance_ratio{R}"},
        ),
    ),
    "Trouble": (
        DashboardPanel(
            "Incidents",
            {"{{kind}} {{severity}}": "esper_incidents_open{R} > 0"},
            stacked=True,
        ),
        DashboardPanel("Gradient drift, largest", {"{{scope}}": "esper_gradient_norm_drift_ratio{R}"}),
        DashboardPanel(
            "Rollbacks per hour",
            {"{{reason}}": "rate(esper_governor_rollbacks_total{R}[$__rate_interval]) * 3600"},
        ),
    ),
    "Speed and machine": (
        DashboardPanel(
            "Epochs per second, all envs",
            {"epochs": "rate(esper_epochs_total{R}[$__rate_interval]) * on (run, instance) esper_envs{R}"},
        ),
        DashboardPanel(
            "Time by phase",
            {"{{phase}}": "rate(esper_phase_seconds_total{R}[$__rate_interval])"},
            "percentunit",
            stacked=True,
        ),
        DashboardPanel(
            "Cores", {"used, rank {{rank}}": "esper_cpu_cores_used{R}", "load": "esper_load_average{R}"}
        ),
        DashboardPanel(
            "Memory",
            {
                "process, rank {{rank}}": "esper_resident_memory_bytes{R}",
                "GPU, rank {{rank}}": "esper_gpu_memory_used_bytes{R}",
            },
            "bytes",
        ),
        DashboardPanel("GPU", {"rank {{rank}}": "esper_gpu_utilization_ratio{R}"}, "percentunit"),
        DashboardPanel("GPU temperature", {"rank {{rank}}": "esper_gpu_temperature_celsius{R}"}, "celsius"),
    ),
    "Wire": (
        DashboardPanel(
            "Events per second", {"{{stream}}": "rate(esper_events_total{R}[$__rate_interval])"}, "cps"
        ),
        DashboardPanel(
            "Queue, filled share",
            {"{{stream}}": "esper_event_queue_length{R} / esper_event_queue_limit{R}"},
            "percentunit",
        ),
        DashboardPanel(
            "What went wrong, in 5 minutes",
            {
                "dropped, {{stream}}": "increase(esper_events_dropped_total{R}[5m])",
                "lost by the journal": "increase(esper_journal_events_lost_total{R}[5m])",
                "steps that failed": "increase(esper_wire_faults_total{R}[5m])",
            },
        ),
        DashboardPanel(
            "Clients", {"subscribers": "esper_subscribers{R}", "commands": "esper_commands_waiting{R}"}
        ),
    ),
}


def queries() -> list[str]:
    """Every query of the dashboard, for one run."""
    return [
        _of_run(query) for panels in ROWS.values() for panel in panels for query in panel.queries.values()
    ]


def page() -> str:
    """The whole file, as Grafana imports it."""
    dashboard = {
        "uid": "esper-overwatch",
        "title": "Esper Overwatch",
        "description": "One run. Made by `make docs` from tools/grafana_dashboard.py.",
        "tags": ["esper"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "run",
                    "type": "query",
                    "label": "Run",
                    "datasource": SOURCE,
                    "query": {"query": "label_values(esper_run_info, run)", "refId": "run"},
                    "refresh": 2,
                    "sort": 1,
                },
            ]
        },
        "panels": list(_panels()),
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _of_run(query: str) -> str:
    return query.replace("{R,", '{run="$run",').replace("{R}", '{run="$run"}')


def _panels() -> Iterator[dict[str, Any]]:
    number = y = 0
    for title, panels in ROWS.items():
        number += 1
        place: dict[str, int] = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "gridPos": place,
            "collapsed": False,
            "panels": [],
        }
        x, y = 0, y + 1
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + panel.height
            number += 1
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": panel.height})
            x += panel.width
        y += panels[-1].height


def _panel(panel: DashboardPanel, number: int, place: dict[str, int]) -> dict[str, Any]:
    named = panel.kind == "stat" and any("{{" in legend for legend in panel.queries)
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.stacked else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": _of_run(query), "legendFormat": legend}
            for i, (legend, query) in enumerate(panel.queries.items())
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": {"textMode": "name" if named else "auto"} if panel.kind == "stat" else {},
    }


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

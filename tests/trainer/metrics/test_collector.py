"""Names, units, labels and bounds of what a scrape answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from esper_overwatch.protocol.codec.json_lines import decode_line
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.trainer.metrics import collector as collector_module
from esper_overwatch.trainer.metrics.collector import RunCollector, largest, mean
from esper_overwatch.trainer.metrics.totals import RunTotals
from tests.protocol.harness import until
from tests.protocol.values import an_incident
from tests.trainer.journals import at, ended, stage
from tools import alert_rules, grafana_dashboard
from tools.message_examples import first_of_each

from .promtool import run_promtool

LABELS = {
    "blueprint",
    "boot",
    "device",
    "kind",
    "level",
    "outcome",
    "percentile",
    "phase",
    "policy",
    "rank",
    "reason",
    "run",
    "run_id",
    "scope",
    "severity",
    "state",
    "stage",
    "stream",
    "task",
    "torch",
    "version",
}
ENVS, SLOTS = 4096, 10


@pytest.fixture(autouse=True)
def no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector_module, "MIN_INTERVAL_SECONDS", 0.0)


def examples() -> list[Any]:
    """An event of each type, as large as the largest run sends them."""
    found = [replace(decode_line(line).data) for name, line in first_of_each("events").items()]
    assert len(found) == len(ev.EVENTS)
    for event in found:
        if isinstance(event, ev.EpochFinished):
            event.stage = [[0] * SLOTS] * ENVS
            event.val_accuracy = [0.5] * ENVS
        elif isinstance(event, ev.Drift):
            event.source = [f"env{env:02d}.r0c{slot}" for env in range(ENVS) for slot in range(SLOTS)]
            event.norm_drift = event.health_drift = [0.25] * (ENVS * SLOTS)
        elif isinstance(event, ev.SystemSample):
            event.gpu_percent, event.gpu_celsius = 50.0, 60.0
            event.gpu_memory, event.gpu_memory_total = 1, 2
    return found


def observe(server: Server, totals: RunTotals, events: list[Any]) -> None:
    """Emit, and wait until they have been counted."""
    before = sum(totals.events.values())
    for event in events:
        server.emitter.emit(event)
    until(lambda: sum(totals.events.values()) >= before + len(events))


@pytest.fixture
def families(server: Server, totals: RunTotals, monkeypatch: pytest.MonkeyPatch) -> list[Metric]:
    """All that there can be."""
    observe(server, totals, examples())
    totals.checkpoint_time = 1.0
    return list(RunCollector(server, totals).collect())


def test_names_help_and_labels_are_proper(families: list[Metric]) -> None:
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    for family in families:
        assert re.fullmatch(r"esper_[a-z0-9]+(_[a-z0-9]+)*", family.name)
        assert family.documentation[0].isupper(), family
        assert family.documentation.endswith("."), family
        for sample in family.samples:
            assert sample.labels.keys() <= LABELS
            assert sample.labels["run"] == "alpha"
            assert (family.type == "counter") == sample.name.endswith("_total")


def test_series_stay_few_with_the_largest_run(families: list[Metric]) -> None:
    assert sum(len(family.samples) for family in families) < 400
    values = {value for family in families for sample in family.samples for value in sample.labels.values()}
    assert not [value for value in values if value.startswith(("env0", "env1"))]


def test_texts_of_clients_are_no_labels(server: Server, totals: RunTotals) -> None:
    secret = "a-client-said-this"
    observe(
        server,
        totals,
        [
            ev.CommandAccepted(id=secret, method="pause", params={}, client=secret),
            ev.CommandRefused(id=secret, method=secret, code=1, message=secret, client=secret),
            ev.Mark(text=secret, client=secret),
            an_incident(secret, source=secret, scope=secret, suspect=secret),
            ev.GovernorRollback(reason=secret, loss=1.0, restored_epoch=1, penalty=0.0),
            stage(at(1, 3, 0), secret, "HOLDING", "PRUNED", blueprint=secret, seed=secret)[0],
            ended(at(1, 3, 0), secret, 0, 2, secret, blueprint=secret, seed=secret)[0],
            ev.LogLine(level="INFO", logger=secret, message=secret),
        ],
    )
    text = generate_latest(_registry(server, totals)).decode()
    assert secret not in text
    assert 'esper_commands_total{outcome="refused",run="alpha"} 1.0' in text


def test_promtool_accepts_names_and_units(server: Server, totals: RunTotals, families: list[Metric]) -> None:
    text = generate_latest(_registry(server, totals)).decode()
    assert text.count("# HELP") == len(families)
    assert openmetrics.generate_latest(_registry(server, totals)).endswith(b"# EOF\n")
    run_promtool("check", "metrics", text=text)


def test_dashboard_and_alerts_name_existing_metrics(families: list[Metric]) -> None:
    known = {sample.name for family in families for sample in family.samples}
    rules = [rule.expr for rule in (*alert_rules.OF_THE_RUN, *alert_rules.incident_rules())]
    for query in [*grafana_dashboard.queries(), *rules]:
        used = set(re.findall(r"\besper_\w+", query))
        assert used
        assert used <= known, query


def test_dashboard_queries_are_promql(tmp_path: Path) -> None:
    """As promtool reads them, each as the expression of a rule, once Grafana has put its variables in."""
    queries = [
        query.replace("$run", "alpha").replace("$__rate_interval", "1m")
        for query in expressions(json.loads(grafana_dashboard.PAGE.read_text()))
    ]
    assert sorted(set(queries)) == sorted(
        {q.replace("$run", "alpha").replace("$__rate_interval", "1m") for q in grafana_dashboard.queries()}
    )
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    run_promtool("check", "rules", str(file))


def expressions(part: object) -> Iterator[str]:
    """Every `expr` of a dashboard, wherever it is."""
    if isinstance(part, dict):
        if isinstance(part.get("expr"), str):
            yield part["expr"]
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            yield from expressions(item)


def test_incident_rules_select_series_that_exist(families: list[Metric]) -> None:
    open_now = next(family for family in families if family.name == "esper_incidents_open")
    series = {sample.labels["severity"] for sample in open_now.samples}
    labels = re.compile(r'esper_incidents_open{severity="(\w+)"}')
    selected = [labels.search(rule.expr) for rule in alert_rules.incident_rules()]
    assert {match[1] for match in selected if match} == series - {"info"}


def test_unmeasured_is_absent(server: Server, totals: RunTotals) -> None:
    names = {family.name for family in RunCollector(server, totals).collect()}
    assert "esper_wire_faults" in names
    assert not {name for name in names if "gpu" in name or "accuracy" in name or "denied" in name}
    assert mean([None, float("nan"), 1.0, 3.0]) == 2.0
    assert mean([None]) is largest([float("inf")]) is None


class Growing(dict[Any, Any]):
    """Gets one more while somebody goes through it, as of a rank or a policy that is told of meanwhile."""

    def items(self) -> Any:
        for key, value in super().items():
            self[type(key)(99)] = value
            yield key, value


def test_what_is_told_of_meanwhile_disturbs_no_scrape(server: Server, totals: RunTotals) -> None:
    kinds = ev.EvaluationFinished, ev.SystemSample
    observe(server, totals, [event for event in examples() if isinstance(event, kinds)])
    totals.evaluations, totals.samples = Growing(totals.evaluations), Growing(totals.samples)
    names = {family.name for family in RunCollector(server, totals).collect()}
    assert {"esper_evaluation_return_mean", "esper_cpu_cores"} <= names


def test_scrapes_in_quick_succession_share_one_collection(
    server: Server, totals: RunTotals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "MIN_INTERVAL_SECONDS", 3600.0)
    collector = RunCollector(server, totals)
    assert collector.collect() is collector.collect()


def _registry(server: Server, totals: RunTotals) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(RunCollector(server, totals))
    return registry

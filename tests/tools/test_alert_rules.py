"""The rules are those of the thresholds, and Prometheus reads them as they are meant."""

from pathlib import Path

import pytest

from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.protocol.server.alarm import ALARMS
from esper_overwatch.trainer.telemetry.anomalies import CHECKS
from tests.trainer.metrics.promtool import run_promtool
from tools.alert_rules import PAGE, anomaly_rules, page


def test_the_rules_are_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_each_check_has_a_rule_with_its_limit() -> None:
    rules = {rule.name: rule for rule in anomaly_rules()}
    assert len(rules) == len(CHECKS) + len(ALARMS)
    for check, rule in zip(CHECKS, rules.values(), strict=False):
        assert f'scope="{check.scope}",kind="{check.kind}"' in rule.expr
        assert f"{THRESHOLDS[check.threshold].critical:g}" in rule.description


def test_promtool_accepts_the_rules() -> None:
    run_promtool("check", "rules", str(PAGE))


@pytest.mark.slow
def test_alerts_fire_when_they_should_and_only_then() -> None:
    run_promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yml")))

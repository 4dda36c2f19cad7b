"""Prometheus reads the rules as they are meant."""

from pathlib import Path

import pytest

from tests.trainer.metrics.promtool import run_promtool
from tools.alert_rules import PAGE, page


def test_the_rules_are_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"


def test_promtool_accepts_the_rules() -> None:
    run_promtool("check", "rules", str(PAGE))


@pytest.mark.slow
def test_alerts_fire_when_they_should_and_only_then() -> None:
    run_promtool("test", "rules", str(Path(__file__).with_name("alerts_test.yml")))

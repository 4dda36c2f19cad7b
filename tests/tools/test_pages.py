"""The page of anomalies is up to date, and every anomaly has its advice."""

from __future__ import annotations

import re

from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES, ROLLBACK
from esper_overwatch.protocol.server.alarm import ALARMS
from esper_overwatch.trainer.config.load import OPTIONS
from esper_overwatch.trainer.telemetry.anomalies import CHECKS
from tools import anomalies_page

CODE = re.compile(r"`([^`]+)`")

LOOP_KINDS = ("silent", "slow_steps", "nonfinite", "stalled")
"""Kinds that are raised of a loop that publishes, and of what it logs."""


def test_the_page_of_anomalies_is_up_to_date() -> None:
    page = anomalies_page.PAGE.read_text(encoding="utf-8")
    assert page == anomalies_page.page(), "python -m tools.anomalies_page"


def test_every_anomaly_that_is_raised_has_advice() -> None:
    elsewhere = {kind for _, kind in ALARMS} | set(LOOP_KINDS)
    assert set(ANOMALY_GUIDES) == {check.kind for check in CHECKS} | elsewhere | {ROLLBACK}
    assert all(guide.meaning and guide.causes and guide.steps for guide in ANOMALY_GUIDES.values())


def test_advice_names_options_that_exist() -> None:
    words = [word for guide in ANOMALY_GUIDES.values() for step in guide.steps for word in CODE.findall(step)]
    keys = {word.partition("=")[0] for word in words if "." in word}
    assert len(keys) > 20
    assert keys <= set(OPTIONS)

"""Other limits over known curves: how often the daemon's own check would have raised an anomaly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.model.limit_preview import LimitPreview, limit_signal
from esper_overwatch.overwatch_tui.model.time_series import SECOND, History
from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS
from esper_overwatch.trainer.telemetry.anomalies import CHECKS, AnomalyDetector
from tests.overwatch_tui import journal


class KeptEvents:
    """Takes the place of the daemon's queue."""

    def __init__(self) -> None:
        self.found: list[Anomaly] = []

    def emit(self, data: Anomaly, *, env: int | None = None) -> None:
        self.found.append(data)


def history(values: list[float], step: int = SECOND) -> History:
    made = History()
    for i, value in enumerate(values):
        made.add(journal.START + i * step, value)
    return made


@given(
    st.sampled_from([("drift/policy", "norm_drift"), ("ppo.entropy", "entropy_collapse")]),
    st.lists(st.floats(0.0, 1.5, width=32), min_size=1, max_size=60),
    st.floats(0.2, 0.9),
)
def test_it_counts_as_the_check_raises(which: tuple[str, str], values: list[float], warning: float) -> None:
    curve, kind = which
    signal = limit_signal("policy", kind)
    assert signal is not None
    limit = THRESHOLDS[signal]
    limit = replace(limit, warning=warning, critical=warning * (0.5 if limit.low else 2.0))
    kept = KeptEvents()
    detector = AnomalyDetector(kept, {}, {}, {**THRESHOLDS, signal: limit})  # type: ignore[arg-type]
    for value in values:
        detector.check_all({f"policy.{kind}": np.array([value])})
    rank = {"warning": 1, "critical": 2}
    before, raised = 0, {"warning": 0, "critical": 0}
    for event in kept.found:
        if event.active and rank[event.severity] > before:
            raised[event.severity] += 1
        before = rank[event.severity] if event.active else 0
    found = LimitPreview(THRESHOLDS[signal], {curve: history(values)}).count(limit)
    assert found._asdict() == {"warnings": raised["warning"], "criticals": raised["critical"]}


def test_signals_are_those_of_the_checks() -> None:
    for check in CHECKS:
        signal = limit_signal(check.scope, check.kind)
        if signal is not None:
            assert signal == check.threshold, check
    assert limit_signal("policy", "gradient_exploding") == "total_grad_norm"
    assert limit_signal("policy", "approx_kl_limit") == "kl"
    assert limit_signal("env03", "stalled") is None


def test_spans_reach_from_coarse_to_fine_without_overlap() -> None:
    made = history([float(i) for i in range(3000)])
    spans = made.spans()
    assert 2990 <= sum(span.size for span in spans) <= 3000, "less the part of a bucket at each seam"
    assert [span.ts for span in spans] == sorted({span.ts for span in spans})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "two numbers"),
        ("1", "two numbers"),
        ("a b", "two numbers"),
        ("nan 1", "two numbers"),
        ("inf inf", "two numbers"),
        ("1 0.5", "must not be below"),
    ],
)
def test_bad_limits_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        LimitPreview(THRESHOLDS["norm_drift"], {}).parse(text)
    with pytest.raises(ValueError, match="must not be above"):
        LimitPreview(THRESHOLDS["entropy"], {}).parse("0.1, 0.3")

"""Writes docs/reference/anomalies.md from the guide and the checks: `python -m tools.anomalies_page`."""

from __future__ import annotations

from esper_overwatch.protocol.messages.anomaly_guide import ANOMALY_GUIDES, AnomalyGuide
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS, Threshold
from esper_overwatch.trainer.config.anomaly_options import SIGNALS
from esper_overwatch.trainer.telemetry.anomalies import CHECKS

from . import ROOT

PAGE = ROOT / "docs" / "reference" / "anomalies.md"
HEAD = """# Anomalies

Made by `make docs` from the tables of the program; do not edit.

What each kind of anomaly means, what usually causes it and what to try. `esper-tui` shows the same of a
selected anomaly (view 2, Enter), and `esper-daemon doctor` of a run that ended with one. Keys are those of
`esper-tui`; how options are set is in [configuration](configuration.md).

"""


def page() -> str:
    """The whole page as Markdown."""
    return HEAD + "\n".join(_section(kind, guide) for kind, guide in sorted(ANOMALY_GUIDES.items()))


def _section(kind: str, guide: AnomalyGuide) -> str:
    limits = [
        f"* {check.scope}: {_limits(THRESHOLDS[check.threshold])}" for check in CHECKS if check.kind == kind
    ]
    raised = ["Told of:", "", *limits, ""] if limits else []
    parts = [f"## {kind}", "", guide.meaning, "", *raised, "Usual causes:", ""]
    parts += [*(f"* {cause}" for cause in guide.causes), "", "What to try:", ""]
    return "\n".join([*parts, *(f"{i}. {step}" for i, step in enumerate(guide.steps, 1)), ""])


def _limits(threshold: Threshold) -> str:
    side = "down to" if threshold.low else "from"
    times = f", {threshold.raise_after} times in a row" if threshold.raise_after > 1 else ""
    option = (
        f"; option `anomalies.{threshold.signal}`" if threshold.signal in SIGNALS else "; moves with the run"
    )
    if threshold.signal == "kl":
        option = "; follows `ppo.target_kl`"
    return f"warning {side} {threshold.warning:g}, critical {side} {threshold.critical:g}{times}{option}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

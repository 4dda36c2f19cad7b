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

The daemon raises signals (`anomaly` events) and groups those that belong together into incidents (`incident`
events): what befalls one env, what many envs show at once, what follows one change of the run. An incident
is noted, a warning (look when you can) or critical (act now, or work is lost). What is only noted of one env
is a warning where a quarter of the envs show it at once; a warning is critical where half of them do. It is
over when none of its signals was raised for twelve epochs. Terminal, run list, `doctor`, SQL (view
`incidents`), Prometheus and assistants show the same incidents.

What each kind of signal means, what usually causes it and what to try. `esper-tui` shows the same of an
incident (key n), less what contradicts the change that it is suspected to follow. Keys are those of
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
    parts = [
        f"## {kind}",
        "",
        f"{guide.title.capitalize()}. {guide.meaning}",
        "",
        *raised,
        "Usual causes:",
        "",
    ]
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
    critical = "" if threshold.critical is None else f", critical {side} {threshold.critical:g}"
    warm_up = f", after {threshold.warm_up} readings of a new source" if threshold.warm_up else ""
    word = "noted" if threshold.is_note else "warning"
    return f"{word} {side} {threshold.warning:g}{critical}{times}{warm_up}{option}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""The list of anomalies: those that its filter shows, what it says of each, which one keys act on."""

from __future__ import annotations

from functools import partial

from esper_overwatch.overwatch_tui.model.anomalies import AnomalyRecord
from esper_overwatch.overwatch_tui.model.filters import FieldValue

from .format import format_duration
from .panel import PanelInputs
from .theme import severity_label

ANOMALY_FIELDS = ("source", "kind", "sev", "value", "limit", "peak", "count", "state", "hint")


def listed_anomalies(inputs: PanelInputs) -> list[AnomalyRecord]:
    """Records that the filter shows, in the order of the list."""
    found = inputs.state.anomalies.ordered()
    now = inputs.now
    return [each for each in found if inputs.view.passes("anomalies", partial(anomaly_fields, each, now))]


def current_anomaly(inputs: PanelInputs) -> AnomalyRecord | None:
    """Record that `a` and `m` act on: the row of a focused list, else the selected record or the worst."""
    if inputs.view.focus == "anomalies":
        shown = listed_anomalies(inputs)
        order = [record.key for record in shown]
        return shown[inputs.view.selected_index("anomalies", order)] if shown else None
    selected = inputs.view.selected.get("anomalies")
    record = inputs.state.anomalies.get(selected) if isinstance(selected, tuple) else None
    return record or next(iter(inputs.state.anomalies.open_records(inputs.now)), None)


def anomaly_fields(record: AnomalyRecord, now: int) -> dict[str, FieldValue]:
    """Values of a record by `ANOMALY_FIELDS`, for filters and exports."""
    return {
        "source": record.source,
        "kind": record.kind,
        "sev": severity_label(record.severity),
        "value": record.value,
        "limit": record.threshold,
        "peak": record.peak,
        "count": record.count,
        "state": state_words(record, now),
        "hint": record.hint,
    }


def state_words(record: AnomalyRecord, now: int) -> str:
    """State in words: active or over, acknowledged, muted."""
    words = ["active" if record.active else "over"]
    if record.is_acked or record.is_waiting:
        words.append("acknowledged" if record.is_acked else "not acknowledged (a)")
    if record.is_muted(now):
        words.append(f"muted for {format_duration((record.mute.until - now) / 1e6)} more (m)")
    return ", ".join(words)

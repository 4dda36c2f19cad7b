"""The list of incidents: those that its filter shows, what it says of each, which one keys act on."""

from __future__ import annotations

from functools import partial

from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.model.incidents import IncidentRecord
from esper_overwatch.protocol.messages.vocabulary import SEVERITY_RANK

from .format import format_duration
from .panel import PanelInputs
from .theme import severity_label

INCIDENT_FIELDS = ("sev", "kind", "scope", "source", "value", "limit", "suspect", "state", "id")


def listed_incidents(inputs: PanelInputs) -> list[IncidentRecord]:
    """Records that the filter shows, in the order of the list."""
    found = inputs.state.incidents.ordered()
    now = inputs.now
    return [each for each in found if inputs.view.passes("incidents", partial(incident_fields, each, now))]


def selected_incident(inputs: PanelInputs) -> IncidentRecord | None:
    """The list's selected row; None where it is empty."""
    shown = listed_incidents(inputs)
    order = [record.key for record in shown]
    return shown[inputs.view.selected_index("incidents", order)] if shown else None


def current_incident(inputs: PanelInputs) -> IncidentRecord | None:
    """Record that `a`, `m` and the undo act on: of a focused list its row, of an env's page the
    env's, else the selected or the worst.
    """
    incidents, now = inputs.state.incidents, inputs.now
    of_env = None if inputs.view.opened_env is None else incidents.of_env(inputs.view.opened_env)
    if of_env is not None:
        return of_env
    if inputs.view.lists_incidents:
        return selected_incident(inputs)
    worst = next(iter(incidents.unseen(now)), None)
    selected = inputs.view.selected.get("incidents")
    record = incidents.get(selected) if isinstance(selected, str) else None
    if record is None or not (record.is_waiting or (record.data.active and record.is_muted(now))):
        return worst
    ranks = [SEVERITY_RANK[each.data.severity] for each in (worst, record) if each is not None]
    return worst if ranks[0] > ranks[-1] else record


def incident_fields(record: IncidentRecord, now: int) -> dict[str, FieldValue]:
    """Values of a record by `INCIDENT_FIELDS`, for filters and exports."""
    data = record.data
    return {
        "sev": severity_label(data.severity),
        "kind": data.kind,
        "scope": data.scope,
        "source": data.source,
        "value": data.value,
        "limit": data.threshold,
        "suspect": data.suspect,
        "state": state_words(record, now),
        "id": data.id,
    }


def state_words(record: IncidentRecord, now: int) -> str:
    """State in words: open, quiet or over, acknowledged, muted."""
    data = record.data
    words = [("open" if data.signals else "quiet: over unless it returns") if data.active else "over"]
    if record.is_acked or record.is_waiting:
        words.append("acknowledged" if record.is_acked else "not acknowledged (a)")
    if record.is_muted(now):
        words.append(f"muted for {format_duration((record.mute.until - now) / 1e6)} more")
    return ", ".join(words)

"""The order in which incidents are looked at, and the groups of signals that they are made of."""

from __future__ import annotations

import re

from .events import Incident
from .vocabulary import SEVERITY_RANK

GROUPS = ("disk", "memory", "hosts", "policy", "loop", "machine")
"""The first is looked at first among incidents of one severity: a full disk explains what follows it."""
_CAUSES = {"disk": "disk", "disk_full": "disk", "journal_write": "disk", "memory": "memory"}
"""Groups of the kinds that are causes, each by itself."""
_ENV = re.compile(r"env\d+")


def group_of(source: str, kind: str) -> str:
    """The group of a signal: different groups are different incidents, unless one change made both."""
    if kind in _CAUSES:
        return _CAUSES[kind]
    if source in ("system", "telemetry", "trainer", "loop"):
        return "machine"
    if is_of_env(source) or source == "hosts":
        return "hosts"
    return "policy" if source.split(".")[0] in ("policy", "critic") else "loop"


def is_of_env(source: str) -> bool:
    """True for an env and its seeds, `env07` and `env07.r0c1`."""
    return _ENV.match(source) is not None


def incident_order(incident: Incident) -> tuple[bool, int, int, int]:
    """A key that sorts incidents: open ones, the worst, causes before symptoms, the newest."""
    group = group_of(incident.source, incident.kind)
    return not incident.active, -SEVERITY_RANK[incident.severity], GROUPS.index(group), -incident.since

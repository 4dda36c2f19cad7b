"""Stream `life`: what the daemon judges to be wrong, and whom it tells. Never dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from esper_overwatch.protocol.messages.vocabulary import Severity

from .registry import event


@event("anomaly", "life", keep=1, key=("source", "kind"))
@dataclass(kw_only=True)
class Anomaly:
    """A signal: a check raised, escalated or cleared; keyed by (source, kind). `incident` groups them."""

    kind: str
    source: str
    """`env07`, `env07.r0c1`, `policy`, `policy.blueprint`, `critic`, `system`, `telemetry`."""
    severity: Severity
    active: bool
    value: float | None = None
    threshold: float | None = None
    count: int = 1
    since: int = 0
    """Wall time of the first raise, microseconds."""
    hint: str = ""
    peak: float | None = None
    """Worst of the `count` values beyond the threshold; absent where the check keeps none."""
    pattern: str = ""
    """Which of the forms that this kind has, such as `credit_without_gain`; empty where it has one."""


IncidentChange = Literal["began", "worse", "changed", "over"]


@event("incident", "life", keep=1, key=("id",), subjects=64)
@dataclass(kw_only=True)
class Incident:
    """Anomalies that belong together, as one thing to look into: told when it begins, changes and is over."""

    id: str
    change: IncidentChange
    """Why it is told: `changed` is any change beside those that have a word of their own."""
    active: bool
    severity: Severity
    """The worst since it began: what most envs show at once is a step worse than in one of them."""
    since: int
    """Wall time, microseconds."""
    kind: str
    """Of its worst signal."""
    title: str
    """That kind in words."""
    source: str
    """Of its worst signal, or of one of several that are as bad."""
    scope: str
    """`4 of 8 envs, 12 seeds`."""
    value: float | None = None
    threshold: float | None = None
    kinds: dict[str, int] = field(default_factory=dict)
    """Sources that have shown each kind since it began."""
    envs: list[int] = field(default_factory=list)
    """Envs with a signal now, or at its end."""
    signals: int = 0
    """Signals that are raised now; 0 = it is quiet, and over unless one returns soon."""
    suspect: str = ""
    """The last change before it that can have caused it, and whose; empty where there was none."""
    suspect_ts: int = 0
    """Wall time of that change, microseconds."""
    undo: str = ""
    """The command that takes the change back: METHOD KEY=VALUE, for `:` and `esper-daemon call`."""
    over: int = 0
    """Wall time at which it was over, microseconds; 0 = it goes on."""


AlertChange = Literal["raised", "sent", "failing", "failed"]


@event("alert", "life", keep=1, key=("id", "action"), subjects=64)
@dataclass(kw_only=True)
class Alert:
    """An alert that the user's rules or the loop raised, and what became of telling others of it."""

    id: str
    """Key of the alert, the same where a resumed run raises or sends it again."""
    rule: str
    """The rule that raised it; empty where the loop itself did, by `run.alert`."""
    change: AlertChange
    """`failing`: it is tried again; `failed`: it is given up."""
    level: Severity
    title: str
    text: str = ""
    when: str = ""
    """The rule's condition; empty where there is no rule."""
    action: str = ""
    """`webhook`, `command`, `pause` or `stop`; empty of one that is raised. Never an address."""
    attempts: int = 0
    error: str = ""
    """Why it could not be sent; empty where it could."""

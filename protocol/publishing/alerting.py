"""Alerts of a published run: the rules that it begins with, and those that its loop raises itself."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

from esper_overwatch.protocol.alerts.rules import AlertRulesError, Rule, read_rules
from esper_overwatch.protocol.errors import PublishError
from esper_overwatch.protocol.messages.events import Alert
from esper_overwatch.protocol.messages.vocabulary import SEVERITIES, Severity
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.folders import StrPath

logger = logging.getLogger(__name__)

MAX_TITLE_CHARACTERS, MAX_TEXT_CHARACTERS = 256, 2_000


def find_rules(file: StrPath | None, *, strict: bool) -> tuple[Rule, ...]:
    """The rules of a run; where they are wrong, none, and a warning says so.

    Raises:
        AlertRulesError: `strict`: they are wrong.
    """
    try:
        return read_rules(file)
    except AlertRulesError as error:
        if strict:
            raise
        logger.warning("%s; no alerts are sent", error)
        return ()


def attach_rules(server: Server, rules: Sequence[Rule]) -> None:
    """Judge the run by these rules; without any, nothing is loaded for it.

    Raises:
        FolderError: the record of alerts cannot be opened.
    """
    if rules:
        from esper_overwatch.protocol.alerts.alerts import Alerts

        Alerts(server, rules)


def loop_alert(run: str, step: int, title: str, text: str, level: Severity) -> Alert:
    """An alert that a loop raises.

    Args:
        run: its id.
        step: the newest one.

    Raises:
        PublishError: it cannot be published; says why.
    """
    if level not in SEVERITIES:
        raise PublishError(f"alert: level = {level!r:.80}: must be one of {', '.join(SEVERITIES)}")
    if not title:
        raise PublishError("alert: it has no title: give it one of a few words")
    title, text = title[:MAX_TITLE_CHARACTERS], text[:MAX_TEXT_CHARACTERS]
    id_ = hashlib.sha256(f"{run}\n{step}\n{level}\n{title}\n{text}".encode()).hexdigest()[:16]
    return Alert(id=id_, rule="", change="raised", level=level, title=title, text=text)

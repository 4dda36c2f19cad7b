"""The connection in words: what the terminal waits for, and what to do about it."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.source.link_status import LinkStatus

from .format import format_duration

_ENDINGS = {"DIED": "died", "FAILED": "failed", "STOPPED": "was stopped", "COMPLETED": "is complete; go on"}


def link_text(link: LinkStatus) -> str:
    """One line on the state of the connection; "" where it is fine."""
    match link.state:
        case "searching":
            return link.problem or "looking for a live run"
        case "connecting":
            return link.problem or f"connecting to {link.name}"
        case "lost" | "ended" if link.outcome:
            return f"run {link.name} {ending_text(link)}"
        case "stale" | "lost":
            since = "" if link.age_seconds is None else f" for {format_duration(link.age_seconds)}"
            return f"no answer{since}; {link.problem or 'still trying'}"
        case "ended" if link.is_replay:
            return "the recording is over"
        case "ended":
            return f"run {link.name} has ended{f': {link.farewell}' if link.farewell else ''}"
    return link.problem


def ending_text(link: LinkStatus) -> str:
    """Outcome of a run that is over, and the advice on what to type next."""
    by = f" by {link.stopped_by}" if link.stopped_by else ""
    return f"{_ENDINGS.get(link.outcome, link.outcome)}{by}: {link.advice}"

"""Accepted commands by their requests' ids, for `op.get` and `op.list`."""

from __future__ import annotations

from typing import Any

from esper_overwatch.protocol.journal.command_log import CommandLog, CommandRecord
from esper_overwatch.protocol.messages.events import CommandRefused

MAX_ENDED = 256
"""Ended commands that are remembered."""
_AS_THEY_ARE = (
    *("method", "params", "client", "uid", "pid", "key"),
    *("state", "done", "total", "ended", "result", "error"),
)


class CommandRegistry:
    """The open commands of this boot and the newest ended ones. One thread owns it."""

    def __init__(self) -> None:
        self._log = CommandLog(max_ended=MAX_ENDED)

    def note(self, event: object, ts: int) -> None:
        """Take in an event; what is not about accepted commands is passed over.

        Args:
            ts: wall time of the event, microseconds.
        """
        if not isinstance(event, CommandRefused):
            self._log.fold(event, ts=ts)

    def get(self, id_: str) -> dict[str, Any] | None:
        """One command as a plain dict; None where it is not known (any more)."""
        record = self._log.get(id_)
        return None if record is None else _as_plain(record)

    def list(self) -> list[dict[str, Any]]:
        """The ended ones, then the open ones, each the oldest first."""
        return [_as_plain(record) for record in self._log.records()]


def _as_plain(record: CommandRecord) -> dict[str, Any]:
    return {"op": record.id, "accepted": record.ts, **{name: getattr(record, name) for name in _AS_THEY_ARE}}

"""The commands that need no trainer: the I/O thread executes them while it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.commands import (
    AcknowledgeParams,
    LeaseAcquireParams,
    LeaseReleaseParams,
    MarkParams,
    MuteParams,
    Params,
    Request,
)
from esper_overwatch.protocol.messages.events import AnomalyAcknowledged, AnomalyMuted, Incident, Mark
from esper_overwatch.protocol.messages.roles import Peer

from .lease import CommandLease


@dataclass(frozen=True)
class Caller:
    """Sender of a command."""

    client: str
    """The client's name for itself."""
    peer: Peer
    token: str
    """The lease that it has; empty = none."""
    reason: str
    """Reason for the command; may be empty."""


class ImmediateCommands:
    """One handler for each command that `METHODS` executes `at` once.

    Args:
        emit: takes the events.
        rotate: closes the journal's segment; bytes of what was closed, 0 where nothing could be.
        find_incident: gives the open incident that is meant.
    """

    def __init__(
        self,
        emit: Callable[[object], None],
        rotate: Callable[[], int],
        find_incident: Callable[[AcknowledgeParams | MuteParams], Incident | None],
    ) -> None:
        self._emit = emit
        self._find_incident = find_incident
        self._rotate = rotate
        self.leases = CommandLease(emit)
        self.handlers: dict[str, Callable[[Any, Caller], dict[str, Any]]] = {
            "mark": self._mark,
            "anomaly.acknowledge": self._acknowledge_anomaly,
            "anomaly.mute": self._mute_anomaly,
            "log.rotate": self._rotate_journal,
            "lease.acquire": self._acquire_lease,
            "lease.release": self._release_lease,
        }

    def execute(self, request: Request, params: Params, client: str, peer: Peer) -> dict[str, Any]:
        """Execute a command; returns its result.

        Raises:
            RequestError: it cannot be executed.
        """
        return self.handlers[request.method](
            params, Caller(client, peer, request.meta.lease, request.meta.reason)
        )

    def _mark(self, params: MarkParams, caller: Caller) -> dict[str, Any]:
        peer = caller.peer
        self._emit(Mark(text=params.text, client=caller.client, uid=peer.uid, pid=peer.pid))
        return {}

    def _judge(
        self, params: AcknowledgeParams | MuteParams, caller: Caller
    ) -> tuple[Incident, dict[str, Any]]:
        """The incident that is meant, and what each event about it tells: which it is, and who judges it."""
        found = self._find_incident(params)
        if found is None:
            named = params.incident or f"{params.source} {params.kind}".strip() or "without a name"
            how = "give `incident`, or `source` and `kind` of an anomaly in it"
            raise RequestError("not_found", f"incident {named} is not open: {how}")
        which = {"incident": found.id, "source": found.source, "kind": found.kind}
        peer = caller.peer
        return found, which | {"by": caller.client, "reason": caller.reason, "uid": peer.uid, "pid": peer.pid}

    def _acknowledge_anomaly(self, params: AcknowledgeParams, caller: Caller) -> dict[str, Any]:
        incident, told = self._judge(params, caller)
        self._emit(AnomalyAcknowledged(since=incident.since, severity=params.severity, **told))
        return {}

    def _mute_anomaly(self, params: MuteParams, caller: Caller) -> dict[str, Any]:
        _, told = self._judge(params, caller)
        until = time.time_ns() // 1000 + int(params.seconds * 1e6) if params.seconds else 0
        self._emit(AnomalyMuted(until=until, **told))
        return {"until": until}

    def _rotate_journal(self, _params: Params, _caller: Caller) -> dict[str, Any]:
        closed = self._rotate()
        if not closed:
            raise RequestError("busy", "the journal's segment is empty, or its disk refuses: nothing closed")
        return {"bytes": closed}

    def _acquire_lease(self, params: LeaseAcquireParams, caller: Caller) -> dict[str, Any]:
        return dict(self.leases.acquire(caller.token, caller.client, params.ttl, params.note))

    def _release_lease(self, params: LeaseReleaseParams, caller: Caller) -> dict[str, Any]:
        return {"released": self.leases.release(caller.token, caller.client, force=params.force)}

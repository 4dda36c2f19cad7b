"""The commands that need no trainer: the I/O thread carries them out while it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .commands import LeaseAcquireParams, LeaseReleaseParams, MarkParams, Params, Request
from .errors import RequestError
from .events import Mark
from .lease import Leases
from .peer import Peer


class Immediate:
    """One method per command.

    Args:
        emit: takes the events.
        rotate: closes the journal's segment; bytes of what was closed, 0 where nothing could be.
    """

    def __init__(self, emit: Callable[[object], None], rotate: Callable[[], int]) -> None:
        self._emit = emit
        self._rotate = rotate
        self.leases = Leases(emit)

    def carry_out(self, request: Request, params: Params, client: str, peer: Peer) -> dict[str, Any]:
        """The command's result.

        Raises:
            RequestError: it cannot be carried out.
        """
        token = request.meta.lease
        if isinstance(params, MarkParams):
            self._emit(Mark(text=params.text, client=client, uid=peer.uid, pid=peer.pid))
            return {}
        if isinstance(params, LeaseAcquireParams):
            return dict(self.leases.acquire(token, client, params.ttl, params.note))
        if isinstance(params, LeaseReleaseParams):
            return {"released": self.leases.release(token, client, force=params.force)}
        assert request.method == "log.rotate", request.method
        closed = self._rotate()
        if not closed:
            raise RequestError("busy", "the journal's segment is empty, or its disk refuses: nothing closed")
        return {"bytes": closed}

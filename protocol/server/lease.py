"""The lease: for a while one client alone may command. It expires, so that no one is locked out for good."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.events import Lease, lease_fingerprint


class CommandLease:
    """At most one lease. One thread owns it.

    Args:
        emit: takes the events that say who holds it.
    """

    def __init__(self, emit: Callable[[object], None]) -> None:
        self._emit = emit
        self._token = ""
        self._newest = Lease(state="released", holder="")
        self._ends = 0.0

    def check(self, token: str) -> None:
        """Refuse a client without the lease, where one is held.

        Raises:
            RequestError: another holds it; the message says who and for how long.
        """
        self.expire()
        if not self._token or token == self._token:
            return
        left = self._ends - time.monotonic()
        note = f" ({self._newest.note})" if self._newest.note else ""
        raise RequestError(
            "leased",
            f"{self._newest.holder} alone may command for another {left:.0f} s{note}",
            {"holder": self._newest.holder, "note": self._newest.note, "until": self._newest.until},
        )

    def acquire(self, token: str, holder: str, ttl: float, note: str) -> dict[str, str | int]:
        """Take the lease, or lengthen one's own; the caller has passed `check`.

        Args:
            token: the one that came with the request.
            ttl: seconds from now.

        Returns:
            `lease`, which is to come with each command from now on, and `until`, microseconds.
        """
        renewed = bool(token) and token == self._token
        self._token = self._token if renewed else secrets.token_hex(8)
        self._ends = time.monotonic() + ttl
        until = time.time_ns() // 1000 + int(ttl * 1e6)
        state: Literal["renewed", "acquired"] = "renewed" if renewed else "acquired"
        mark = lease_fingerprint(self._token)
        self._newest = Lease(state=state, holder=holder, note=note, until=until, fingerprint=mark)
        self._emit(self._newest)
        return {"lease": self._token, "until": until}

    def release(self, token: str, by: str, *, force: bool) -> bool:
        """End it; False where there is none.

        Raises:
            RequestError: it is another's and `force` was not asked for.
        """
        self.expire()
        if not self._token:
            return False
        mine = token == self._token
        if not mine and not force:
            self.check(token)
        held, self._token = self._newest, ""
        self._newest = Lease(
            state="released" if mine else "broken", holder=held.holder, note=held.note, by="" if mine else by
        )
        self._emit(self._newest)
        return True

    def expire(self) -> None:
        """End a lease whose time is over; tell its end anew where the wall clock was set."""
        if not self._token:
            return
        if (left := self._ends - time.monotonic()) > 0:
            until = time.time_ns() // 1000 + int(left * 1e6)
            if abs(until - self._newest.until) > 2_000_000:  # microseconds
                self._newest = replace(self._newest, state="renewed", until=until)
                self._emit(self._newest)
            return
        self._token = ""
        self._newest = Lease(state="expired", holder=self._newest.holder, note=self._newest.note)
        self._emit(self._newest)

    @property
    def holder(self) -> dict[str, str | int] | None:
        """Holder, note and end of the lease; None where there is none."""
        self.expire()
        if not self._token:
            return None
        return {"holder": self._newest.holder, "note": self._newest.note, "until": self._newest.until}

"""The answer to `clients`."""

from __future__ import annotations

import time

import pytest

from esper_overwatch.protocol.messages.roles import Peer
from esper_overwatch.protocol.server.rate_limiter import RateLimiter


def test_clients_are_told_by_the_present_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter, right = RateLimiter(), time.time_ns
    for hours, name in enumerate((b"one", b"two")):
        monkeypatch.setattr(time, "time_ns", lambda: right() - hours * 3_600 * 10**9)  # noqa: B023
        limiter.admit(name, Peer(uid=1))
        limiter.name(name, name.decode())
    listed = limiter.list()
    assert {row["client"] for row in listed} == {"one", "two"}
    now = time.time_ns() // 1000
    assert all(now - 3_000_000_000 < row["first"] <= row["last"] <= now for row in listed)

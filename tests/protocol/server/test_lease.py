"""The lease, whose end is told as a wall time."""

from __future__ import annotations

import time

import pytest

from esper_overwatch.protocol.messages.events import Lease
from esper_overwatch.protocol.server.lease import CommandLease


@pytest.mark.parametrize("hours", [-1, 1])
def test_end_is_told_anew_by_another_clock(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    told: list[Lease] = []
    lease, right = CommandLease(told.append), time.time_ns  # type: ignore[arg-type]
    lease.acquire("", "alice", 60.0, "sweep")
    for _ in range(2):
        monkeypatch.setattr(time, "time_ns", lambda: right() + hours * 3_600 * 10**9)
        lease.expire()
    assert [one.state for one in told] == ["acquired", "renewed"]
    assert round((told[1].until - told[0].until) / 3_600e6, 1) == hours
    assert (told[1].holder, told[1].note, told[1].fingerprint) == ("alice", "sweep", told[0].fingerprint)
    assert lease.holder == {"holder": "alice", "note": "sweep", "until": told[1].until}

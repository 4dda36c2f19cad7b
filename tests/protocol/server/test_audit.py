"""No command takes effect without its record, and no flood of refusals fills the journal."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from esper_overwatch.protocol.codec.json_lines import encode_event
from esper_overwatch.protocol.messages.events import CommandRefused, Context
from esper_overwatch.protocol.messages.roles import Peer
from esper_overwatch.protocol.server import rate_limiter
from esper_overwatch.protocol.server.request_handler import BURST_REFUSALS
from tests.protocol.server.test_request_handler import Plane, request

FLOOD = 3 * int(BURST_REFUSALS)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Clock of all rates; it stands still."""
    clock = SimpleNamespace(now=5.0, monotonic=lambda: clock.now, time_ns=time.time_ns)
    monkeypatch.setattr(rate_limiter, "time", clock)
    return clock


def refuse(plane: Plane, key: str, count: int, *, connections: int = 8) -> None:
    """Let a viewer send commands over several connections, each within its rate of requests."""
    for number in range(count):
        connection = f"{key} {number % connections}".encode()
        plane.server.handle("ctl", [connection, b"", request("pause")], Peer(key=key, role="viewer"))


def audited(plane: Plane) -> list[str | None]:
    """Keys of the recorded refusals."""
    return [event.key for event in plane.audit if isinstance(event, CommandRefused)]


def test_refusals_of_a_key_are_audited_at_a_rate(clock: SimpleNamespace) -> None:
    plane = Plane()
    refuse(plane, "eve", FLOOD)
    assert len(audited(plane)) == BURST_REFUSALS
    assert plane.server.refusals.refused == FLOOD - BURST_REFUSALS
    refuse(plane, "bob", 1)
    assert audited(plane)[-1] == "bob", "another key has a rate of its own"
    clock.now += 1.0
    refuse(plane, "eve", 2)
    assert audited(plane)[-2:] == ["bob", "eve"]


@pytest.mark.usefixtures("clock")
def test_refusals_left_out_are_told_with_their_sender(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        refuse(Plane(), "eve", FLOOD)
    assert "key eve" in caplog.messages[0]


@pytest.mark.parametrize("beyond", [2**64, 2**63, -(2**63) - 1])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("telemetry.escalate", {"env": 0}),
        ("seed.prune", {"env": 0, "slot": "r0c0"}),
        ("anomaly.acknowledge", {"since": 0, "source": "policy", "kind": "kl"}),
    ],
)
def test_integer_beyond_64_bits_is_refused(method: str, params: dict[str, Any], beyond: int) -> None:
    plane = Plane()
    name = next(iter(params))
    reply = plane.ask(method, params=params | {name: beyond})
    assert reply["error"]["data"] == {"kind": "invalid_params", "retryable": False, "path": f"$.{name}"}
    assert f"{name} must be a whole number" in reply["error"]["message"]
    assert not plane.mailbox.poll()
    (event,) = plane.audit
    assert encode_event(1, 1, Context(), event)

"""Requests in flight: sent once the daemon is known, repeated under the same id until their deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import zmq

from esper_overwatch.protocol.codec.frames import decode_reply, encode_request, new_id
from esper_overwatch.protocol.codec.zmq_options import ZmqContext, is_waiting
from esper_overwatch.protocol.errors import BY_CODE, ERRORS, RequestError, WireError
from esper_overwatch.protocol.messages.commands import (
    METHODS,
    ErrorBody,
    Expect,
    Reply,
    ReplyMeta,
    RequestMeta,
    Socket,
)
from esper_overwatch.protocol.version import PROTOCOL_VERSION

from .endpoint import ConnectedSocket, Target
from .items import RequestOutcome

RESEND_SECONDS = 2.0
CLOCK_STEP_SECONDS = 5.0
"""From so far on a clock was set, and the time that a message takes is no reason."""
Body = bytes | memoryview
"""A second frame: lines, as libzmq holds them until somebody splits them."""


@dataclass
class PendingRequest:
    """One request and what to do with its answer."""

    method: str
    params: dict[str, Any]
    done: Callable[[PendingRequest, Reply | None, Body], None]
    """Called once with the reply and its second frame; with None where the deadline passed without one."""
    deadline: float | None
    """On the monotonic clock; None repeats for as long as the daemon is attached."""
    reason: str = ""
    id: str = field(default_factory=new_id)
    asked: float = field(default_factory=time.monotonic)
    body: bytes | None = None
    sent: float | None = None

    @property
    def socket(self) -> Socket:
        """Socket of the daemon for it; what `METHODS` lacks is a published run's command."""
        known = METHODS.get(self.method)
        return known.socket if known else "ctl"

    @property
    def age(self) -> float:
        """Seconds since it was asked for."""
        return time.monotonic() - self.asked


class PendingRequests:
    """The request sockets of one client and what is in flight on them. Not thread-safe.

    Args:
        client: how the client calls itself in the audit events.
        leases: what `lease.acquire` answered, by the boot of the daemon; "" = to send to any other. An answer
            that comes is entered here, so that whoever takes a lease never locks himself out.
    """

    def __init__(self, client: str, leases: dict[str, str] | None = None) -> None:
        self._client = client
        self._leases = {} if leases is None else leases
        self._sockets: dict[str, ConnectedSocket] = {}
        self._requests: dict[str, PendingRequest] = {}
        self._boot: str | None = None
        self._offset_us = 0
        self.bad = 0
        """Frames that were not replies."""

    def attach(self, context: ZmqContext, target: Target) -> None:
        """Connect to a daemon."""
        self.detach()
        for name in ("qry", "ctl"):
            self._sockets[name] = target.open(context, zmq.DEALER, name)

    def detach(self) -> None:
        """Drop the connection and the requests without a deadline; the others go on at the next daemon."""
        for link in self._sockets.values():
            link.close()
        self._sockets = {}
        self._boot = None
        self._requests = {id_: call for id_, call in self._requests.items() if call.deadline is not None}

    def identify(self, boot: str, offset_us: int) -> None:
        """Take in `hello`: from now on requests carry the boot and deadlines on the daemon's clock."""
        self._boot = boot
        self._offset_us = offset_us

    def check_clock(self, ts: int) -> bool:
        """Whether the daemon's clock, or the one here, was set since; deadlines are on the new one then.

        Args:
            ts: what the daemon's shows now, in microseconds, or showed when it sent this.
        """
        offset = ts - time.time_ns() // 1000
        if abs(offset - self._offset_us) < CLOCK_STEP_SECONDS * 1_000_000:
            return False
        self._offset_us = offset
        return True

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Open sockets, for a poller or an event loop."""
        return [link.socket for link in self._sockets.values()]

    def problem(self) -> str | None:
        """Reason why the daemon refuses this client, if that came to light since the last call."""
        return next((found for link in self._sockets.values() if (found := link.problem())), None)

    @property
    def lease(self) -> str:
        """The lease that goes with each request; empty = none. The daemon passes over one that has ended."""
        return self._leases.get(self._boot or "") or self._leases.get("", "")

    @property
    def pending(self) -> list[PendingRequest]:
        """Requests without an answer, oldest first."""
        return list(self._requests.values())

    def submit(self, call: PendingRequest) -> str:
        """Take up a request and send it; `step` does where it cannot be sent yet. Returns its id."""
        self._requests[call.id] = call
        self._send(call, time.monotonic())
        return call.id

    def step(self) -> None:
        """Take answers, send what waits, repeat what got no answer, give up what is too late."""
        self._receive_replies()
        now = time.monotonic()
        for call in list(self._requests.values()):
            if call.deadline is not None and now > call.deadline:
                self._requests.pop(call.id, None)
                call.done(call, None, b"")
            elif call.sent is None or now - call.sent > RESEND_SECONDS:
                self._send(call, now)

    def _send(self, call: PendingRequest, now: float) -> None:
        if not self._sockets or (self._boot is None and call.method != "hello"):
            return
        if call.body is None:
            try:
                call.body = self._encode(call, now)
            except WireError as error:
                # Kept, it would fail at each later step, and the other requests with it.
                del self._requests[call.id]
                call.done(call, _refusal(call, str(error)), b"")
                return
        try:
            self._sockets[call.socket].socket.send_multipart([b"", call.body], zmq.NOBLOCK)
        except zmq.Again:
            return
        call.sent = now

    def _encode(self, call: PendingRequest, now: float) -> bytes:
        """The body is made once: a repeat with other bytes would be another request.

        No deadline before `hello` has given the daemon's clock.
        """
        deadline = None
        if call.deadline is not None and self._boot is not None:
            deadline = time.time_ns() // 1000 + self._offset_us + int((call.deadline - now) * 1e6)
        meta = RequestMeta(
            v=PROTOCOL_VERSION,
            expect=Expect(boot=None if call.method == "hello" else self._boot),
            deadline=deadline,
            client=self._client,
            reason=call.reason,
            lease=self.lease,
        )
        return encode_request(call.id, call.method, call.params, meta)

    def _receive_replies(self) -> None:
        for socket in self.sockets:
            while self._requests and not socket.closed and is_waiting(socket):
                self._take_reply([frame.buffer for frame in socket.recv_multipart(zmq.NOBLOCK, copy=False)])

    def _take_reply(self, frames: list[memoryview]) -> None:
        body = frames[1:] if not frames[0] else frames
        try:
            reply = decode_reply(body[0] if body else b"")
        except WireError:
            self.bad += 1
            return
        call = self._requests.get(reply.id or "")
        if call is None:
            return
        after, now = _retry_after(reply), time.monotonic()
        if after is not None and (call.deadline is None or now + after < call.deadline):
            call.sent = now - RESEND_SECONDS + after
            return
        del self._requests[call.id]
        if call.method == "lease.acquire" and reply.result is not None:
            self._leases[reply.meta.boot] = reply.result["lease"]
        call.done(call, reply, body[1] if len(body) > 1 else b"")


def _refusal(call: PendingRequest, message: str) -> Reply:
    """The daemon's answer to a request that cannot be sent as it is."""
    kind = ERRORS["invalid_params"]
    return Reply(
        id=call.id, meta=ReplyMeta(boot="", ts=0), error=ErrorBody(kind.code, message, {"kind": kind.kind})
    )


def lines_of(body: Body) -> list[bytes]:
    """The lines of a second frame."""
    return bytes(body).split(b"\n") if body else []


def _retry_after(reply: Reply) -> float | None:
    """Seconds after which a daemon that has too much to do wants the request again."""
    if reply.error is None or BY_CODE.get(reply.error.code) is not ERRORS["overloaded"]:
        return None
    return float(reply.error.data.get("retry_after_ms") or 100) / 1000


def error_of(reply: Reply) -> RequestError | None:
    """The typed error in a reply, or None."""
    if reply.error is None:
        return None
    known = BY_CODE.get(reply.error.code)
    kind = str(reply.error.data.get("kind") or (known.kind if known else "internal"))
    return RequestError(kind, reply.error.message, reply.error.data)


def outcome_of(call: PendingRequest, reply: Reply | None, body: Body = b"") -> RequestOutcome:
    """Outcome of a request, for the caller: the answer, or that none came before its deadline."""
    if reply is not None:
        lines = tuple(lines_of(body))
        return RequestOutcome(call.id, call.method, reply.result, error_of(reply), call.age, lines)
    fate = "it was sent" if call.sent else "it was never sent, there was no connection"
    error = RequestError("no_reply", f"no answer to {call.method} in {call.age:.0f} s; {fate}")
    return RequestOutcome(call.id, call.method, None, error, call.age)

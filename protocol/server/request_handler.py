"""Check requests, then answer them or hand them to the trainer. No socket in here.

rate → parse → validate → known id? → method → deadline, boot, state, lease → answer (qry), or executed at
once or put into the mailbox (ctl). Every way out is a typed error that names what is wrong.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from esper_overwatch.protocol.codec.frames import encode_reply
from esper_overwatch.protocol.errors import ERRORS, RequestError
from esper_overwatch.protocol.messages.commands import (
    METHODS,
    Method,
    Params,
    Reply,
    ReplyMeta,
    Request,
    RequestMeta,
    Socket,
)
from esper_overwatch.protocol.messages.events import CommandAccepted, CommandDone, CommandRefused
from esper_overwatch.protocol.messages.roles import Peer, is_allowed
from esper_overwatch.protocol.messages.vocabulary import RunState
from esper_overwatch.protocol.version import PROTOCOL_VERSION

from .admission import MAX_REQUEST_BYTES, admit, encode_error, error_reply, split_envelope
from .immediate_commands import ImmediateCommands
from .mailbox import Command, Mailbox
from .parameter_errors import describe_error, split_reason
from .rate_limiter import RateLimiter
from .reply_cache import ReplyCache, digest_of

logger = logging.getLogger(__name__)

REFUSALS_PER_SECOND = 1.0
BURST_REFUSALS = 100.0
"""Refusals of a key, or of a local user, in the audit."""
LOG_INTERVAL_SECONDS = 60.0
MAX_DEADLINE_SECONDS = 86_400
"""Ahead of now; a deadline in nanoseconds would never pass."""
QueryResult = tuple[dict[str, Any], bytes | None]
"""Result of a query and, for large ones, a second frame of NDJSON."""


class RequestHandler:
    """The rules of the two request sockets.

    Args:
        boot: id of this boot.
        state: the run's state now.
        answer: answers a query; may raise RequestError.
        mailbox: where accepted commands go.
        emit: takes the audit events.
        immediate: executes the commands that need no trainer.
        check: looks at the parameters of a command with the trainer's knowledge; gives a note to send beside
            `accepted`, or raises RequestError.
        note: a note to send beside `accepted`, where an effect is not to be expected soon.
    """

    def __init__(
        self,
        *,
        boot: str,
        state: Callable[[], RunState],
        answer: Callable[[str, Params], QueryResult],
        mailbox: Mailbox,
        emit: Callable[[object], None],
        immediate: ImmediateCommands,
        check: Callable[[Params], str | None] = lambda _: None,
        note: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._boot = boot
        self._state = state
        self._answer = answer
        self._mailbox = mailbox
        self._emit = emit
        self._immediate = immediate
        self._check_params = check
        self._note = note
        self.methods: Mapping[str, Method] = METHODS
        """Methods of this run."""
        self.clients = RateLimiter()
        self.refusals = RateLimiter(REFUSALS_PER_SECOND, BURST_REFUSALS)
        """Those that are audited, by sender; its `refused` are left out."""
        self._logged_at = float("-inf")
        self._replies = ReplyCache()
        self.requests = 0
        self.junk = 0
        """Messages that were not requests at all."""

    def handle(
        self, socket: Socket, frames: list[bytes], peer: Peer, *, must_read: bool = False
    ) -> list[bytes] | None:
        """One message of a ROUTER in, the message to send back out; None where there is no one to answer.

        Args:
            socket: which one it came in on.
            frames: identity first; then an empty delimiter (REQ, and DEALERs that imitate it) or none.
            peer: who sent it.
            must_read: it has too many answers unread, and gets none but an error.
        """
        self.requests += 1
        envelope, rest = split_envelope(frames)
        self.junk += len(rest) != 1
        if not envelope:
            return None
        try:
            admit(self.clients, envelope, rest, peer, is_full=must_read)
        except RequestError as error:
            return [*envelope, encode_error(self._boot, rest[0] if len(rest) == 1 else b"", error)]
        return [*envelope, *self._respond(socket, rest[0], peer, b"".join(envelope))]

    def _respond(self, socket: Socket, body: bytes, peer: Peer, connection: bytes) -> list[bytes]:
        try:
            request = parse_request(body)
        except RequestError as error:
            self.junk += 1
            return [encode_error(self._boot, body, error)]
        self.clients.name(connection, request.meta.client)
        digest = digest_of(body) if socket == "ctl" else b""
        try:
            _require_role(request, peer, self.methods)
            earlier = self._replies.get(request.id, digest) if socket == "ctl" else None
            if earlier is not None:
                return [encode_reply(msgspec.structs.replace(earlier, meta=self._meta(replayed=True)))]
            method, params = self._check(socket, request)
            if method.socket == "ctl" and method.needs_lease:
                self._immediate.leases.check(request.meta.lease)
            if socket == "qry":
                result, attachment = self._answer(method.name, params)
                reply = encode_reply(self._reply(request.id, result))
                return [reply] if attachment is None else [reply, attachment]
            execute = self._execute_now if method.at == "once" else self._enqueue
            accepted = self._reply(request.id, execute(request, params, peer))
        except RequestError as error:
            return [encode_reply(self._refuse(socket, request, digest, peer, error))]
        except Exception:
            logger.exception("request %s failed", request.method)
            failed = RequestError("internal", f"{request.method} failed; the daemon's log says why")
            return [encode_reply(error_reply(self._boot, request.id, failed))]
        self._replies.add(request.id, digest, accepted)
        return [encode_reply(accepted)]

    def submit(self, method: str, client: str, reason: str) -> None:
        """Send the trainer a command without parameters by the run's own user, whom no lease keeps out.

        Raises:
            RequestError: it is refused, as it would be of a client.
        """
        request = Request(
            secrets.token_hex(8), method, meta=RequestMeta(client=client[:64], reason=reason[:256])
        )
        _, params = self._check("ctl", request)
        self._enqueue(request, params, Peer(uid=os.getuid(), pid=os.getpid(), role="admin"))

    def _check(self, socket: Socket, request: Request) -> tuple[Method, Params]:
        meta = request.meta
        if meta.v != PROTOCOL_VERSION:
            raise RequestError(
                "version",
                f"protocol version {meta.v} is not spoken here, only {PROTOCOL_VERSION}",
                {"min": PROTOCOL_VERSION, "max": PROTOCOL_VERSION},
            )
        method = self.methods.get(request.method)
        if method is None or method.socket != socket:
            known = sorted(m.name for m in list(self.methods.values()) if m.socket == socket)
            name = repr(request.method[:64])
            if method is not None:
                message = f"no method {name} on {socket}; it is on the {method.socket} socket"
            else:
                what = "command" if socket == "ctl" else "query"
                message = f"this run does not have the {what} {name}; it has {', '.join(known)}"
            raise RequestError("unknown_method", message, {"known": known})
        try:
            params = msgspec.convert(request.params, method.params)
        except (msgspec.ValidationError, RecursionError) as error:
            message = f"{method.name}: {describe_error(method.params, request.params, error)}"
            raise RequestError("invalid_params", message, {"path": split_reason(error)[1]}) from None
        if socket == "ctl":
            _require_64_bits(method, params)
        self._check_conditions(request, method)
        return method, params

    def _check_conditions(self, request: Request, method: Method) -> None:
        meta, state, now = request.meta, self._state(), _now()
        if meta.deadline is not None and now > meta.deadline:
            late = (now - meta.deadline) / 1e6
            message = f"{method.name} came {late:.1f} s too late and was not executed: its deadline was " + (
                f"{meta.deadline}, and it is {now}, in microseconds"
            )
            raise RequestError("deadline", message, {"now": now})
        if meta.deadline is not None and meta.deadline - now > MAX_DEADLINE_SECONDS * 1_000_000:
            message = f"the deadline {meta.deadline} is more than a day ahead: it is {now}, in microseconds"
            raise RequestError("invalid_request", message, {"path": "$.meta.deadline"})
        if meta.expect.boot is not None and meta.expect.boot != self._boot:
            raise RequestError(
                "boot_mismatch",
                f"{method.name} was meant for boot {meta.expect.boot[:16]}; this is {self._boot}",
                {"boot": self._boot},
            )
        if state not in method.states:
            kind = "shutting_down" if state == "STOPPING" else "wrong_state"
            why = method.refused if method.refused and state != "STOPPING" else f"the run is {state}"
            raise RequestError(
                kind, f"{method.name} refused: {why}", {"state": state, "allowed": list(method.states)}
            )
        if meta.expect.state is not None and meta.expect.state != state:
            raise RequestError(
                "wrong_state",
                f"{method.name} was meant for state {meta.expect.state}; the run is {state}",
                {"state": state, "allowed": [meta.expect.state]},
            )

    def _execute_now(self, request: Request, params: Params, peer: Peer) -> dict[str, Any]:
        begin, client = time.perf_counter(), _client_name(request, peer)
        result = self._immediate.execute(request, params, client, peer)
        self._audit(request, params, client, peer)
        # Whoever watches reads the events: what only the holder of a lease may know is in the reply alone.
        told = {name: value for name, value in result.items() if name != "lease"}
        self._emit(
            CommandDone(
                id=request.id, method=request.method, result=told, seconds=time.perf_counter() - begin
            )
        )
        return {"state": "done", **result}

    def _enqueue(self, request: Request, params: Params, peer: Peer) -> dict[str, Any]:
        waits = self._check_params(params)
        if not self._mailbox.has_room(request.method):
            raise RequestError(
                "overloaded",
                f"{self._mailbox.num_waiting} commands wait already: send it later, or cancel one of them",
                {"retry_after_ms": 1000},
            )
        client = _client_name(request, peer)
        self._audit(request, params, client, peer)
        self._mailbox.put(
            Command(
                id=request.id,
                method=request.method,
                params=params,
                client=client,
                uid=peer.uid,
                pid=peer.pid,
                reason=request.meta.reason,
                received=time.monotonic(),
            )
        )
        note = self._note() or waits
        return {"state": "accepted"} if note is None else {"state": "accepted", "note": note}

    def _audit(self, request: Request, params: Params, client: str, peer: Peer) -> None:
        self._emit(
            CommandAccepted(
                id=request.id,
                method=request.method,
                params=msgspec.to_builtins(params),
                client=client,
                uid=peer.uid,
                pid=peer.pid,
                key=peer.key,
                reason=request.meta.reason,
            )
        )

    def _refuse(
        self, socket: Socket, request: Request, digest: bytes, peer: Peer, error: RequestError
    ) -> Reply:
        reply = error_reply(self._boot, request.id, error)
        if socket == "ctl" or error.kind == "forbidden":
            if not ERRORS[error.kind].retryable and error.kind not in ("id_reused", "forbidden"):
                self._replies.add(request.id, digest, reply)
            self._audit_refusal(request, peer, error)
        return reply

    def _audit_refusal(self, request: Request, peer: Peer, error: RequestError) -> None:
        """Audit a refusal, limited by rate per sender: many connections could fill the journal otherwise."""
        if self.refusals.admit(f"{peer.uid} {peer.key}".encode(), peer) > 0.0:
            self._warn_of_left_out(peer)
            return
        self._emit(
            CommandRefused(
                id=request.id,
                method=request.method[:64],
                code=error.code,
                message=error.message,
                client=request.meta.client,
                uid=peer.uid,
                pid=peer.pid,
                key=peer.key,
            )
        )

    def _warn_of_left_out(self, peer: Peer) -> None:
        if time.monotonic() - self._logged_at > LOG_INTERVAL_SECONDS:
            self._logged_at = time.monotonic()
            logger.warning(
                "%s is refused more than %.0f times a second: further refusals are left out of the audit, "
                "%d so far; `status` counts them (unaudited)",
                f"key {peer.key}" if peer.key else f"uid {peer.uid}",
                REFUSALS_PER_SECOND,
                self.refusals.refused,
            )

    def _reply(self, id_: str, result: dict[str, Any]) -> Reply:
        return Reply(id=id_, meta=self._meta(), result=result)

    def _meta(self, *, replayed: bool = False) -> ReplyMeta:
        return ReplyMeta(boot=self._boot, ts=_now(), replayed=replayed)


def _client_name(request: Request, peer: Peer) -> str:
    return request.meta.client or (f"pid {peer.pid}" if peer.pid else "unknown")


_request = msgspec.json.Decoder(Request)


def _require_role(request: Request, peer: Peer, methods: Mapping[str, Method]) -> None:
    """Refuse a peer that may not, before it learns anything of earlier requests with this id.

    Raises:
        RequestError: it may not; says which role it has and which it needs.
    """
    method = methods.get(request.method)
    need = method.need if method is not None else "viewer"
    if not is_allowed(peer.role, need):
        who = f"key {peer.key}" if peer.key else "this connection"
        raise RequestError(
            "forbidden",
            f"{request.method[:64]} refused: {who} is {peer.role or 'nobody'} here; it takes {need}",
            {"role": peer.role, "need": need},
        )


def _require_64_bits(method: Method, params: Params) -> None:
    """Refuse integers that the audit cannot hold: the command would be executed without a record.

    Raises:
        RequestError: names the parameter.
    """
    for name, value in msgspec.structs.asdict(params).items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            message = f"{method.name}: {name} must be a whole number of 64 bits, with a sign"
            raise RequestError("invalid_params", message, {"path": f"$.{name}"})


def parse_request(body: bytes) -> Request:
    """Read a request's frame.

    Raises:
        RequestError: it is too large, no JSON, or lacks a field or has a wrong one, which the message names.
    """
    if len(body) > MAX_REQUEST_BYTES:
        raise RequestError("too_large", f"a request may have {MAX_REQUEST_BYTES} bytes, this has {len(body)}")
    try:
        try:
            return _request.decode(body)
        except msgspec.ValidationError as error:
            message = describe_error(Request, msgspec.json.decode(body), error)
            path = split_reason(error)[1]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("parse", f"not JSON: {error}") from None
    raise RequestError("invalid_request", message, {"path": path})


def _now() -> int:
    return time.time_ns() // 1000

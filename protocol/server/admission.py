"""What is asked of a message before anybody looks into it: that it is one frame, not too soon, not unread."""

from __future__ import annotations

import math
import time

import msgspec

from esper_overwatch.protocol.codec.frames import encode_reply
from esper_overwatch.protocol.errors import ERRORS, RequestError
from esper_overwatch.protocol.messages.commands import ErrorBody, Reply, ReplyMeta
from esper_overwatch.protocol.messages.roles import Peer

from .rate_limiter import REQUESTS_PER_SECOND, RateLimiter

MAX_REQUEST_BYTES = 1024 * 1024


def split_envelope(frames: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Routing envelope, with the empty delimiter where there is one, and what follows it."""
    if not frames:
        return [], []
    if b"" in frames[1:]:
        end = frames.index(b"", 1) + 1
        return frames[:end], frames[end:]
    return frames[:1], frames[1:]


def admit(
    clients: RateLimiter, envelope: list[bytes], rest: list[bytes], peer: Peer, *, is_full: bool
) -> None:
    """Count a message; what is refused here is neither executed nor remembered nor audited.

    Args:
        is_full: its sender has too many answers unread.

    Raises:
        RequestError: it is no request, comes too soon, or its sender must read first.
    """
    if len(rest) != 1:
        raise RequestError("invalid_request", f"a request is one frame of JSON, this has {len(rest)}")
    wait = clients.admit(b"".join(envelope), peer)
    if wait > 0.0:
        after = math.ceil(wait * 1000)
        raise RequestError(
            "overloaded",
            f"a connection may ask {REQUESTS_PER_SECOND:.0f} times a second; again in {after} ms",
            {"retry_after_ms": after},
        )
    if is_full:
        raise RequestError("overloaded", "read the answers that wait for you first", {"retry_after_ms": 500})


def error_reply(boot: str, id_: str | None, error: RequestError) -> Reply:
    """The answer that says why."""
    kind = ERRORS[error.kind]
    data = {"kind": kind.kind, "retryable": kind.retryable, **error.data}
    body = ErrorBody(code=kind.code, message=error.message, data=data)
    return Reply(id=id_, meta=ReplyMeta(boot=boot, ts=time.time_ns() // 1000), result=None, error=body)


def encode_error(boot: str, body: bytes, error: RequestError) -> bytes:
    """The same for a request of which nothing was read but, where it can be, its id."""
    return encode_reply(error_reply(boot, _salvage_id(body), error))


class _IdAlone(msgspec.Struct):
    id: str


_id_alone = msgspec.json.Decoder(_IdAlone)


def _salvage_id(body: bytes) -> str | None:
    try:
        id_: str = _id_alone.decode(body[:MAX_REQUEST_BYTES]).id[:64]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return id_

"""Frames: batches of lines, views, heartbeats, requests and replies as they are on the wire.

orjson and msgspec write, msgspec reads and validates; `json_lines` has the lines of events themselves.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import orjson

from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.messages.commands import Reply, Request, RequestMeta
from esper_overwatch.protocol.messages.headers import BatchHeader, Heartbeat, ViewHeader, Window
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream
from esper_overwatch.protocol.version import PROTOCOL_VERSION

from .json_lines import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, Batch, plain

Frames = list[bytes | memoryview]
"""Frames of one message; a body is not copied before it is sent."""
HEARTBEAT_TOPIC = b"%d/hb" % PROTOCOL_VERSION
VIEW_TOPIC = b"%d/view" % PROTOCOL_VERSION
"""The newest metric of each type, five times a second: for thin links, neither numbered nor journalled."""
TOPICS: dict[Stream, bytes] = {stream: b"%d/%s" % (PROTOCOL_VERSION, stream.encode()) for stream in STREAMS}
_heartbeat = msgspec.json.Decoder(Heartbeat)
_view = msgspec.json.Decoder(ViewHeader)
_header = msgspec.json.Decoder(BatchHeader)
_reply = msgspec.json.Decoder(Reply)
_encode = msgspec.json.Encoder().encode
_T = TypeVar("_T")


def encode_batches(batches: Sequence[Batch], *, run: str, boot: str, ts: int, dropped: int) -> list[Frames]:
    """Frames `[topic, header, NDJSON]` for contiguous batches of one stream, small ones in one message."""
    return [_encode_joined(part, run, boot, ts, dropped) for part in _join_small(batches)]


def _encode_joined(batches: Sequence[Batch], run: str, boot: str, ts: int, dropped: int) -> Frames:
    header = BatchHeader(
        v=PROTOCOL_VERSION,
        run=run,
        boot=boot,
        stream=batches[0].stream,
        first=batches[0].first,
        last=batches[-1].last,
        n=sum(map(len, batches)),
        ts=ts,
        dropped=dropped,
    )
    return [TOPICS[batches[0].stream], _encode(header), _body_of(batches)]


def _body_of(batches: Sequence[Batch]) -> memoryview:
    if len(batches) == 1:
        return batches[0].lines(0, len(batches[0]))
    return memoryview(b"".join([batch.body for batch in batches]))[:-1]


def _join_small(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Neighbouring batches in groups that fit into one message."""
    parts: list[list[Batch]] = []
    events = size = 0
    for batch in batches:
        events += len(batch)
        size += len(batch.body)
        if not parts or events > MAX_BATCH_EVENTS or size > MAX_BATCH_BYTES:
            parts.append([])
            events, size = len(batch), len(batch.body)
        parts[-1].append(batch)
    return parts


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes | memoryview, what: str) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not {what}: {error}") from None


def decode_batch(header: bytes, body: bytes) -> tuple[BatchHeader, list[bytes]]:
    """Header and lines of a batch.

    Raises:
        WireError: the header is malformed or does not fit the body.
    """
    h = _decode(_header, header, "a batch")
    lines = body.split(b"\n")
    if h.n != len(lines) or h.last - h.first + 1 != h.n:
        raise WireError(f"batch of {h.stream} says {h.first}..{h.last} ({h.n}) and holds {len(lines)} lines")
    return h, lines


def encode_view(lines: list[bytes], windows: dict[str, Window], *, run: str, boot: str, ts: int) -> Frames:
    """Frames `[topic, header, NDJSON]` of a view."""
    header = ViewHeader(v=PROTOCOL_VERSION, run=run, boot=boot, ts=ts, n=len(lines), windows=windows)
    return [VIEW_TOPIC, _encode(header), b"\n".join(lines)]


def decode_view(header: bytes, body: bytes) -> tuple[ViewHeader, list[bytes]]:
    """Header and lines of a view.

    Raises:
        WireError: the header is malformed or does not fit the body.
    """
    h = _decode(_view, header, "a view")
    lines = body.split(b"\n")
    if h.n != len(lines):
        raise WireError(f"a view says {h.n} lines and holds {len(lines)}")
    return h, lines


def encode_heartbeat(heartbeat: Heartbeat) -> Frames:
    """Frames of a heartbeat."""
    return [HEARTBEAT_TOPIC, _encode(heartbeat)]


def decode_heartbeat(body: bytes) -> Heartbeat:
    """Body of a heartbeat.

    Raises:
        WireError: it is malformed.
    """
    return _decode(_heartbeat, body, "a heartbeat")


def new_id() -> str:
    """An id for a request: 16 hex digits, random."""
    return secrets.token_hex(8)


def encode_request(id_: str, method: str, params: dict[str, Any], meta: RequestMeta) -> bytes:
    """Body of a request; the same arguments give the same bytes, which is what de-duplication compares.

    Lone surrogates, which UTF-8 lacks (words of a command line that are not UTF-8 hold them), are escaped.

    Raises:
        WireError: it holds something that JSON cannot say.
    """
    request = Request(id=id_, method=method, params=params, meta=meta)
    try:
        try:
            return _encode(request)
        except UnicodeEncodeError:
            return orjson.dumps(plain(msgspec.to_builtins(request)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"the parameters of {method} cannot be encoded: {error}") from None


def encode_reply(reply: Reply) -> bytes:
    """First frame of a reply; values that JSON lacks become words, as in events."""
    present = _without_absent(reply)
    try:
        raw = _encode(present)
    except UnicodeEncodeError:
        raw = b"null"
    return orjson.dumps(plain(msgspec.to_builtins(present))) if b"null" in raw else raw


def _without_absent(reply: Reply) -> dict[str, Any]:
    absent = "error" if reply.error is None else "result"
    return {f: getattr(reply, f) for f in reply.__struct_fields__ if f != absent}


def decode_reply(body: bytes | memoryview) -> Reply:
    """First frame of a reply.

    Raises:
        WireError: it is malformed.
    """
    return _decode(_reply, body, "a reply")

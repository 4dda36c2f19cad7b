"""Frames, and how a line of JSON comes back as the same type; `encoding` writes the lines.

orjson writes, msgspec reads and validates. A line is the same on the wire and in the journal:

    {"seq":N,"stream":"metric","ts":µs,"type":"epoch","tv":1,"ctx":{...},"data":{...}}
"""

from __future__ import annotations

import dataclasses
import re
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson
from msgspec import Struct

from .commands import Reply, Request, RequestMeta
from .encoding import BATCH_BYTES, BATCH_EVENTS, Batch, plain
from .errors import WireError as WireError
from .events import EVENTS, STREAMS, Context, Stream
from .version import PROTOCOL_VERSION

Frames = list[bytes | memoryview]
"""Of one message; a body is not copied before it is sent."""
HEARTBEAT_TOPIC = b"%d/hb" % PROTOCOL_VERSION
VIEW_TOPIC = b"%d/view" % PROTOCOL_VERSION
"""The newest metric of each type, five times a second: for thin links, neither numbered nor journalled."""
TOPICS: dict[Stream, bytes] = {stream: b"%d/%s" % (PROTOCOL_VERSION, stream.encode()) for stream in STREAMS}
LINE_HEAD = re.compile(rb'\{"seq":(\d+),"stream":"([a-z]+)"')
"""Where a line says its number and stream, for readers that need no more of it."""


@dataclasses.dataclass(frozen=True)
class Unknown:
    """An event type that this version does not know: kept, never fatal."""

    type: str
    raw: bytes


@dataclasses.dataclass(frozen=True)
class Event:
    """One event as a reader sees it."""

    seq: int
    """Contiguous per stream within a run, across boots."""
    ts: int
    """Wall time of the daemon, microseconds since the epoch."""
    type: str
    stream: str
    tv: int
    """Version of the event type."""
    ctx: Context
    data: Any
    """An instance of the class registered for `type`, or `Unknown`."""
    line: bytes = dataclasses.field(default=b"", repr=False, compare=False)
    """As it was on the wire."""


class TrainerBeat(Struct, frozen=True):
    """What the trainer last said of itself; the age tells a hung trainer from a living I/O thread."""

    state: str
    round: int
    epoch: int
    beat_age_ms: int


class Heartbeat(Struct, frozen=True):
    """Body of a heartbeat; sent each second and once more as the daemon's last word."""

    v: int
    run: str
    boot: str
    ts: int
    last: dict[str, int]
    """The newest sequence number per stream: what makes a lost tail visible."""
    dropped: dict[str, int]
    """Events refused since the boot because a queue was full, per stream."""
    trainer: TrainerBeat
    clients: int
    """Subscribers to the heartbeat."""
    bye: str | None = None
    """Why the daemon leaves; null while it lives."""


class BatchHeader(Struct, frozen=True):
    """Second frame of a batch; its body holds the lines `first`..`last` without a hole."""

    v: int
    run: str
    boot: str
    stream: str
    first: int
    last: int
    n: int
    ts: int
    dropped: int


class Window(Struct, frozen=True):
    """The events of a type that have come since the view before: of each field that is a number, its span.

    What is not finite is left out; a field without a value that is left has no entry.
    """

    n: int
    min: dict[str, float]
    mean: dict[str, float]
    max: dict[str, float]


class ViewHeader(Struct, frozen=True):
    """Second frame of a view; its body holds `n` lines of the stream `metric`, the newest of their types."""

    v: int
    run: str
    boot: str
    ts: int
    n: int
    windows: dict[str, Window] = {}
    """By type, of those of which more than one has come since the view before."""


class _Envelope(Struct):
    seq: int
    stream: str
    ts: int
    type: str
    data: msgspec.Raw
    tv: int = 1
    ctx: Context = msgspec.field(default_factory=Context)


_envelope = msgspec.json.Decoder(_Envelope, strict=False)
_heartbeat = msgspec.json.Decoder(Heartbeat)
_view = msgspec.json.Decoder(ViewHeader)
_header = msgspec.json.Decoder(BatchHeader)
_reply = msgspec.json.Decoder(Reply)
_data: dict[str, msgspec.json.Decoder[Any]] = {}
_encode = msgspec.json.Encoder().encode


# --- events ----------------------------------------------------------------------------------------


def decode_line(line: bytes) -> Event:
    """Read a line back into its type.

    A type that is not registered here gives `Unknown`; fields that are not known are ignored.

    Raises:
        WireError: not a line of this protocol; the message says what and where.
    """
    try:
        e = _envelope.decode(line)
        data: Any
        if e.type in EVENTS:
            data = _decoder(e.type).decode(e.data)
        else:
            data = Unknown(type=e.type, raw=bytes(e.data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not an event: {error} in {line[:80]!r}") from None
    return Event(e.seq, e.ts, e.type, e.stream, e.tv, e.ctx, data, line)


def _decoder(type_: str) -> msgspec.json.Decoder[Any]:
    decoder = _data.get(type_)
    if decoder is None:
        decoder = _data[type_] = msgspec.json.Decoder(EVENTS[type_].cls, strict=False)
    return decoder


# --- frames ----------------------------------------------------------------------------------------


def encode_batches(batches: Sequence[Batch], *, run: str, boot: str, ts: int, dropped: int) -> list[Frames]:
    """Frames `[topic, header, NDJSON]` for contiguous batches of one stream, small ones in one message."""
    return [
        [TOPICS[some[0].stream], _encode(BatchHeader(
            v=PROTOCOL_VERSION, run=run, boot=boot, stream=some[0].stream,
            first=some[0].first, last=some[-1].last, n=sum(map(len, some)), ts=ts, dropped=dropped,
        )), _body_of(some)]
        for some in _together(batches)
    ]  # fmt: skip


def _body_of(batches: Sequence[Batch]) -> memoryview:
    if len(batches) == 1:
        return batches[0].lines(0, len(batches[0]))
    return memoryview(b"".join([batch.body for batch in batches]))[:-1]


def _together(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Neighbours that fit into one message together."""
    parts: list[list[Batch]] = []
    events = size = 0
    for batch in batches:
        events += len(batch)
        size += len(batch.body)
        if not parts or events > BATCH_EVENTS or size > BATCH_BYTES:
            parts.append([])
            events, size = len(batch), len(batch.body)
        parts[-1].append(batch)
    return parts


def decode_batch(header: bytes, body: bytes) -> tuple[BatchHeader, list[bytes]]:
    """Header and lines of a batch.

    Raises:
        WireError: the header is malformed or does not fit the body.
    """
    try:
        h = _header.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a batch: {error}") from None
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
    try:
        h = _view.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a view: {error}") from None
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
        WireError: it is none.
    """
    try:
        return _heartbeat.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a heartbeat: {error}") from None


# --- requests --------------------------------------------------------------------------------------


def new_id() -> str:
    """An id for a request: 16 hex digits, random."""
    return secrets.token_hex(8)


def encode_request(id_: str, method: str, params: dict[str, Any], meta: RequestMeta) -> bytes:
    """Body of a request; the same arguments give the same bytes, which is what de-duplication compares."""
    return _encode(Request(id=id_, method=method, params=params, meta=meta))


def encode_reply(reply: Reply) -> bytes:
    """First frame of a reply; values that JSON lacks become words, as in events."""
    told = _without_absent(reply)
    try:
        raw = _encode(told)
    except UnicodeEncodeError:
        raw = b"null"
    return orjson.dumps(plain(msgspec.to_builtins(told))) if b"null" in raw else raw


def _without_absent(reply: Reply) -> dict[str, Any]:
    absent = "error" if reply.error is None else "result"
    return {f: getattr(reply, f) for f in reply.__struct_fields__ if f != absent}


def decode_reply(body: bytes | memoryview) -> Reply:
    """First frame of a reply.

    Raises:
        WireError: it is none.
    """
    try:
        return _reply.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a reply: {error}") from None

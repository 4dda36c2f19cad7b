"""Frames and codec: how an event becomes a line of JSON and comes back as the same type.

orjson writes, msgspec reads and validates. A line is the same on the wire and in the journal:

    {"seq":N,"stream":"metric","ts":µs,"type":"epoch","tv":1,"ctx":{...},"data":{...}}

JSON has no NaN and no infinities, and both libraries write them as `null`. Here they travel as the strings
`"NaN"`, `"Infinity"` and `"-Infinity"` (the mapping of proto3's JSON), and `null` means "not measured".
"""

from __future__ import annotations

import dataclasses
import functools
import re
import secrets
from math import isfinite
from typing import Any, NamedTuple

import msgspec
import orjson
from msgspec import Struct

from .commands import Reply, Request, RequestMeta
from .errors import EsperError
from .events import EVENTS, STREAMS, Context, Stream, spec_of
from .version import PROTOCOL_VERSION

HEARTBEAT_TOPIC = b"%d/hb" % PROTOCOL_VERSION
VIEW_TOPIC = b"%d/view" % PROTOCOL_VERSION
"""The newest metric of each type, five times a second: for thin links, neither numbered nor journalled."""
TOPICS: dict[Stream, bytes] = {stream: b"%d/%s" % (PROTOCOL_VERSION, stream.encode()) for stream in STREAMS}
LINE_HEAD = re.compile(rb'\{"seq":(\d+),"stream":"([a-z]+)"')
"""Where a line says its number and stream, for readers that need no more of it."""

_LINE = '{"seq":%%d,"stream":"%s","ts":%%d,"type":"%s","tv":%d,"ctx":{%%s},"data":%%s}'
"""Of a type; the number, the time, the context and the data are filled in for each event."""

BATCH_EVENTS = 256
BATCH_BYTES = 256 * 1024


class WireError(EsperError):
    """Bytes that are no event, batch, heartbeat or reply of this protocol."""


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


class Stamped(Struct, frozen=True, gc=False):
    """An encoded event on its way to the journal, the ring and the batches."""

    stream: Stream
    seq: int
    ts: int
    line: bytes


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


class ViewHeader(Struct, frozen=True):
    """Second frame of a view; its body holds `n` lines of the stream `metric`, the newest of their types."""

    v: int
    run: str
    boot: str
    ts: int
    n: int


class _Envelope(Struct):
    seq: int
    stream: str
    ts: int
    type: str
    data: msgspec.Raw
    tv: int = 1
    ctx: Context = msgspec.field(default_factory=Context)


class _Form(NamedTuple):
    """How the events of a class are written."""

    line: bytes
    optional: tuple[str, ...]
    """Its fields that may be None, of which most nulls in a line come."""


_envelope = msgspec.json.Decoder(_Envelope, strict=False)
_heartbeat = msgspec.json.Decoder(Heartbeat)
_view = msgspec.json.Decoder(ViewHeader)
_header = msgspec.json.Decoder(BatchHeader)
_reply = msgspec.json.Decoder(Reply)
_forms: dict[type, _Form] = {}
_data: dict[str, msgspec.json.Decoder[Any]] = {}
_encode = msgspec.json.Encoder().encode


# --- events ----------------------------------------------------------------------------------------


def encode_event(seq: int, ts_us: int, ctx: Context, event: object) -> bytes:
    """One line, without its newline.

    Args:
        seq: number within the stream.
        ts_us: wall time, microseconds.
        ctx: where in the run it belongs.
        event: instance of a registered event class; numpy arrays and scalars are allowed in it.

    Raises:
        WireError: it holds something that JSON cannot say (a tensor, a set, an integer over 64 bits).
    """
    form = _forms.get(type(event)) or _form_of(type(event))
    context = _encode_context(ctx.round, ctx.epoch, ctx.level, ctx.env, ctx.rank)
    return form.line % (seq, ts_us, context, _encode_data(event, form.optional))


def _form_of(cls: type) -> _Form:
    spec = spec_of(cls)
    line = (_LINE % (spec.stream, spec.type, spec.version)).encode()
    optional = tuple([field.name for field in dataclasses.fields(cls) if "None" in str(field.type)])
    form = _forms[cls] = _Form(line, optional)
    return form


@functools.lru_cache(maxsize=256)
def _encode_context(round: int, epoch: int, level: str, env: int | None, rank: int) -> bytes:
    """The same for all events of an epoch and env."""
    of_env = "" if env is None else f'"env":{env},'
    return f'"round":{round},"epoch":{epoch},"level":"{level}",{of_env}"rank":{rank}'.encode()


def _encode_data(event: object, optional: tuple[str, ...]) -> bytes:
    """A null is a None or a float that JSON lacks: where the empty fields do not explain all, look."""
    try:
        raw = orjson.dumps(event, option=orjson.OPT_SERIALIZE_NUMPY)
        if nulls := raw.count(b"null"):
            values = vars(event)
            if nulls != len([1 for name in optional if values[name] is None]) and not _is_finite(event):
                return orjson.dumps(_plain(event))
        return raw
    except TypeError:
        pass
    try:
        return orjson.dumps(_plain(event))
    except (TypeError, RecursionError) as error:
        raise WireError(f"{type(event).__name__} cannot be encoded: {error}") from None


def _is_finite(value: Any) -> bool:
    """Whether each null in what orjson made of it is a None: no float in it is a NaN or infinite."""
    if isinstance(value, float):
        return isfinite(value)
    if value is None or isinstance(value, str | int):
        return True
    if isinstance(value, list | tuple):
        return all(x is None or (isfinite(x) if type(x) is float else _is_finite(x)) for x in value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return dataclasses.is_dataclass(value) and all(map(_is_finite, vars(value).values()))


def _plain(value: Any) -> Any:
    """The same value in dicts, lists and numbers; non-finite floats as words, text as valid UTF-8."""
    if isinstance(value, float):
        return float(value) if isfinite(value) else _word(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return [x if x is None or (type(x) is float and isfinite(x)) else _plain(x) for x in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if type(value).__module__ == "numpy":
        return _plain(value.tolist())
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _word(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


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


def encode_batches(
    stamped: list[Stamped], *, run: str, boot: str, ts: int, dropped: int
) -> list[list[bytes]]:
    """Frames `[topic, header, NDJSON]` for contiguous events of one stream, cut to the batch's limits."""
    batches = [part for i in range(0, len(stamped), BATCH_EVENTS)
               for part in _within_bytes(stamped[i : i + BATCH_EVENTS])]  # fmt: skip
    return [
        [TOPICS[batch[0].stream], _encode(BatchHeader(
            v=PROTOCOL_VERSION, run=run, boot=boot, stream=batch[0].stream,
            first=batch[0].seq, last=batch[-1].seq, n=len(batch), ts=ts, dropped=dropped,
        )), b"\n".join([item.line for item in batch])]
        for batch in batches
    ]  # fmt: skip


def _within_bytes(stamped: list[Stamped]) -> list[list[Stamped]]:
    """The same events in parts of at most `BATCH_BYTES`; one that is larger goes alone."""
    if sum([len(item.line) + 1 for item in stamped]) <= BATCH_BYTES:
        return [stamped]
    parts: list[list[Stamped]] = [[]]
    size = 0
    for item in stamped:
        if parts[-1] and size + len(item.line) >= BATCH_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += len(item.line) + 1
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


def encode_view(lines: list[bytes], *, run: str, boot: str, ts: int) -> list[bytes]:
    """Frames `[topic, header, NDJSON]` of a view."""
    header = ViewHeader(v=PROTOCOL_VERSION, run=run, boot=boot, ts=ts, n=len(lines))
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


def encode_heartbeat(heartbeat: Heartbeat) -> list[bytes]:
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
    return orjson.dumps(_plain(msgspec.to_builtins(_without_absent(reply))))


def _without_absent(reply: Reply) -> dict[str, Any]:
    absent = "error" if reply.error is None else "result"
    return {f: getattr(reply, f) for f in reply.__struct_fields__ if f != absent}


def decode_reply(body: bytes) -> Reply:
    """First frame of a reply.

    Raises:
        WireError: it is none.
    """
    try:
        return _reply.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a reply: {error}") from None

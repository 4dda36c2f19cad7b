"""Events into lines of JSON and back: orjson writes, msgspec reads and validates into the same type.

A line is the same on the wire and in the journal; a batch keeps the lines of a stream in one buffer:

    {"seq":N,"stream":"metric","ts":µs,"type":"epoch","tv":1,"ctx":{...},"data":{...}}

JSON has no NaN and no infinities, and orjson writes them as `null`. Here they travel as the strings `"NaN"`,
`"Infinity"` and `"-Infinity"` (the mapping of proto3's JSON), and `null` means "not measured".
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
import orjson
from msgspec import Meta, Struct

from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.messages.events import EVENTS, Context, EventSpec, spec_of
from esper_overwatch.protocol.messages.vocabulary import STREAMS, Stream

try:
    from ._line_writer import write_lines
except ImportError:  # installed where there was no compiler
    write_lines = None  # type: ignore[assignment]

MAX_TIME = 2**56
"""Microseconds since the epoch; a later time is nobody's, and calendars have no word for it."""
MAX_BATCH_EVENTS = 256
MAX_BATCH_BYTES = 256 * 1024
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1
"""Options of orjson."""
LINE_PREFIX = re.compile(rb'\{"seq":(\d{1,20}),"stream":"([a-z]+)"(?:,"ts":(\d{1,20})(?!\d))?')
"""Number, stream and time in a line, for readers that need no more of it."""


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


class Item(Protocol):
    """An event before it is numbered."""

    @property
    def ns(self) -> int:
        """Wall time, nanoseconds since the epoch."""

    @property
    def event(self) -> object:
        """An instance of a registered class; numpy arrays and scalars are allowed in it."""

    @property
    def env(self) -> int | None:
        """Env that it is about, where the context does not say."""

    @property
    def ctx(self) -> Context:
        """The event's place in the run."""


class _Form(NamedTuple):
    """Format of the events of a class."""

    spec: EventSpec
    optional: Callable[[dict[str, Any]], Sequence[Any]]
    """Values of the fields that are not columns and may be None, of which most nulls in a line come."""
    stream: bytes
    """Text between the number and the time."""
    context: Callable[[Context, int | None], bytes]
    """Makes the text between the time and the data, from a context and an env."""


_forms: dict[type, _Form] = {}


class Batch:
    """Lines of one stream with contiguous numbers: bytes that journal, wire and memory share."""

    __slots__ = ("body", "first", "from_ts", "starts", "stream", "to_ts")

    def __init__(self, stream: Stream, first: int, ts: int) -> None:
        self.stream = stream
        self.first = first
        self.body = bytearray()
        """The lines, each with its newline."""
        self.starts: list[int] = []
        """Offset of each line in the body."""
        self.from_ts = self.to_ts = ts

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def last(self) -> int:
        """The newest number."""
        return self.first + len(self.starts) - 1

    def lines(self, begin: int, end: int) -> memoryview:
        """The lines at `begin` up to but without `end`, newlines between them; no copy."""
        stop = self.starts[end] if end < len(self.starts) else len(self.body)
        return memoryview(self.body)[self.starts[begin] : stop - 1]

    def line(self, index: int) -> bytes:
        """One line, without its newline."""
        return bytes(self.lines(index, index + 1))

    def part(self, begin: int, end: int) -> Batch:
        """A copy of some lines, for a holder that would keep all of the batch in memory otherwise."""
        part = Batch(self.stream, self.first + begin, self.from_ts)
        part.body += self.lines(begin, end)
        part.body += b"\n"
        part.starts = [start - self.starts[begin] for start in self.starts[begin:end]]
        part.to_ts = self.to_ts
        return part


class Encoder:
    """Numbers events and writes them into batches, bounded by `MAX_BATCH_EVENTS` and `MAX_BATCH_BYTES`.

    One buffer takes the lines of a batch: keeping a line of its own for each event costs more than its JSON.

    Args:
        last: the newest number given, per stream; kept up to date.
    """

    def __init__(self, last: dict[str, int]) -> None:
        self.last = last
        self._batches: list[Batch] = []

    def extend(self, items: Sequence[Item], begin: int) -> tuple[Batch, int]:
        """Write the item at `begin`, and as many of the next as are of its class and fit into its batch.

        Returns:
            The batch whose last lines they are, and how many; without the compiled writer always one.

        Raises:
            WireError: the first of them cannot be encoded; see `add`.
        """
        first = items[begin]
        ts = first.ns // 1000
        if write_lines is not None:
            form = _forms.get(type(first.event)) or _make_form(type(first.event))
            stream = form.spec.stream
            batch = self._batches[-1] if self._batches else None
            count = 0 if batch is None or batch.stream != stream else _append_lines(batch, form, items, begin)
            if count == 0:
                batch = Batch(stream, self.last[stream] + 1, ts)
                self._batches.append(batch)
                count = _append_lines(batch, form, items, begin)
            if batch is not None and count > 0:
                batch.to_ts = items[begin + count - 1].ns // 1000
                self.last[stream] += count
                return batch, count
        return self.add(ts, first.ctx, first.event, first.env), 1

    def add(self, ts: int, ctx: Context, event: object, env: int | None = None) -> Batch:
        """Write one event; gives the batch whose last line it is.

        Args:
            ts: wall time, microseconds.
            ctx: where in the run it belongs.
            event: instance of a registered event class; numpy arrays and scalars are allowed in it.
            env: which env it is about, where the context does not say.

        Raises:
            WireError: it holds something that JSON cannot say (a tensor, a set, an integer over 64 bits).
                It takes no number.
        """
        form = _forms.get(type(event)) or _make_form(type(event))
        data = _encode_data(event, form.optional)
        stream = form.spec.stream
        seq = self.last[stream] + 1
        head = b'{"seq":%d%b%d%b' % (seq, form.stream, ts, form.context(ctx, env))
        batch = self._batches[-1] if self._batches else None
        if (
            batch is None
            or batch.stream != stream
            or len(batch.starts) >= MAX_BATCH_EVENTS
            or len(batch.body) + len(head) + len(data) >= MAX_BATCH_BYTES
        ):
            batch = Batch(stream, seq, ts)
            self._batches.append(batch)
        body = batch.body
        start = len(body)
        try:
            body += head
            body += data
            body += b"}\n"
            batch.starts.append(start)
        except MemoryError:
            del body[start:]
            raise
        batch.to_ts = ts
        self.last[stream] = seq
        return batch

    def take(self) -> list[Batch]:
        """The batches since this was last asked, in the order written."""
        batches, self._batches = self._batches, []
        return [batch for batch in batches if batch.starts]


def encode_event(seq: int, ts_us: int, ctx: Context, event: object) -> bytes:
    """One line, without its newline; see `Encoder.add`."""
    return Encoder(dict.fromkeys(STREAMS, seq - 1)).add(ts_us, ctx, event).line(0)


def _make_form(cls: type) -> _Form:
    spec = spec_of(cls)
    kinds = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    optional = [name for name, kind in kinds.items() if kind.endswith("| None") and "[" not in kind]

    def values(fields: dict[str, Any]) -> Sequence[Any]:
        return list(map(fields.get, optional))

    def context(ctx: Context, env: int | None) -> bytes:
        return _context_of(spec, ctx.round, ctx.epoch, ctx.level, ctx.env if env is None else env, ctx.rank)

    form = _forms[cls] = _Form(spec, values, f',"stream":"{spec.stream}","ts":'.encode(), context)
    return form


@functools.lru_cache(maxsize=256)
def _context_of(spec: EventSpec, round: int, epoch: int, level: str, env: int | None, rank: int) -> bytes:
    """Encoded context, which all events of a type, an epoch and an env share."""
    of_env = "" if env is None else f'"env":{env},'
    ctx = f'"round":{round},"epoch":{epoch},"level":"{level}",{of_env}"rank":{rank}'
    return f',"type":"{spec.type}","tv":{spec.version},"ctx":{{{ctx}}},"data":'.encode()


def _append_lines(batch: Batch, form: _Form, items: Sequence[Item], begin: int) -> int:
    """Write as many of one class as fit; gives how many, -1 where the first is for `Encoder.add`."""
    size, count = len(batch.body), len(batch.starts)
    most, room = MAX_BATCH_EVENTS - count, MAX_BATCH_BYTES - size
    seq = batch.first + count
    try:
        return write_lines(batch.body, batch.starts, items, begin, seq, form.stream, form.context, most, room)
    except MemoryError:
        del batch.body[size:], batch.starts[count:]
        raise


def _encode_data(event: object, optional: Callable[[dict[str, Any]], Sequence[Any]]) -> bytes:
    """A null is a None or a float that JSON lacks: where the empty fields do not explain all, look."""
    try:
        raw = orjson.dumps(event, option=orjson.OPT_SERIALIZE_NUMPY)
        nulls = raw.count(b"null")
        if nulls and nulls != optional(event.__dict__).count(None) and not _is_finite(event):
            return orjson.dumps(plain(event))
        return raw
    except TypeError:
        pass
    try:
        return orjson.dumps(plain(event))
    except (TypeError, RecursionError) as error:
        raise WireError(f"{type(event).__name__} cannot be encoded: {error}") from None


def _is_finite(value: Any) -> bool:
    """True if each null in orjson's output is a None: no float of the value is NaN or infinite."""
    if isinstance(value, float):
        return isfinite(value)
    if value is None or isinstance(value, str | int):
        return True
    if isinstance(value, list | tuple):
        return all(x is None or (isfinite(x) if type(x) is float else _is_finite(x)) for x in value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return dataclasses.is_dataclass(value) and all(map(_is_finite, vars(value).values()))


def plain(value: Any) -> Any:
    """Convert a value to dicts, lists and numbers; non-finite floats become words, text valid UTF-8.

    Keys of dicts that are numbers, True, False or None become text, as `json.dumps` has them.

    Raises:
        TypeError: it holds something that JSON cannot say, or an integer over 64 bits.
        RecursionError: it is nested too deep.
    """
    if isinstance(value, float):
        return float(value) if isfinite(value) else _word_for(value)
    if value is None:
        return None
    if isinstance(value, int):
        if MIN_INTEGER <= value <= MAX_INTEGER:
            return value
        raise TypeError("an integer over 64 bits cannot be written")
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return [x if x is None or (type(x) is float and isfinite(x)) else plain(x) for x in value]
    if isinstance(value, dict):
        return {_key_for(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in vars(value).items()}  # a field that was left out stays so
    if type(value).__module__ == "numpy":
        return plain(value.tolist())
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _key_for(key: Any) -> str:
    made = plain(key)
    if isinstance(made, str):
        return made
    if made is None or isinstance(made, bool):
        return {None: "null", True: "true", False: "false"}[made]
    if isinstance(made, int | float):
        return str(made)
    raise TypeError(f"a {type(key).__name__} has no form as a key in JSON")


def _word_for(value: float) -> str:
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


class _Envelope(Struct):
    seq: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    stream: str
    ts: Annotated[int, Meta(ge=0, le=MAX_TIME)]
    type: str
    data: msgspec.Raw
    tv: int = 1
    ctx: Context = msgspec.field(default_factory=Context)


_envelope = msgspec.json.Decoder(_Envelope, strict=False)
_data: dict[str, msgspec.json.Decoder[Any]] = {}


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

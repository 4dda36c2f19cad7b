"""The compiled writer of lines: the same bytes as the encoder in Python, or nothing."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper_overwatch.protocol.codec import json_lines
from esper_overwatch.protocol.codec.json_lines import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, Batch, Encoder
from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.vocabulary import LEVELS, STREAMS
from tests.extensions import build_extension
from tests.protocol.values import events_of


class Item(NamedTuple):
    """An event as the I/O thread takes it from its queue."""

    event: object
    ctx: ev.Context = ev.Context()
    env: int | None = None
    ns: int = 1_234_567


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The writer that is installed, or one built for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        if json_lines.write_lines is None:
            built = build_extension("_line_writer", tmp_path_factory.mktemp("built"))
            patch.setattr(json_lines, "write_lines", built.write_lines)
        yield


def write_all(items: list[Item]) -> list[Batch]:
    """Batches of these items; those that cannot be encoded are left out."""
    encoder, at = Encoder(dict.fromkeys(STREAMS, 0)), 0
    while at < len(items):
        try:
            batch, count = encoder.extend(items, at)
        except WireError:
            count = 1
        else:
            assert batch.to_ts == items[at + count - 1].ns // 1000
        at += count
    return encoder.take()


def write_in_python(items: list[Item]) -> list[Batch]:
    """Write lines without the compiled writer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "write_lines", None)
        return write_all(items)


def lines(batches: list[Batch]) -> dict[str, list[bytes]]:
    """All lines by stream; the numbers that the batches give them are checked."""
    found: dict[str, list[bytes]] = {}
    for batch in batches:
        of_stream = found.setdefault(batch.stream, [])
        assert batch.first == len(of_stream) + 1
        of_stream += [batch.line(index) for index in range(len(batch))]
        assert batch.last == len(of_stream)
        assert bytes(batch.body) == b"".join(batch.line(index) + b"\n" for index in range(len(batch)))
    return found


contexts = st.builds(
    ev.Context,
    round=st.integers(0, 2**31),
    level=st.sampled_from(LEVELS),
    env=st.none() | st.integers(0, 4096),
)


@pytest.mark.parametrize("type_", sorted(ev.EVENTS))
def test_compiled_lines_equal_those_of_python(type_: str) -> None:
    env = st.none() | st.integers(0, 9)
    item = st.builds(Item, events_of(type_), contexts, env, st.integers(0, 2**62))

    @settings(max_examples=20, database=None)
    @given(st.lists(item, max_size=4).map(lambda items: [one for one in items for _ in range(2)]))
    def compare(items: list[Item]) -> None:
        assert lines(write_all(items)) == lines(write_in_python(items))

    compare()


def test_digits_of_all_magnitudes_equal_those_of_orjson() -> None:
    bits = random.Random(5)
    values = [struct.unpack("<d", bits.randbytes(8))[0] for _ in range(50_000)]
    values += [sign * 10.0**exponent for exponent in range(-323, 309) for sign in (1, -1)]
    values += [bits.random() * 10.0 ** bits.randint(-8, 20) for _ in range(50_000)]
    values += [float(2**n + step) for n in range(70) for step in (-1, 0, 1)]
    finite = [value for value in values if value - value == 0.0]
    (batch,) = write_all([Item(ev.CommandDone(id="1", method="m", result={"x": finite}, seconds=0.0))])
    assert b'"x":' + orjson.dumps(finite) in batch.body


strange = [
    np.float64(0.5),
    np.arange(3),
    2**63,
    2**64,
    True,
    {"nested": [1, (2.5, None), {"a": "b"}]},
    {3: "a key that is no text"},
    {"a\udcffb": 1},
    "a\udcffb",
    'to "escape"\n',
    {"key\\": 1},
    {"a key that is longer than those that are remembered": 1},
    {1, 2},
    object(),
    json_lines.Unknown("a", b"b"),
    float("nan"),
]


@pytest.mark.parametrize("depth", [0, 10, 40])
def test_what_is_rare_is_written_as_in_python(depth: int) -> None:
    items = []
    for value in strange:
        nested: Any = value
        for level in range(depth):
            nested = [nested] if level % 2 else {"a": nested}
        items += [
            Item(ev.CommandDone(id="1", method="m", result={"x": x}, seconds=0.5)) for x in (1, nested, 2)
        ]
    assert lines(write_all(items)) == lines(write_in_python(items))


def test_classes_in_turn_share_the_batches_of_their_streams() -> None:
    update = ev.RoundStarted(rounds=1)
    mark = ev.Mark(text="a", client="b", uid=None, pid=None)
    sample = ev.LogLine(level="INFO", logger="x", message="y")
    items = [Item(event) for event in (update, update, mark, update, sample, sample, mark)]
    batches = write_all(items)
    assert lines(batches) == lines(write_in_python(items))
    assert [(batch.stream, len(batch)) for batch in batches] == [("life", 4), ("log", 2), ("life", 1)]


def test_batches_end_at_their_limits() -> None:
    small = [Item(ev.RoundStarted(rounds=n)) for n in range(2 * MAX_BATCH_EVENTS + 1)]
    assert [len(batch) for batch in write_all(small)] == [MAX_BATCH_EVENTS, MAX_BATCH_EVENTS, 1]
    sizes = [10, 100_000, 100_000, 100_000, 300_000, 10, 10]
    large = [Item(ev.LogLine(level="INFO", logger="x", message="y" * size)) for size in sizes]
    batches = write_all(large)
    assert lines(batches) == lines(write_in_python(large))
    assert [len(batch) for batch in batches] == [3, 1, 1, 2]
    assert all(len(batch.body) <= MAX_BATCH_BYTES for batch in batches if len(batch) > 1)


def test_refused_event_takes_no_number_among_others() -> None:
    bad = ev.CommandDone(id="1", method="m", result={"x": object()}, seconds=0.0)
    items = [Item(ev.RoundStarted(rounds=1)), Item(bad), Item(bad), Item(ev.RoundStarted(rounds=2))]
    (written,) = lines(write_all(items)).values()
    assert [json_lines.decode_line(line).data.rounds for line in written] == [1, 2]

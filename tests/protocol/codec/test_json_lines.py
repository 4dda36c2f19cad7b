"""Events as lines, and the batches that hold them."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.codec.json_lines import (
    Encoder,
    Unknown,
    decode_line,
    encode_event,
)
from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.schema import json_schema
from esper_overwatch.protocol.messages.vocabulary import LEVELS, STREAMS
from tests.protocol.values import an_event, events_of, same

contexts = st.builds(
    ev.Context,
    round=st.integers(0, 2**31),
    epoch=st.integers(0, 2**31),
    level=st.sampled_from(LEVELS),
    env=st.none() | st.integers(0, 4096),
)
_validators = {
    type_: jsonschema.Draft202012Validator({**schema, "$defs": json_schema()["$defs"]})
    for type_, schema in json_schema()["events"].items()
}


@pytest.mark.parametrize("type_", sorted(ev.EVENTS))
def test_what_goes_in_fits_the_schema_and_comes_out_equal(type_: str) -> None:
    @given(events_of(type_), contexts, st.integers(1, 2**53), st.integers(0, 2**53))
    def round_trip(event: object, ctx: ev.Context, seq: int, ts: int) -> None:
        line = encode_event(seq, ts, ctx, event)
        assert b"\n" not in line
        plain = json.loads(line, parse_constant=pytest.fail)
        assert not list(_validators[type_].iter_errors(plain["data"]))
        back = decode_line(line)
        assert (back.seq, back.ts, back.type, back.ctx) == (seq, ts, type_, ctx)
        assert back.stream == ev.EVENTS[type_].stream
        assert same(event, back.data), (event, back.data)

    round_trip()


def test_absent_and_not_a_number_stay_apart() -> None:
    event = an_event(ev.Drift, norm=[None, float("nan"), float("inf"), float("-inf")])
    line = encode_event(1, 2, ev.Context(), event)
    assert json.loads(line)["data"]["norm"] == [None, "NaN", "Infinity", "-Infinity"]
    norm = decode_line(line).data.norm
    assert norm[0] is None
    assert np.isnan(norm[1])
    assert norm[2:] == [float("inf"), float("-inf")]


@pytest.mark.parametrize("loss", [0.5, float("nan")])
def test_field_left_out_stays_so_beside_any_number(loss: float) -> None:
    update = an_event(ev.PPOUpdate, policy_loss=loss)
    assert "limits" not in json.loads(encode_event(1, 2, ev.Context(), update))["data"]


@pytest.mark.parametrize("unmeasured", [0, 1, 3])
@pytest.mark.parametrize("name", ["cpu_percent", "gpu_percent"])
def test_empty_fields_hide_no_value_that_json_lacks(name: str, unmeasured: int) -> None:
    event = an_event(ev.SystemSample, gpu_percent=4.0, gpu_memory=5, gpu_memory_total=6, gpu_celsius=7.0)
    for empty in ("gpu_memory", "gpu_memory_total", "gpu_celsius")[:unmeasured]:
        setattr(event, empty, None)
    setattr(event, name, float("nan"))
    back = decode_line(encode_event(1, 2, ev.Context(), event)).data
    assert same(event, back), back


def test_text_about_null_is_text() -> None:
    event = ev.LogLine(level="INFO", logger="x", message="null, and null")
    assert decode_line(encode_event(1, 2, ev.Context(), event)).data == event


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("contiguous", [True, False])
def test_numpy_columns_are_lists_on_the_wire(dtype: type, contiguous: bool) -> None:
    whole = np.array([[0.5, np.nan], [np.inf, -0.0]], dtype=dtype)
    column = whole[0] if contiguous else whole[:, 1]
    event = an_event(ev.Drift, norm=column, norm_ema=[dtype(0.25)], norm_drift=np.arange(2))
    back = decode_line(encode_event(1, 2, ev.Context(), event)).data
    assert same(back.norm, column.tolist())
    assert back.norm_ema == [0.25]
    assert back.norm_drift == [0.0, 1.0]


@pytest.mark.parametrize("value", [{1, 2}, object(), 2**64, b"bytes"])
def test_value_outside_json_is_an_error_naming_its_type(value: object) -> None:
    event = ev.CommandDone(id="1", method="pause", result={"value": value}, seconds=0.0)
    with pytest.raises(WireError, match="CommandDone cannot be encoded"):
        encode_event(1, 2, ev.Context(), event)


def test_text_that_is_no_utf8_is_escaped() -> None:
    line = encode_event(1, 2, ev.Context(), ev.LogLine(level="INFO", logger="x", message="a\udcffb"))
    assert decode_line(line).data.message == "a\\udcffb"


def test_a_type_of_tomorrow_is_kept() -> None:
    line = b'{"seq":7,"stream":"life","ts":5,"type":"seed.sang","tv":3,"ctx":{"round":1},"data":{"a":[1]}}'
    event = decode_line(line)
    assert event.data == Unknown("seed.sang", b'{"a":[1]}')
    assert (event.seq, event.tv, event.stream, event.line) == (7, 3, "life", line)


def test_a_field_of_tomorrow_is_ignored() -> None:
    line = encode_event(1, 2, ev.Context(), ev.RoundStarted(rounds=3))
    assert decode_line(line[:-2] + b',"colour":"red"}}').data == ev.RoundStarted(rounds=3)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[1]",
        b"null",
        b"\x00" * 40,
        b'{"seq":1}',
        b"\xff\xfe",
        b'{"seq":1,' + b"[" * 100_000,
        b'{"seq":"x","stream":"life","ts":5,"type":"log","ctx":{},"data":{}}',
        b'{"seq":1,"stream":"life","ts":5,"type":"round.started","ctx":{},"data":{"rounds":"many"}}',
        b'{"seq":1,"stream":"life","ts":5,"type":"round.started","ctx":{},"data":{}}',
    ],
)
def test_a_malformed_line_is_a_wire_error(line: bytes) -> None:
    with pytest.raises(WireError, match="not an event"):
        decode_line(line)


def test_a_context_that_changes_is_told_with_the_next_event() -> None:
    encoder = Encoder(dict.fromkeys(STREAMS, 0))
    given = [
        (ev.Context(round=1), None, ev.RoundStarted(rounds=1)),
        (ev.Context(round=2), None, ev.RoundStarted(rounds=1)),
        (ev.Context(round=2, env=3), None, ev.Mark(text="a", client="b", uid=None, pid=None)),
        (ev.Context(round=2, env=3), 4, ev.Mark(text="a", client="b", uid=None, pid=None)),
        (ev.Context(round=2, level="DEBUG", rank=1), None, ev.RoundStarted(rounds=1)),
    ]
    batches = [encoder.add(n, ctx, event, env) for n, (ctx, env, event) in enumerate(given)]
    lines = [batches[0].line(n) for n in range(len(given))]
    expected = [ctx if env is None else dataclasses.replace(ctx, env=env) for ctx, env, _ in given]
    assert [decode_line(line).ctx for line in lines] == expected
    assert lines == [encode_event(n + 1, n, c, given[n][2]) for n, c in enumerate(expected)]


def test_every_event_names_its_fields_in_words() -> None:
    for spec in ev.EVENTS.values():
        assert dataclasses.is_dataclass(spec.cls)
        assert spec.cls.__doc__, f"{spec.type} has no description"

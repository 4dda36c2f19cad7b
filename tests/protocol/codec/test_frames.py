"""Frames around events on the wire: batches, heartbeats, replies."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.codec.frames import (
    TOPICS,
    decode_batch,
    decode_heartbeat,
    decode_reply,
    encode_batches,
    encode_heartbeat,
    encode_reply,
)
from esper_overwatch.protocol.codec.json_lines import (
    MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS,
    Encoder,
    decode_line,
    encode_event,
)
from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.commands import ErrorBody, Reply, ReplyMeta
from esper_overwatch.protocol.messages.headers import Heartbeat, TrainerBeat
from esper_overwatch.protocol.messages.vocabulary import STREAMS


@given(st.binary(max_size=200))
def test_no_bytes_break_the_decoders(raw: bytes) -> None:
    for decode in (decode_line, decode_heartbeat, decode_reply, lambda raw: decode_batch(raw, raw)):
        with pytest.raises(WireError):
            decode(raw)  # type: ignore[operator]


@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(0, 20)), max_size=600), st.integers(1, 10**9))
def test_batches_hold_every_line_once_within_the_limits(parts: list[tuple[int, int]], first: int) -> None:
    encoder, lines = Encoder(dict.fromkeys(STREAMS, first - 1)), []
    for size, between in parts:
        event = ev.LogLine(level="INFO", logger="x", message="x" * size)
        lines.append(encode_event(first + len(lines), 5, ev.Context(), event))
        encoder.add(5, ev.Context(), event)
        if not between:
            encoder.add(5, ev.Context(), ev.RoundStarted(rounds=1))
    batches = encoder.take()
    assert all(one.stream != other.stream or len(one) > 1 for one, other in itertools.pairwise(batches))
    seen = []
    log = [batch for batch in batches if batch.stream == "log"]
    for topic, header, body in encode_batches(log, run="r", boot="b", ts=9, dropped=4):
        h, found = decode_batch(bytes(header), bytes(body))
        assert (topic, h.stream, h.run, h.boot) == (TOPICS["log"], "log", "r", "b")
        assert (h.ts, h.dropped) == (9, 4)
        assert len(found) <= MAX_BATCH_EVENTS
        assert len(body) <= MAX_BATCH_BYTES or len(found) == 1
        seen += list(zip(range(h.first, h.last + 1), found, strict=True))
    assert seen == list(enumerate(lines, first))


def test_a_batch_is_as_full_as_it_may_be() -> None:
    def log(size: int) -> ev.LogLine:
        return ev.LogLine(level="INFO", logger="x", message="x" * size)

    encoder = Encoder(dict.fromkeys(STREAMS, 0))
    for _ in range(600):
        encoder.add(5, ev.Context(), log(0))
    assert [len(batch) for batch in encoder.take()] == [256, 256, 88]
    two_empty_lines = 2 * len(encode_event(100, 5, ev.Context(), log(0))) + 1
    for excess in (0, 1):
        encoder = Encoder(dict.fromkeys(STREAMS, 99))
        encoder.add(5, ev.Context(), log(1000))
        encoder.add(5, ev.Context(), log(MAX_BATCH_BYTES - two_empty_lines - 1000 + excess))
        batches = encoder.take()
        sent = encode_batches(batches, run="r", boot="b", ts=9, dropped=0)
        assert len(batches) == len(sent) == 1 + excess
        assert sum(len(frames[2]) for frames in sent) == MAX_BATCH_BYTES


def test_a_batch_that_lies_about_itself_is_refused() -> None:
    encoder = Encoder(dict.fromkeys(STREAMS, 0))
    for _ in range(3):
        encoder.add(5, ev.Context(), ev.RoundStarted(rounds=1))
    ((_, header, body),) = encode_batches(encoder.take(), run="r", boot="b", ts=9, dropped=0)
    body = bytes(body)
    for wrong in (body + b"\n{}", body[:3], b""):
        with pytest.raises(WireError, match="batch"):
            decode_batch(bytes(header), wrong)


def test_heartbeat_round_trip() -> None:
    heartbeat = Heartbeat(
        v=1,
        run="r",
        boot="b",
        ts=1,
        last={"life": 4},
        dropped={"log": 2},
        trainer=TrainerBeat("PAUSED", 3, 7, 250),
        clients=2,
        bye="done",
    )
    assert decode_heartbeat(encode_heartbeat(heartbeat)[1]) == heartbeat


def test_a_reply_has_either_a_result_or_an_error() -> None:
    meta = ReplyMeta(boot="b", ts=1)
    good = json.loads(encode_reply(Reply(id="1", meta=meta, result={"x": float("nan")})))
    assert good == {
        "jsonrpc": "2.0",
        "id": "1",
        "result": {"x": "NaN"},
        "meta": {"boot": "b", "ts": 1, "replayed": False},
    }
    bad = json.loads(encode_reply(Reply(id=None, meta=meta, error=ErrorBody(-32700, "no"))))
    assert "result" not in bad
    assert bad["id"] is None

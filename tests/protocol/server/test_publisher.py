"""The ring of newest lines, and what a tick makes of the queues."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.codec.frames import Frames, decode_batch
from esper_overwatch.protocol.codec.json_lines import Encoder, decode_line
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.vocabulary import STREAMS
from esper_overwatch.protocol.server import publisher
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.protocol.server.publisher import Publisher, Ring
from tests.batches import batches_of
from tests.protocol.harness import until


@given(
    batches=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8), min_size=1, max_size=12),
    bounds=st.tuples(st.integers(1, 20), st.integers(1, 4000)),
)
def test_a_ring_is_the_newest_batches_within_its_bounds(
    batches: list[list[int]], bounds: tuple[int, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publisher, "MAX_RING_EVENTS", bounds[0])
        patch.setattr(publisher, "MAX_RING_BYTES", bounds[1])
        ring, encoder, written = Ring(), Encoder(dict.fromkeys(STREAMS, 0)), []
        for sizes in batches:
            for size in sizes:
                encoder.add(5, ev.Context(), ev.LogLine(level="INFO", logger="x", message="x" * size))
            new = encoder.take()
            written += new
            ring.extend(new)
    lines = [batch.line(n) for batch in written for n in range(len(batch))]
    kept = len(lines) - len(ring)
    first = ring.first
    assert first == (kept + 1 if len(ring) else None)
    whole = ring.range(first, len(lines), limit=10**6) if first else []
    assert whole == list(enumerate(lines[kept:], kept + 1))
    assert len(ring) <= bounds[0]
    assert sum(len(line) + 1 for _, line in whole) <= bounds[1]
    one_more = lines[max([batch.first for batch in written if batch.first <= kept], default=1) - 1 :]
    assert not kept or len(one_more) > bounds[0] or sum(len(line) + 1 for line in one_more) > bounds[1]


def test_ring_range_ends_at_its_number_or_bytes() -> None:
    ring = Ring()
    parts = [batches_of([ev.RoundStarted(rounds=n)] * 5, first) for n, first in ((1, 11), (2, 16))]
    for part in parts:
        ring.extend(part)
    lines = [batch.line(n) for part in parts for batch in part for n in range(5)]
    assert ring.range(13, 15, limit=1000) == list(zip((13, 14, 15), lines[2:5], strict=True))
    assert ring.range(14, 17, limit=1000) == list(zip((14, 15, 16, 17), lines[3:7], strict=True))
    assert ring.range(13, 99, limit=len(lines[0]) + 2) == [(13, lines[2]), (14, lines[3])]
    ring.clear()
    assert ring.first is None


def test_sent_events_are_journalled_and_unencodable_ones_take_no_number(tmp_path: Path) -> None:
    emitter, sent = Emitter(), []
    journal = Journal(tmp_path / "events.jsonl")

    def send(frames: Frames) -> None:
        assert bytes(frames[2]) + b"\n" in journal.path.read_bytes(), "written before it is sent"
        sent.append(frames)

    one = Publisher(emitter, journal, run="r", boot="b", send=send, note=lambda *_: None)
    for env, value in enumerate((1, object(), 2)):
        done = ev.CommandDone(id="1", method="pause", result={"value": value}, seconds=0.0)
        emitter.emit(done, env=env)
    one.tick()
    journal.close()
    ((_, header, body),) = sent
    lines = decode_batch(header, bytes(body))[1]
    assert [decode_line(line).data.result["value"] for line in lines] == [1, 2]
    assert [decode_line(line).ctx.env for line in lines] == [0, 2]
    assert [(e.seq, e.line) for e in read(journal.path)] == list(enumerate(lines, 1))
    assert one.unencodable == 1
    assert one.range("life", 1, 2, limit=10**6) == list(enumerate(lines, 1))


@pytest.mark.parametrize(
    ("event", "seconds"),
    [
        (ev.RoundStarted(rounds=1), 0.0),
        (ev.LogLine(level="INFO", logger="x", message=""), publisher.SYNC_SECONDS),
    ],
)
def test_life_is_synced_at_once_the_rest_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: object, seconds: float
) -> None:
    clock = SimpleNamespace(
        now=5.0, monotonic=lambda: clock.now, monotonic_ns=time.monotonic_ns, time_ns=time.time_ns
    )
    monkeypatch.setattr(publisher, "time", clock)
    emitter, journal = Emitter(), Journal(tmp_path / "events.jsonl")
    one = Publisher(emitter, journal, run="r", boot="b", send=lambda _: None, note=lambda *_: None)
    emitter.emit(event)
    one.tick()
    clock.now += seconds
    until(lambda: one.tick() or journal.synced)
    journal.close()

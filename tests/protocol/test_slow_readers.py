"""Readers that cannot keep up, bursts, and wires that lose: in the end all hold the journal's events."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.server import sockets
from esper_overwatch.protocol.server.server import Server

from .harness import Reader, check_against_journal, load
from .relay import Relay


def test_slow_reader_misses_nothing_and_blocks_no_one(server: Server, reader: Callable[..., Reader]) -> None:
    sleepy, brisk = reader("alpha"), reader("alpha")
    for each in (sleepy, brisk):
        each.read(lambda each=each: each.subscriber.state == "live")
    with load(server, 5000):
        for _ in range(8):
            sleepy.items += sleepy.subscriber.drain(0.001)
            time.sleep(0.25)
    server.flush()
    newest = dict(server._publisher.last)
    for each in (brisk, sleepy):
        each.read(lambda each=each: all(each.last(s) == newest[s] for s in ("life", "log")))
        check_against_journal(server, each)
        assert each.subscriber.stats.skipped == 0
        assert len(each.resets) == 1


@pytest.mark.slow
def test_burst_of_60_000_reaches_journal_and_reader(server: Server, reader: Callable[..., Reader]) -> None:
    one = reader("alpha", streams=("life",))
    one.read(lambda: one.subscriber.state == "live")
    for n in range(60_000):
        server.emitter.emit(ev.RoundStarted(rounds=n))
    one.read(lambda: one.last("life") == 60_001)
    assert server.emitter.dropped["life"] == 0
    assert one.subscriber.stats.skipped == 0
    server.close()
    rounds = [e.data.rounds for e in read(server.run.events) if e.type == "round.started"]
    assert rounds == list(range(60_000))
    assert [e.data.rounds for e in one.events if e.type == "round.started"] == rounds


EVENTS: dict[str, Callable[[int], object]] = {
    "life": lambda n: ev.RoundStarted(rounds=n),
    "log": lambda n: ev.LogLine(level="INFO", logger="x", message=str(n)),
}
emissions = st.lists(st.tuples(st.sampled_from(["life", "log"]), st.integers(1, 400)), min_size=1, max_size=8)


@pytest.mark.usefixtures("quick_heartbeat")
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0.0, 0.5), st.integers(0, 2**16), emissions)
def test_reader_equals_journal_with_queues_of_one_and_losses(
    server: Server, monkeypatch: pytest.MonkeyPatch, loss: float, seed: int, bursts: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(sockets, "RECEIVE_HIGH_WATER", 1)
    with Relay("alpha", loss, seed, queue=1):
        one = Reader("alpha")
        try:
            one.read(lambda: one.subscriber.state == "live")
            joined = dict(server._publisher.last)
            for stream, count in bursts:
                for n in range(count):
                    server.emitter.emit(EVENTS[stream](n))
                server.flush()
            newest = dict(server._publisher.last)
            one.read(lambda: all(one.last(stream) == newest[stream] for stream in EVENTS))
            journal = {(e.stream, e.seq): e.line for e in read(server.run.events)}
            held = {(e.stream, e.seq): e.line for e in one.events}
            assert len(held) == len(one.events), "none came twice"
            assert held.items() <= journal.items()
            due = {(s, n) for s in EVENTS for n in range(joined[s] + 1, newest[s] + 1)}
            assert len(due) == sum(count for _, count in bursts)
            assert due <= held.keys()
        finally:
            one.subscriber.close()

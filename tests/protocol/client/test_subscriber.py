"""Readers over real sockets: what they hold is what the journal holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
import zmq

from esper_overwatch.protocol.client import connection, subscriber
from esper_overwatch.protocol.client.items import Item, LinkChanged, Reset
from esper_overwatch.protocol.client.subscriber import Subscriber
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.vocabulary import Stream
from esper_overwatch.protocol.runs import RunFolder, find_run
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import Reader, Start, check_against_journal, load, until
from tests.protocol.relay import Relay

pytestmark = pytest.mark.usefixtures("quick_heartbeat")


@pytest.mark.slow
def test_joining_under_load_leaves_no_hole(server: Server, reader: Callable[..., Reader]) -> None:
    with load(server, 5000):
        readers = []
        for _ in range(20):
            one = reader()
            one.read(lambda one=one: len(one.events) > 300)
            readers.append(one)
            for other in readers:  # whoever is 50,000 events behind would take a new snapshot
                catch_up(other, server._publisher.last["log"])
    server.close()
    for one in readers:
        one.read(lambda one=one: one.subscriber.state == "ended" and one.subscriber.is_caught_up)
        assert len(one.resets) == 1
        check_against_journal(server, one)
        assert one.subscriber.stats.skipped == 0


def catch_up(one: Reader, newest: int) -> None:
    """Read up to this line of `log`, under a load that goes on."""
    found: list[Item] = []
    while not any(isinstance(item, Event) and item.stream == "log" and item.seq >= newest for item in found):
        found = one.subscriber.drain(0.2)
        one.items += found


@pytest.mark.parametrize("streams", [("life",), ("log", "metric")])
def test_only_the_streams_asked_for(
    server: Server, reader: Callable[..., Reader], streams: tuple[Stream, ...]
) -> None:
    one = reader(streams=streams)
    with load(server, 500):
        one.read(lambda: len(one.events) > 150)
    server.close()
    one.read(lambda: one.subscriber.state == "ended" and one.subscriber.is_caught_up)
    assert {e.stream for e in one.events} <= set(streams)
    check_against_journal(server, one, streams=streams[:1])


def test_the_snapshot_tells_a_late_joiner_what_matters(server: Server, reader: Callable[..., Reader]) -> None:
    server.emitter.set_clock(round=3, epoch=2)
    server.emitter.emit(
        ev.Anomaly(kind="stalled", source="env02", severity="warning", active=True, value=float("nan"))
    )
    for i in range(600):
        server.emitter.emit(ev.LogLine(level="INFO", logger="x", message=str(i)))
    until(lambda: server._publisher.last["log"] == 600)
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    kinds = [e.type for e in one.events]
    assert kinds.count("anomaly") == 1
    assert kinds.count("log") == ev.EVENTS["log"].keep
    assert one.events[1].ctx.round == 3
    assert [type(item) for item in one.items[:2]] == [LinkChanged, Reset]
    assert one.subscriber.hello is not None
    assert one.subscriber.hello["name"] == "alpha"
    assert one.subscriber.age is not None


def test_a_subscriber_may_be_there_first(start: Start, reader: Callable[..., Reader]) -> None:
    one = reader()
    assert one.subscriber.drain() == []
    assert one.subscriber.state == "searching"
    assert one.subscriber.problem == "no live run found; start one with: esper-daemon start"
    named = reader("beta")
    named.subscriber.drain()
    assert "no run beta; there are: none" in str(named.subscriber.problem)
    start("alpha").emitter.emit(ev.RoundStarted(rounds=1))
    start("beta").emitter.emit(ev.RoundStarted(rounds=2))
    for each, name in ((one, None), (named, "beta")):
        each.read(lambda each=each: each.subscriber.state == "live" and each.events)
        assert each.subscriber.run is not None
        assert name in (None, each.subscriber.run.name)
    assert one.states == ["connecting", "live"]


@pytest.mark.parametrize(("loss", "seed"), [(0.3, 1), (0.8, 2)])
def test_whatever_the_wire_loses_is_repaired(
    server: Server, reader: Callable[..., Reader], loss: float, seed: int
) -> None:
    with Relay("alpha", loss, seed) as relay:
        one = reader()
        with load(server, 3000):
            one.read(lambda: len(one.events) > 3000)
        until(lambda: not any(server.emitter.waiting.values()))
        last = server._publisher.last
        one.read(lambda: one.last("life") == last["life"] and one.last("log") == last["log"])
        assert relay.dropped > 5
        assert one.subscriber.stats.gaps > 0
        assert one.subscriber.stats.repaired > 0
        assert one.subscriber.stats.skipped == 0
        check_against_journal(server, one)


def test_a_lost_tail_is_found_by_the_heartbeat(server: Server, reader: Callable[..., Reader]) -> None:
    with Relay("alpha", 0.0) as relay:
        one = reader()
        one.read(lambda: one.subscriber.state == "live")
        relay.loss = 1.0
        for i in range(50):
            server.emitter.emit(ev.RoundStarted(rounds=i))
        one.read(lambda: one.last("life") == 51)
        assert one.subscriber.stats.repaired == 50
        assert relay.dropped > 0


def test_too_far_behind_starts_over_and_says_how_much(
    server: Server, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "MAX_EVENTS_BEHIND", 100)
    with Relay("alpha", 0.0) as relay:
        one = reader()
        one.read(lambda: one.subscriber.state == "live")
        relay.loss = 1.0
        for i in range(400):
            server.emitter.emit(ev.RoundStarted(rounds=i))
        one.read(lambda: len(one.resets) == 2)
        one.read(lambda: one.last("life") == 401)
        behind = re.search(r"(\d+) events behind on life", one.resets[1])
        assert behind is not None
        assert 100 < int(behind[1]) <= 400, "a heartbeat may have come amid them"
        assert one.subscriber.stats.skipped == int(behind[1])


def test_a_range_that_is_gone_starts_over(server: Server, reader: Callable[..., Reader]) -> None:
    with Relay("alpha", 0.0) as relay:
        one = reader()
        one.read(lambda: one.subscriber.state == "live")
        relay.loss = 1.0
        for i in range(9):
            server.emitter.emit(ev.RoundStarted(rounds=i))
        ring = server._publisher.rings["life"]
        until(lambda: len(ring) == 10)
        ring.clear()
        os.truncate(server.run.events, 0)
        one.read(lambda: len(one.resets) == 2)
        assert "no longer held" in one.resets[1]
        one.read(lambda: one.last("life") == 10)


def test_tail_lost_at_the_end_comes_from_the_journal(server: Server, reader: Callable[..., Reader]) -> None:
    with Relay("alpha", 0.0) as relay:
        one = reader()
        one.read(lambda: one.subscriber.state == "live")
        relay.loss = 1.0
        for i in range(70):
            server.emitter.emit(ev.RoundStarted(rounds=i))
        server.close("done")
        one.items += one.subscriber.items()
        assert one.last("life") == 71
        assert one.subscriber.stats.repaired == 70
        assert one.subscriber.stats.skipped == 0
        check_against_journal(server, one, streams=("life",))


def test_malformed_messages_are_counted_and_passed_over(
    server: Server, reader: Callable[..., Reader]
) -> None:
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    for frames in ([b"1/life"], [b"1/life", b"{", b""], [b"1/hb", b"\xff"], [b"1/life", b"", b"", b""]):
        server._publisher._send(frames)
    server.emitter.emit(ev.RoundStarted(rounds=1))
    one.read(lambda: one.last("life") == 2)
    assert one.subscriber.stats.bad == 4
    assert one.subscriber.stats.last_bad


def test_iterating_ends_with_the_run_or_with_silence(server: Server) -> None:
    with Subscriber() as subscriber:
        assert [e.type for e in subscriber.events(timeout=2.0)] == ["run.state"]
    with Subscriber() as subscriber:
        events = subscriber.events()
        assert next(events).type == "run.state"
        server.close("over")
        assert list(events) == []
    assert subscriber.state == "ended"


def test_another_protocol_is_told_and_not_joined(
    server: Server, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PROTOCOL_VERSION", 2)
    one = reader()
    one.read(lambda: one.subscriber.problem)
    assert one.subscriber.problem == "the daemon does not speak protocol 2: protocol 1"
    assert not one.events


def test_a_starting_run_is_waited_for(reader: Callable[..., Reader]) -> None:
    with RunFolder.claim("alpha"):
        one = reader()
        one.read(lambda: one.subscriber.problem == "run alpha is starting")
        assert one.subscriber.state == "searching"


def test_a_frozen_neighbour_does_not_hold_a_reader_back(server: Server) -> None:
    context = zmq.Context()
    frozen = context.socket(zmq.SUB)
    frozen.set(zmq.RCVHWM, 1)
    frozen.subscribe(b"")
    frozen.connect(find_run().connection.endpoints["ev"])  # type: ignore[union-attr]
    for i in range(5000):
        server.emitter.emit(ev.RoundStarted(rounds=i))
    with Subscriber(streams=("life",)) as subscriber:
        last = 0
        for event in subscriber.events():
            last = event.seq
            if last == 5001:
                break
    context.destroy(linger=0)
    assert last == 5001

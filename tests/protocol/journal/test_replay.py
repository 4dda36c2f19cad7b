"""Replay over the wire out of closed segments, and what is said when they are gone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from esper_overwatch.protocol.journal.reader import JournalRange, read
from esper_overwatch.protocol.journal.writer import JournalLimits
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server import publisher
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import Reader, check_against_journal, load, until
from tests.protocol.raw import Raw


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[JournalLimits], Server]]:
    """A server that holds only the newest twenty events of a stream in memory."""
    monkeypatch.setattr(publisher, "MAX_RING_EVENTS", 20)
    servers: list[Server] = []

    def start(limits: JournalLimits) -> Server:
        server = Server(RunFolder.claim("alpha"), hello={}, limits=limits)
        servers.append(server)
        server.start()
        server.set_state("TRAINING")
        return server

    yield start
    for server in servers:
        server.close()
        server.run.release()


def fill(server: Server, raw: Raw, count: int) -> None:
    """Write log lines, tick by tick, and wait until all segments are compressed."""
    for i in range(count):
        text = random.Random(i).randbytes(250).hex()
        server.emitter.emit(ev.LogLine(level="INFO", logger="x", message=text))
        if i % 50 == 49:
            until(lambda i=i: raw.ask("qry", "status")[0]["result"]["seq"]["log"] == i + 1)
    until(lambda: raw.ask("qry", "status")[0]["result"]["seq"]["log"] == count)
    until(lambda: segments(raw)["not_compressed"] == 0)


def segments(raw: Raw) -> dict[str, int]:
    found: dict[str, int] = raw.ask("qry", "status")[0]["result"]["journal"]["segments"]
    return found


def replayed(raw: Raw, first: int, last: int) -> list[int]:
    seqs: list[int] = []
    more = True
    while more:
        params = {"stream": "log", "first": first + len(seqs), "last": last}
        reply, (body,) = raw.ask("qry", "replay", params=params)
        more = reply["result"]["more"]
        seqs += [json.loads(line)["seq"] for line in body.splitlines()]
    return seqs


def test_replay_reads_closed_segments(start: Callable[[JournalLimits], Server]) -> None:
    server = start(JournalLimits(segment_bytes=30_000))
    with Raw() as raw:
        fill(server, raw, 400)
        assert segments(raw)["closed"] >= 5
        assert segments(raw)["error"] is None
        assert replayed(raw, 1, 400) == list(range(1, 401))
        assert replayed(raw, 77, 190) == list(range(77, 191))


def oldest_of(raw: Raw) -> int:
    """The oldest event of the log that the journal still has."""
    reply, _ = raw.ask("qry", "replay", params={"stream": "log", "first": 1, "last": 5})
    oldest = reply["error"]["data"]["oldest"]
    assert isinstance(oldest, int)
    return oldest


def test_history_reads_closed_segments_down_to_retention(start: Callable[[JournalLimits], Server]) -> None:
    server = start(JournalLimits(segment_bytes=30_000, keep_bytes=50_000))
    with Raw() as raw:
        fill(server, raw, 400)
        until(lambda: segments(raw)["compressed_bytes"] <= 50_000)
        oldest, seqs = -1, [0]
        while oldest != oldest_of(raw):  # a segment may go while the history is read
            oldest, seqs = oldest_of(raw), []
            before, more = 0, True
            while more:
                params = {"stream": "log", "before": before, "bytes": 20_000}
                reply, (body,) = raw.ask("qry", "history", params=params)
                before, more = reply["result"]["first"], reply["result"]["more"]
                seqs[:0] = [json.loads(line)["seq"] for line in body.splitlines()]
    assert seqs == list(range(oldest, 401))
    rest = read(server.run.events, wanted=JournalRange(after={"log": oldest + 50, "life": 10**9}))
    assert [event.seq for event in rest if event.stream == "log"] == seqs[51:]


def test_retention_is_an_event_and_replay_names_the_oldest(
    start: Callable[[JournalLimits], Server],
) -> None:
    server = start(JournalLimits(segment_bytes=30_000, keep_bytes=50_000))
    with Raw() as raw:
        fill(server, raw, 400)
        until(lambda: removed(server))
        until(lambda: segments(raw)["compressed_bytes"] <= 50_000)
        reply, _ = raw.ask("qry", "replay", params={"stream": "log", "first": 1, "last": 5})
        assert reply["error"]["data"]["kind"] == "range_gone"
        oldest, seqs = -1, [0]
        while oldest != oldest_of(raw):  # the newest lines may still close a segment, and so end an old one
            oldest = oldest_of(raw)
            with suppress(ValueError):  # no lines: it has gone between the two questions
                seqs = replayed(raw, oldest, 400)
        assert oldest > 5
        assert seqs == list(range(oldest, 401))
        again, _ = raw.ask("qry", "replay", params={"stream": "log", "first": oldest - 1, "last": oldest})
        assert again["error"]["data"]["oldest"] >= oldest
        until(lambda: oldest - 1 in [one.last["log"] for one in removed(server)])
    assert all(one.bytes > 0 and one.from_ts < one.to_ts for one in removed(server))


def removed(server: Server) -> list[ev.JournalRemoved]:
    """Wait for the events about what retention has removed."""
    return [event.data for event in read(server.run.events) if event.type == "journal.removed"]


def test_a_reader_holds_the_journal_over_many_segments(
    start: Callable[[JournalLimits], Server],
) -> None:
    server = start(JournalLimits(segment_bytes=20_000))
    reader = Reader("alpha")
    try:
        with load(server, 3000):
            reader.read(lambda: reader.last("log") > 2000)
        server.close("done")
        reader.read(lambda: reader.subscriber.state == "ended")
        check_against_journal(server, reader)
    finally:
        reader.subscriber.close()
    assert len(list(server.run.path.joinpath("segments").glob("*.zst"))) > 5

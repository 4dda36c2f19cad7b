"""The query `history`: earlier events from the newest on, thinned, in bounded answers."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.codec.json_lines import decode_line, encode_event
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Context
from esper_overwatch.protocol.server.history import newest_lines_before, thin_lines
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import until
from tests.protocol.raw import Raw


def lines_of(*events: tuple[float, Any, Context]) -> list[tuple[int, bytes]]:
    """Numbered lines of (seconds, event, context)."""
    found = []
    for seq, (seconds, data, ctx) in enumerate(events, start=1):
        found.append((seq, encode_event(seq, int(seconds * 1e6), ctx, data)))
    return found


def sample(rank: int = 0) -> tuple[Any, Context]:
    data = ev.SystemSample(
        cpu_percent=1.0, rss=1, memory_total=2, memory_used=1, load1=0.1, cores=2, disk_free=1
    )
    return data, Context(rank=rank)


def drift(source: str) -> tuple[Any, Context]:
    columns = ("norm", "norm_ema", "norm_drift", "health", "health_ema", "health_drift")
    return ev.Drift(source=[source], **{name: [1.0] for name in columns}), Context()


@given(st.lists(st.integers(0, 300), min_size=1), st.sampled_from([0.0, 1.0, 10.0, 60.0]))
def test_thinned_lines_are_the_newest_of_each_interval(seconds: list[int], interval: float) -> None:
    seconds.sort()
    lines = lines_of(*((at, *sample()) for at in seconds))
    kept = thin_lines(lines, types=(), interval_seconds=interval, limit=1 << 20)
    if interval:
        newest = {int(at // interval): seq for seq, at in enumerate(seconds, start=1)}
        wanted = sorted(newest.values())
    else:
        wanted = [seq for seq, _ in lines]
    assert [decode_line(line).seq for line in kept.lines] == wanted
    assert kept.first == 1


def test_subjects_are_thinned_apart() -> None:
    lines = lines_of(
        (0.1, *sample()),
        (0.2, *sample(rank=1)),
        (0.3, *drift("env00")),
        (0.4, *drift("policy.op")),
        (0.5, *sample()),
    )
    kept = thin_lines(lines, types=(), interval_seconds=10.0, limit=1 << 20)
    assert [decode_line(line).seq for line in kept.lines] == [2, 3, 4, 5]
    kept = thin_lines(lines, types=("drift",), interval_seconds=10.0, limit=1 << 20)
    assert [decode_line(line).seq for line in kept.lines] == [3, 4]


def test_numbers_that_are_logged_apart_are_thinned_apart() -> None:
    steps = [(i / 10, ev.Scalars(step=i, values={"loss": 1.0, "lr": 0.1}), Context()) for i in range(100)]
    seldom = (5.01, ev.Scalars(step=50, values={"test/accuracy": 0.5}), Context())
    lines = lines_of(*sorted([*steps, seldom], key=lambda line: line[0]))
    kept = thin_lines(lines, types=("scalar",), interval_seconds=10.0, limit=1 << 20)
    assert [list(decode_line(line).data.values) for line in kept.lines] == [["test/accuracy"], ["loss", "lr"]]


@given(st.integers(1, 40), st.integers(1, 2_000), st.integers(1_024, 4_096))
def test_answers_joined_are_all_lines(count: int, size: int, limit: int) -> None:
    lines = lines_of(
        *((i, ev.Mark(text="x" * (size if i % 3 else 1), client="me"), Context()) for i in range(count))
    )

    def read(_stream: str, first: int, last: int, *, limit: int) -> list[tuple[int, bytes]]:
        return [line for line in lines if first <= line[0] <= last]

    before, found, answers = count + 1, [], 0
    while before > 1:
        kept = thin_lines(
            newest_lines_before(read, "life", before - 1), types=(), interval_seconds=0.0, limit=limit
        )
        assert sum(map(len, kept.lines)) <= limit or len(kept.lines) == 1
        found[:0] = kept.lines
        before = kept.first
        answers += 1
        assert answers <= count
    assert found == [line for _, line in lines]


def test_history_goes_back_to_the_first_event(server: Server) -> None:
    for i in range(300):
        server.emitter.emit(ev.LogLine(level="INFO", logger="x", message=f"{i} " + "y" * 2_000))
    with Raw() as raw:
        until(lambda: raw.ask("qry", "status")[0]["result"]["seq"]["log"] == 300)
        server._publisher.rings["log"].clear()
        seqs: list[int] = []
        before, answers, more = 0, 0, True
        while more:
            params = {"stream": "log", "before": before, "bytes": 65_536}
            reply, (body,) = raw.ask("qry", "history", params=params)
            result = reply["result"]
            numbers = [json.loads(line)["seq"] for line in body.splitlines()]
            assert len(body) <= 65_536
            assert (result["n"], result["first"]) == (len(numbers), numbers[0])
            seqs[:0] = numbers
            before, more = result["first"], result["more"]
            answers += 1
    assert seqs == list(range(1, 301))
    assert answers >= 9


def test_history_before_the_first_event_is_empty(server: Server) -> None:
    with Raw() as raw:
        reply, (body,) = raw.ask("qry", "history", params={"stream": "trace"})
        assert reply["result"] == {"stream": "trace", "first": 1, "n": 0, "more": False}
        assert body == b""
        reply, (body,) = raw.ask("qry", "history", params={"stream": "life", "before": 1})
        assert (reply["result"]["n"], reply["result"]["more"]) == (0, False)
        for wrong in ({"bytes": 0}, {"interval": -1.0}, {"types": ["x"] * 17}, {"before": -1}):
            reply, _ = raw.ask("qry", "history", params={"stream": "life", **wrong})
            assert reply["error"]["data"]["kind"] == "invalid_params"

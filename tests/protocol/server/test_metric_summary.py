"""The stream for thin links: the newest metric of each type, a few times a second, latest wins."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable

import msgspec
import pytest

from esper_overwatch.protocol.codec.frames import VIEW_TOPIC, decode_view
from esper_overwatch.protocol.codec.json_lines import Encoder, decode_line
from esper_overwatch.protocol.errors import WireError
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.vocabulary import STREAMS
from esper_overwatch.protocol.server.emitter import Emitted
from esper_overwatch.protocol.server.publisher import MetricSummary
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import Reader, until
from tests.protocol.raw import Raw
from tools.message_examples import example


def sample(n: int) -> ev.SystemSample:
    return ev.SystemSample(
        cpu_percent=float(n), rss=1, memory_total=2, memory_used=1, load1=0.0, cores=1, disk_free=1
    )


def drift(n: int) -> ev.Drift:
    column = [float(n)]
    return ev.Drift(
        source=["policy"],
        norm=column,
        norm_ema=column,
        norm_drift=column,
        health=column,
        health_ema=column,
        health_drift=column,
    )


def update() -> ev.PPOUpdate:
    return msgspec.convert(example(ev.PPOUpdate), ev.PPOUpdate)


def test_a_view_holds_the_newest_of_each_type(server: Server) -> None:
    with Raw() as raw:
        socket = raw.subscribe(VIEW_TOPIC)
        until(lambda: server._subscriber_counts[VIEW_TOPIC] == 1)
        for n in range(200):
            server.emitter.emit(sample(n))
            if n % 2 == 0:
                server.emitter.emit(drift(n))
        newest: dict[str, float] = {}
        end = time.monotonic() + 300
        while newest != {"system": 199.0, "drift": 198.0} and time.monotonic() < end:
            topic, header, body = socket.recv_multipart()
            assert topic == VIEW_TOPIC
            decoded, lines = decode_view(header, body)
            assert (decoded.run, decoded.boot) == (server.run.id, server.boot)
            events = [decode_line(line) for line in lines]
            assert len({e.type for e in events}) == len(events), "one of each type"
            assert [e.seq for e in events] == sorted(e.seq for e in events)
            for event in events:
                is_system = isinstance(event.data, ev.SystemSample)
                newest[event.type] = event.data.cpu_percent if is_system else event.data.norm[0]
        assert newest == {"system": 199.0, "drift": 198.0}


def test_views_come_at_most_five_times_a_second(server: Server) -> None:
    stop = threading.Event()

    def work() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            server.emitter.emit(sample(n))
            time.sleep(0.002)

    with Raw() as raw:
        socket = raw.subscribe(VIEW_TOPIC)
        until(lambda: server._subscriber_counts[VIEW_TOPIC] == 1)
        thread = threading.Thread(target=work)
        thread.start()
        try:
            stamps = [decode_view(*socket.recv_multipart()[1:])[0].ts for _ in range(6)]
        finally:
            stop.set()
            thread.join()
    # A view that was held up before it got its stamp seems to come soon before the next one.
    assert statistics.median(b - a for a, b in itertools.pairwise(stamps)) >= 190_000


def test_a_view_sums_up_what_came_between(server: Server) -> None:
    with Raw() as raw:
        socket = raw.subscribe(VIEW_TOPIC)
        until(lambda: server._subscriber_counts[VIEW_TOPIC] == 1)
        views = []
        for first in (0, 100):
            server.emitter.emit(sample(first))
            views.append(decode_view(*socket.recv_multipart()[1:])[0])
        assert views[-1].windows == {}, "one event has no span"
        server.emitter.emit(drift(1))
        for value in (4.0, math.nan, 1.0, 7.0, math.inf):
            server.emitter.emit(dataclasses.replace(sample(0), cpu_percent=value))
        server.emitter.emit(dataclasses.replace(sample(0), cpu_percent=4.0, gpu_celsius=50.0))
        decoded = decode_view(*socket.recv_multipart()[1:])[0].windows
    assert set(decoded) == {"system"}, "a type of which one has come has no window"
    window = decoded["system"]
    assert window.n == 6
    assert (window.min["cpu_percent"], window.mean["cpu_percent"], window.max["cpu_percent"]) == (1, 4, 7)
    assert (window.min["gpu_celsius"], window.mean["memory_total"]) == (50.0, 2.0)
    assert "gpu_percent" not in window.mean, "nothing was measured"


def test_columns_and_flags_have_no_span() -> None:
    view, encoder = MetricSummary(), Encoder(dict.fromkeys(STREAMS, 0))
    for watched in (False, True):
        items = [Emitted(0, update(), None, ev.Context()) for _ in range(2)]
        for item in items:
            batch = encoder.add(0, item.ctx, item.event)
        encoder.take()
        view.extend("ppo.update", items, batch, 0)
        lines, windows = view.take(watched=True)
        assert lines == [batch.line(1)]
        assert bool(windows) == watched
    assert "early_stop" not in windows["ppo.update"].min
    assert "head_entropy" not in windows["ppo.update"].min
    assert windows["ppo.update"].max["epochs"] == update().epochs


def test_a_header_of_an_older_daemon_has_no_windows() -> None:
    header, lines = decode_view(b'{"v":1,"run":"r","boot":"b","ts":1,"n":1}', b"one line")
    assert (header.windows, lines) == ({}, [b"one line"])


def test_nobody_looks_nothing_is_sent(server: Server) -> None:
    with Raw() as raw:
        everything = raw.subscribe(b"1/")
        assert everything.recv_multipart()[0] == b"1/hb", "the subscription is in force"
        server.emitter.emit(sample(1))
        topics = []
        while b"1/metric" not in topics:
            topics.append(everything.recv_multipart()[0])
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            if everything.poll(50):
                topics.append(everything.recv_multipart()[0])
        assert VIEW_TOPIC not in topics


def test_a_thin_reader_has_life_whole_and_the_newest_metrics(
    server: Server, reader: Callable[..., Reader]
) -> None:
    for n in range(50):
        server.emitter.emit(sample(n))
    server.flush()
    thin = reader("alpha", thin=True)
    thin.read(lambda: thin.subscriber.state == "live")
    held = [e.data.cpu_percent for e in thin.events if e.type == "system"]
    assert held == [float(n) for n in range(50)], "the snapshot has the newest sixty"
    for n in range(50, 5000):
        server.emitter.emit(sample(n))
        if n % 100 == 0:
            server.emitter.emit(ev.RoundStarted(rounds=n))
    thin.read(lambda: any(e.type == "system" and e.data.cpu_percent == 4999.0 for e in thin.events))
    thin.read(lambda: thin.last("life") == max(e.seq for e in read(server.run.events) if e.stream == "life"))
    rounds = [e.data.rounds for e in thin.events if e.type == "round.started"]
    assert rounds == list(range(100, 5000, 100))
    samples = [e.data.cpu_percent for e in thin.events if e.type == "system"]
    assert samples == sorted(set(samples)), "none twice, none behind a newer one"
    assert len(samples) < 1000
    assert thin.subscriber.stats.gaps == 0
    assert thin.subscriber.stats.bad == 0


@pytest.mark.parametrize(
    ("header", "body"),
    [(b"", b""), (b"{}", b""), (b'{"v":1,"run":"r","boot":"b","ts":1,"n":2}', b"one line")],
)
def test_what_is_no_view_is_told(header: bytes, body: bytes) -> None:
    with pytest.raises(WireError):
        decode_view(header, body)

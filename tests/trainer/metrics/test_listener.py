"""The port: who may listen where, and what strangers can do to it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from esper_overwatch.trainer.config.load import ConfigError, load
from esper_overwatch.trainer.config.service_options import MetricsConfig
from esper_overwatch.trainer.metrics import listener as listener_module
from esper_overwatch.trainer.metrics.listener import MAX_CONNECTIONS, MetricsListener
from tests.protocol.harness import until


class Answering(Collector):
    """One metric, or the error that it is told to raise."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def collect(self) -> Iterator[Metric]:
        if self.error is not None:
            raise self.error
        yield GaugeMetricFamily("esper_up", "It answers.", value=1.0)


@pytest.fixture
def collector() -> Answering:
    return Answering()


@pytest.fixture
def listener(collector: Answering, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsListener]:
    monkeypatch.setattr(listener_module, "PACE_SECONDS", 0.001)
    listener = MetricsListener(MetricsConfig(listen="127.0.0.1:0"))
    listener.serve(collector)
    yield listener
    listener.close()


def port_of(listener: MetricsListener) -> int:
    return int(listener.address.rpartition(":")[2].partition("/")[0])


def connect(listener: MetricsListener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(listener)), timeout=300)


def scrape(listener: MetricsListener, headers: dict[str, str] | None = None) -> str:
    request = urllib.request.Request(listener.address, headers=headers or {})
    with urllib.request.urlopen(request, timeout=300) as answer:
        text: str = answer.read().decode()
        return text


def send(listener: MetricsListener, garbage: bytes) -> bytes:
    """What comes back until the other side closes."""
    with connect(listener) as connection:
        with contextlib.suppress(OSError):  # it may close before it has read all
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(65536):
                answer += part
        return answer


def threads() -> int:
    return sum(thread.name.endswith("(process_request_thread)") for thread in threading.enumerate())


def test_scrape_has_metrics_of_run_and_process(listener: MetricsListener) -> None:
    text = scrape(listener)
    assert "esper_up 1.0" in text
    assert "process_open_fds" in text
    assert scrape(listener, {"Accept": "application/openmetrics-text; version=1.0.0"}).endswith("# EOF\n")


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00\xff" * 5000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"a" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 5000,
        b"POST /metrics HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /?name[]=%ff%00 HTTP/1.0\r\nAccept: \xe9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_garbage_gets_an_end_and_scrapes_go_on(
    listener: MetricsListener, garbage: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = send(listener, garbage)
    assert b"Traceback" not in answer
    assert "esper_up 1.0" in scrape(listener)
    assert capfd.readouterr().err == ""


def test_many_silent_connections_do_not_keep_a_scrape_out(listener: MetricsListener) -> None:
    silent = [connect(listener) for _ in range(5 * MAX_CONNECTIONS)]
    try:
        assert "esper_up 1.0" in scrape(listener)
        until(lambda: threads() <= MAX_CONNECTIONS)
        assert silent[0].recv(1) == b"", "the oldest is closed"
    finally:
        for connection in silent:
            connection.close()
    until(lambda: threads() == 0)


def test_silent_connection_is_closed(listener: MetricsListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module._Handler, "timeout", 0.05)
    with connect(listener) as connection:
        assert connection.recv(1) == b""


def test_failing_collector_is_an_error_of_its_scrape_only(
    listener: MetricsListener, collector: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    collector.error = RuntimeError("odd")
    for _ in range(3):
        assert b"500" in send(listener, b"GET /metrics HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    assert len([record for record in caplog.records if record.exc_info]) == 1, "logged once a minute"
    collector.error = None
    assert "esper_up 1.0" in scrape(listener)


def test_close_ends_listening_and_connections(collector: Answering) -> None:
    listener = MetricsListener(MetricsConfig(listen="127.0.0.1:0"))
    listener.serve(collector)
    with connect(listener) as connection:
        scrape(listener)
        listener.close()
        assert connection.recv(1) == b""
    with pytest.raises(OSError, match="refused"):
        connect(listener)
    until(lambda: threads() == 0)


def test_no_file_numbers_are_waited_for_without_haste(
    listener: MetricsListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "PACE_SECONDS", 0.05)
    accept: Callable[..., Any] = socket.socket.accept
    tried = []

    def refuse(self: socket.socket) -> Any:
        tried.append(self)
        if len(tried) <= 3:
            raise OSError(24, "Too many open files")
        return accept(self)

    slept: list[float] = []
    sleep = listener_module.time.sleep
    monkeypatch.setattr(socket.socket, "accept", refuse)
    monkeypatch.setattr(listener_module.time, "sleep", lambda s: (slept.append(s), sleep(s)))
    assert "esper_up 1.0" in scrape(listener)
    assert sum(seconds > 0 for seconds in slept) >= 3


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_other_addresses_than_loopback_need_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.allow_unauthenticated=true") as refused:
        MetricsListener(MetricsConfig(listen=f"{host}:0"))
    assert "\n" not in str(refused.value)


def test_public_address_is_allowed_and_told(collector: Answering, caplog: pytest.LogCaptureFixture) -> None:
    listener = MetricsListener(MetricsConfig(listen="0.0.0.0:0", allow_unauthenticated=True))
    listener.serve(collector)
    try:
        assert "esper_up" in scrape(listener)
        assert [r for r in caplog.records if r.levelname == "WARNING" and "no key" in r.getMessage()]
    finally:
        listener.close()


def test_port_that_is_taken_names_its_holder(listener: MetricsListener) -> None:
    port = port_of(listener)
    with pytest.raises(ConfigError, match=f"metrics.listen = 127.0.0.1:{port}: cannot listen") as refused:
        MetricsListener(MetricsConfig(listen=f"127.0.0.1:{port}"))
    assert str(os.getpid()) in str(refused.value)


@pytest.mark.parametrize(
    "text", ["9464", ":9464", "localhost", "::1:9464", "a b:1", "127.0.0.1:65536", "x:-1"]
)
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listen: .* write HOST:PORT"):
        load(sets=[f"metrics.listen={text}"])


def test_unknown_host_is_one_line() -> None:
    with pytest.raises(ConfigError, match=f"{'a' * 64} is not found") as refused:
        MetricsListener(MetricsConfig(listen=f"{'a' * 64}:0"))
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_loopback_of_ipv6_has_brackets(collector: Answering) -> None:
    try:
        listener = MetricsListener(MetricsConfig(listen="[::1]:0"))
    except ConfigError as error:
        pytest.skip(f"no IPv6 here: {error}")
    listener.serve(collector)
    try:
        assert listener.address.startswith("http://[::1]:")
        assert "esper_up" in scrape(listener)
    finally:
        listener.close()

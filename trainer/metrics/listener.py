"""The port that Prometheus scrapes: HTTP on threads of its own, bounded, by default on loopback.

The exposition is that of `prometheus_client`. Its own server gives each connection a thread for as long as
the peer likes; here connections are few, silent ones are closed, and they are taken in at a bounded pace, so
that no stranger takes the file numbers or the time of a run.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

from esper_overwatch.protocol.codec.addresses import parse_host_port
from esper_overwatch.protocol.errors import first_line
from esper_overwatch.protocol.machine.processes import describe_holders
from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.config.service_options import MetricsConfig

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
"""At a time; the oldest is closed for one more."""
SILENT_SECONDS = 10.0
"""After which a connection that sends nothing, or reads nothing, is closed."""
PACE_SECONDS = 0.05
"""At least between two connections that are taken in; the next ones wait in the kernel's queue."""
QUEUED_CONNECTIONS = 64
LOG_INTERVAL_SECONDS = 60.0


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing a peer sends gets into the log."""

    def get_stderr(self) -> io.StringIO:
        return io.StringIO()


class _HttpServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = QUEUED_CONNECTIONS

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> None:
        self.address_family = family
        self._open: dict[socket.socket, None] = {}
        """Connections, the oldest first."""
        self._opening = threading.Lock()
        self._next_at = 0.0
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # that of HTTPServer asks the name server who we are
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        time.sleep(max(0.0, self._next_at - time.monotonic()))
        self._next_at = time.monotonic() + PACE_SECONDS
        return super().get_request()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._opening:
            while len(self._open) >= MAX_CONNECTIONS:
                self._cut(next(iter(self._open)))
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._opening:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("the connection %s of %s failed", request, client_address, exc_info=True)

    def cut_all(self) -> None:
        """End all connections; their threads end upon it."""
        with self._opening:
            for connection in list(self._open):
                self._cut(connection)

    def _cut(self, connection: socket.socket) -> None:
        del self._open[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class MetricsListener:
    """Listens from when it is made, answers from `serve` on, until `close`.

    Args:
        config: where; `listen` is not empty.

    Raises:
        ConfigError: the address is not there, is taken, or is not loopback and this was not allowed.
    """

    def __init__(self, config: MetricsConfig) -> None:
        where = f"metrics.listen = {config.listen}"
        host, port = parse_host_port(config.listen)
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{where}: {host} is not found: {first_line(error)}") from None
        self.is_public = not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        if self.is_public and not config.allow_unauthenticated:
            raise ConfigError(
                f"{where}: other machines reach {address[0]}, and metrics have neither keys nor encryption; "
                "listen on 127.0.0.1 (ssh -L forwards it), or add metrics.allow_unauthenticated=true"
            )
        try:
            self._http = _HttpServer(family, address)
        except OSError as error:
            raise ConfigError(
                f"{where}: cannot listen there: {error.strerror}{describe_holders({port})}"
            ) from None
        shown = f"[{self._http.server_name}]" if family == socket.AF_INET6 else self._http.server_name
        self.address = f"http://{shown}:{self._http.server_port}/metrics"
        self._thread: threading.Thread | None = None
        self._logged_at = float("-inf")

    def serve(self, collector: Collector) -> None:
        """Answer scrapes with the collector's metrics and those of the process."""
        registry = CollectorRegistry()
        registry.register(collector)
        ProcessCollector(registry=registry)
        self._app = make_wsgi_app(registry)
        self._http.set_app(self._answer)
        self._thread = threading.Thread(target=self._http.serve_forever, name="esper-metrics", daemon=True)
        self._thread.start()
        logger.info("metrics for Prometheus: %s", self.address)
        if self.is_public:
            logger.warning("whoever reaches %s reads the metrics: no key, no encryption", self.address)

    def close(self) -> None:
        """Listen no longer and end all connections."""
        if self._thread is not None:
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()
        self._http.cut_all()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            answer: Iterable[bytes] = self._app(environ, start_response)
            return answer
        except Exception as error:
            now = time.monotonic()
            if now - self._logged_at >= LOG_INTERVAL_SECONDS:
                self._logged_at = now
                logger.exception("a scrape failed; the next one is answered again")
            start_response("500 Internal Server Error", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"the metrics could not be collected: {type(error).__name__}\n".encode()]

"""`esper-tui --serve`: the same program in a browser, by textual-serve, on this machine's loopback address.

The page is the same for everybody on this machine, and knows nothing; its web socket is opened to who knows
the token of the printed address. That stands behind a `#`, which no browser sends, and the page keeps it for
its own origin: unlike a cookie, another server on another port never gets it. Each page is a terminal of its
own: a process that ends with the page.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import click
from aiohttp import web
from textual_serve.server import Server

from esper_overwatch.protocol.errors import EsperError

HOST = "127.0.0.1"
MAX_PAGES = 8
"""Pages open at a time; each is a process."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self' data:; connect-src 'self' ws:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""Nothing is fetched from elsewhere (textual-serve's page asks for a font), and no other page frames this."""

PAGE_SCRIPT = """<script>
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname + location.search);
}
const token = sessionStorage.getItem("token");
if (!token) { document.body.textContent = "Open the address that esper-tui --serve printed."; }
window.WebSocket = class extends WebSocket {
  constructor(address) {
    const url = new URL(address);
    url.searchParams.set("token", token);
    super(url);
  }
};
const focusing = setInterval(() => {
  const input = document.querySelector("textarea");
  if (input) { input.focus(); }
  if (input && document.activeElement === input) { clearInterval(focusing); }
}, 100);
</script>
</body>"""
"""It hands the token to the web socket; keys go to the terminal without a click on it first."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageServer(Server):
    """Serves one command to browsers that bring the token."""

    def __init__(self, arguments: Sequence[str], listener: socket.socket, token: str) -> None:
        command = shlex.join(
            [sys.executable, "-P", "-m", "esper_overwatch.overwatch_tui", *arguments, "--mouse"]
        )
        port = listener.getsockname()[1]
        super().__init__(command, host=HOST, port=port, title="esper-tui")
        self._listener = listener
        self._token = token
        self._pages = 0
        self.url = f"http://{HOST}:{port}/#token={token}"

    async def on_startup(self, app: web.Application) -> None:  # noqa: ARG002
        click.echo(f"esper-tui is at {self.url}")
        tunnel = f"ssh -L {self.port}:{HOST}:{self.port} USER@THIS-HOST"
        click.echo(f"from another machine: {tunnel}, then the same address")
        click.echo("ctrl+c ends it; the run continues")

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._admit)
        return app

    @web.middleware
    async def _admit(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Open web sockets to who has the token; the page itself tells nobody anything."""
        here = f"http://{request.host}"
        if not is_loopback(request.host) or request.headers.get("Origin", here) != here:
            return web.Response(status=403, text="esper-tui answers at its loopback address only\n")
        token = request.query.get("token", "").encode()
        if request.path == "/ws" and not hmac.compare_digest(token, self._token.encode()):
            return web.Response(status=403, text="open the address that esper-tui --serve printed\n")
        answer = await handler(request)
        if not answer.prepared:
            answer.headers.update(HEADERS)
        return answer

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page, with addresses as this browser sees them: ssh may forward another port."""
        self.public_url = f"http://{request.host}"
        answer = await super().handle_index(request)
        assert isinstance(answer, web.Response)
        answer.text = (answer.text or "").replace("</body>", PAGE_SCRIPT)
        return answer

    async def handle_websocket(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        if self._pages >= MAX_PAGES:
            return web.Response(status=503, text=f"{MAX_PAGES} pages are open already; close one\n")
        self._pages += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self._pages -= 1

    def run(self) -> None:
        logging.getLogger("textual-serve").setLevel(logging.WARNING)
        web.run_app(self._make_app(), sock=self._listener, print=None, access_log=None)


def is_loopback(host: str) -> bool:
    """True if a `Host` header names this machine; a stranger may have bound any other name to its address."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def serve(arguments: Sequence[str], port: int) -> None:
    """Serve `esper-tui` with these arguments until interrupted; port 0 = any that is free.

    Raises:
        EsperError: the port cannot be had.
    """
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise EsperError(f"port {port} of {HOST}: {error.strerror}; choose another with --port") from error
    PageServer(arguments, listener, secrets.token_urlsafe(24)).run()

"""A server of webhooks: real HTTP, that can be away, refuse and hang."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.protocol.sshd import free_ports


class Receiver:
    """Keeps what is posted to it, and answers with a status; while `holds`, it reads and never answers."""

    def __init__(self) -> None:
        self.port = free_ports(1)
        self.address = f"http://127.0.0.1:{self.port}/hook?token=s3cret"
        self.status = 200
        self.headers: dict[str, str] = {}
        self.holds = False
        self.posts: list[tuple[str, Any]] = []
        """(key, content)."""
        self._released = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    @property
    def keys(self) -> Counter[str]:
        return Counter(key for key, _ in self.posts)

    def open(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if receiver.status == 200:
                    receiver.posts.append((self.headers["Idempotency-Key"], content))
                if receiver.holds:
                    receiver._released.wait()
                    return
                self.send_response(receiver.status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def close(self) -> None:
        self._released.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

"""A wire that loses messages: sits between a daemon's event socket and its subscribers."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import zmq

from esper_overwatch.protocol.runs import find_run

from .harness import until


class Relay:
    """Forwards events, dropping each batch with the probability `loss`; heartbeats always pass.

    Beyond `queue` messages that wait for a subscriber it drops what comes; 0 = no bound. While it is there,
    the run's connection file names it in place of the daemon's own socket.
    """

    def __init__(self, name: str, loss: float, seed: int = 0, *, queue: int = 0) -> None:
        self.loss = loss
        self.dropped = 0
        self._random = random.Random(seed)
        # The file is written again with the state, which would take the relay out of it.
        until(lambda: (run := find_run(name)) is not None and run.connection.state == "TRAINING")
        self._file = find_run(name).path / "connection.json"
        self._original = self._file.read_bytes()
        connection = json.loads(self._original)
        ev = connection["endpoints"]["ev"]
        self._context = zmq.Context()
        self._upstream = self._context.socket(zmq.SUB)
        self._upstream.subscribe(b"")
        self._upstream.connect(ev)
        assert self._upstream.recv(), "the daemon's welcome"
        self._downstream = self._context.socket(zmq.XPUB)
        self._downstream.set(zmq.XPUB_WELCOME_MSG, b"1/hb")
        self._downstream.set(zmq.SNDHWM, queue)
        self._downstream.bind(ev + ".relay")
        self._path = Path(ev.removeprefix("ipc://") + ".relay")
        connection["endpoints"]["ev"] = ev + ".relay"
        self._file.write_text(json.dumps(connection))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._upstream, zmq.POLLIN)
        poller.register(self._downstream, zmq.POLLIN)
        while not self._stop.is_set():
            ready = dict(poller.poll(20))
            if self._downstream in ready:
                self._downstream.recv()
            if self._upstream in ready:
                frames = self._upstream.recv_multipart()
                if len(frames) == 3 and self._random.random() < self.loss:
                    self.dropped += 1
                else:
                    self._downstream.send_multipart(frames)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)
        self._path.unlink(missing_ok=True)
        if self._file.exists():
            self._file.write_bytes(self._original)

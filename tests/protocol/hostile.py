"""A hostile peer in a process of its own: `python -m tests.protocol.hostile PEER HARM ADDRESS RUN ENDPOINTS`.

PEER is viewer (has a key of that role), stranger (has none) or uid (another user of the machine). It prints
`done` when it has tried all that it may, and holds its connections until standard input ends; what it should
not have been able to do it prints before. It blocks until a byte of standard input says that it was enough.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  (what resolves names is not readable for nobody everywhere)
import itertools
import json
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

from esper_overwatch.protocol.messages.commands import METHODS
from esper_overwatch.protocol.storage.keys import client_pair
from tests.protocol.codec.test_text import HOSTILE

NOBODY = 65534
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"
BLOCK_SECONDS = 4.0
FLOOD_SECONDS = 3.0
Peer = Callable[[str], None]


def request(method: str, params: dict[str, Any] | None = None, client: str = "x", number: str = "1") -> bytes:
    meta = {"client": client, "reason": client}
    whole = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}, "meta": meta}
    return json.dumps(whole).encode()


def until_enough() -> Callable[[], bool]:
    """Go on for a time, and until a byte of standard input has come."""
    end, enough = time.monotonic() + BLOCK_SECONDS, False

    def goes_on() -> bool:
        nonlocal enough
        if not enough and select.select([sys.stdin], [], [], 0)[0]:
            enough = os.read(sys.stdin.fileno(), 1) != b""
        return not enough or time.monotonic() < end

    return goes_on


class Viewer:
    """Over TCP with the key `viewer`."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.ports = {name: f"tcp://{host}:{int(port) + n}" for n, name in enumerate(("qry", "ctl", "ev"))}
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def open(self, kind: int, port: str) -> zmq.Socket[bytes]:
        one = self.context.socket(kind)
        _, pair = client_pair("viewer")
        one.set(zmq.CURVE_SERVERKEY, pair.server.encode())
        one.set(zmq.CURVE_PUBLICKEY, pair.public.encode())
        one.set(zmq.CURVE_SECRETKEY, pair.secret.encode())
        one.set(zmq.RCVHWM, 1)
        one.set(zmq.SNDTIMEO, 500)
        one.connect(self.ports[port])
        return one

    def end(self) -> None:
        junk = random.Random(7)
        for port in ("ctl", "qry"):
            dealer = self.open(zmq.DEALER, port)
            for number, method in enumerate(METHODS):
                dealer.send_multipart([b"", request(method, number=f"{port}{number}")])
            for size in (10, 100_000, 2_000_000, 5_000_000):
                with contextlib.suppress(zmq.Again):
                    dealer.send_multipart([b"", junk.randbytes(size)])
        stop = self.open(zmq.REQ, "ctl")
        stop.set(zmq.RCVTIMEO, 300_000)
        stop.send(request("stop", {"checkpoint": False}, number="stop"))
        assert json.loads(stop.recv())["error"]["message"], "it was refused"

    def block(self) -> None:
        dealers = [self.open(zmq.DEALER, port) for port in ("qry", "ctl") for _ in range(8)]
        methods = ("ping", "schema", "snapshot", "status", "pause", "lease.acquire")
        replay = {"stream": "life", "first": 1, "last": 10**9}
        goes_on = until_enough()
        for number in itertools.count():
            if not goes_on():
                break
            for dealer in dealers:
                with contextlib.suppress(zmq.Again):
                    one = request(methods[number % len(methods)], number=str(number))
                    dealer.send_multipart([b"", one], zmq.NOBLOCK)
                    dealer.send_multipart([b"", request("replay", replay, number=f"r{number}")], zmq.NOBLOCK)
        self.flood_topics((100, 60))  # what holds the thread that owns a publisher for longest

    def grow(self) -> None:
        for n in range(30):
            dealer = self.open(zmq.DEALER, "qry")
            for number in range(10):
                params = {"stream": "life", "first": 1, "last": 10**9}
                dealer.send_multipart([b"", request("replay", params, number=f"{n}-{number}")])
        for _ in range(20):
            self.open(zmq.SUB, "ev").subscribe(b"")
        for kind, size, count in ((b"\1", 2_000, 20_000), (b"\2", 2_000_000, 100)):
            subscriber = self.open(zmq.XSUB, "ev")
            for n in range(count):
                with contextlib.suppress(zmq.Again):
                    subscriber.send(kind + b"%d" % n + bytes(size), zmq.NOBLOCK)
        self.flood_topics()
        self.flood_requests()

    def flood_requests(self) -> None:
        """Send requests, and what is none, as fast as possible, over many connections."""
        for size in (1, 1_000, 200_000):
            dealers = [self.open(zmq.DEALER, port) for port in ("qry", "ctl") for _ in range(12)]
            end = time.monotonic() + FLOOD_SECONDS
            for dealer in itertools.cycle(dealers):
                if time.monotonic() > end:
                    break
                with contextlib.suppress(zmq.Again):
                    dealer.send_multipart([b"", bytes(size)], zmq.NOBLOCK)
            for dealer in dealers:
                dealer.close(linger=0)

    def flood_topics(self, rounds: tuple[int, ...] = (24, 100, 1, 4)) -> None:
        """Subscribe as fast as possible, to topics as long as can be, over `connections` each."""
        for connections in rounds:
            subscribers = [self.open(zmq.XSUB, "ev") for _ in range(connections)]
            end = time.monotonic() + FLOOD_SECONDS
            for number, subscriber in enumerate(itertools.cycle(subscribers)):
                if time.monotonic() > end:
                    break
                with contextlib.suppress(zmq.Again):
                    subscriber.send(b"\1%d" % number + os.urandom(430), zmq.NOBLOCK)
            for subscriber in subscribers:
                subscriber.close(linger=0)

    def speak(self) -> None:
        for port in ("qry", "ctl"):
            ask = self.open(zmq.REQ, port)
            ask.set(zmq.RCVTIMEO, 300_000)
            for number, method in enumerate((*METHODS, HOSTILE)):
                ask.send(request(method, client=HOSTILE, number=f"{port}{number}{HOSTILE}"[:64]))
                ask.recv_multipart()


class Stranger:
    """Over TCP, with plain sockets and no key."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.doors = [(host, int(port) + n) for n in range(3)]
        self.held: list[socket.socket] = []

    def send(self, *contents: bytes) -> None:
        """To each door, in connections that are held."""
        for door in self.doors:
            with contextlib.suppress(OSError):
                one = socket.create_connection(door, timeout=5.0)
                one.settimeout(0.5)
                self.held.append(one)
                for content in contents:
                    one.sendall(content)

    def greet(self, mechanism: bytes, *frames: bytes) -> None:
        self.send(GREETING + mechanism.ljust(20, b"\0") + bytes(32), *frames)

    def end(self) -> None:
        junk = random.Random(7)
        for size in (1, 9, 64, 1_000, 100_000):
            self.send(junk.randbytes(size))
            for mechanism in (b"NULL", b"PLAIN", b"CURVE", b"GSSAPI", b"\xff" * 20):
                self.greet(mechanism, junk.randbytes(size))
        ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ"
        stop = request("stop")
        frames = b"\x01\x00\x02" + (len(stop)).to_bytes(8, "big") + stop
        self.greet(b"NULL", b"\x04" + bytes([len(ready)]) + ready, frames)

    def block(self) -> None:
        goes_on = until_enough()
        while goes_on():
            self.greet(b"CURVE")
            if len(self.held) > 600:
                for one in self.held:
                    one.close()
                self.held.clear()

    def grow(self) -> None:
        for length in (10**7, 2**40, 2**62):
            for _ in range(40):
                self.greet(b"CURVE", b"\x06" + length.to_bytes(8, "big"), bytes(400_000))
                self.send(b"\x02" + length.to_bytes(8, "big"), bytes(400_000))

    def speak(self) -> None:
        text = HOSTILE.encode("utf-8", "surrogatepass")
        for mechanism in (b"NULL", b"PLAIN", b"CURVE", text[:20]):
            hello = b"\x05HELLO" + bytes([len(text)]) + text + bytes([len(text)]) + text
            error = b"\x05ERROR" + bytes([len(text)]) + text
            for command in (hello, error, b"\x05READY\x08Identity" + len(text).to_bytes(4, "big") + text):
                self.greet(mechanism, b"\x04" + bytes([len(command)]) + command)
        self.send(text)


class OtherUser:
    """Another user: what a stranger can do, and what files, sockets and signals of the machine admit."""

    def __init__(self, address: str, run: Path, endpoints: dict[str, str]) -> None:
        self.stranger = Stranger(address)
        self.run = run
        self.doors = [Path(endpoint.removeprefix("ipc://")) for endpoint in endpoints.values()]

    def become(self) -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    def attempts(self, harm: str) -> Iterator[tuple[str, Callable[[], Any]]]:
        pid = int(sys.argv[6])
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1):
            yield f"signal {number}", lambda number=number: os.kill(pid, number)  # type: ignore[misc]
        for door in self.doors:
            yield f"connect {door}", lambda door=door: _connect(door)  # type: ignore[misc]
            yield f"remove {door}", door.unlink
        for name in ("events.jsonl", "daemon.log", "lock", "connection.json", "config.json"):
            yield f"write {name}", lambda name=name: (self.run / name).open("a")  # type: ignore[misc]
            yield f"read {name}", lambda name=name: (self.run / name).open("r")  # type: ignore[misc]
        yield "a file in the run", lambda: (self.run / HOSTILE[:20]).mkdir()
        yield "a run beside it", lambda: (self.run.parent / "evil").mkdir()
        yield "a door beside it", lambda: (self.doors[0].parent / "evil").mkdir()

    def act(self, harm: str) -> None:
        for what, attempt in self.attempts(harm):
            try:
                attempt()
            except OSError:
                continue
            print("possible:", what)
        getattr(self.stranger, harm)()


def _connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(path))


def main() -> None:
    peer, harm, address, run, endpoints = sys.argv[1:6]
    if peer == "uid":
        other = OtherUser(address, Path(run), json.loads(endpoints))
        other.become()
        other.act(harm)
    elif peer == "viewer":
        viewer = Viewer(address)
        getattr(viewer, harm)()
    else:
        stranger = Stranger(address)
        getattr(stranger, harm)()
    print("done", flush=True)
    select.select([sys.stdin], [], [])
    os._exit(0)  # libzmq would wait for what cannot be sent


if __name__ == "__main__":
    main()

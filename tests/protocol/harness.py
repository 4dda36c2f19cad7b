"""Shared helpers for tests of daemons and readers."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from esper_overwatch.protocol.client.items import Item, LinkChanged, Reset
from esper_overwatch.protocol.client.subscriber import Subscriber
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.gateway import Gateway
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.server.server import Server

Start = Callable[..., Server]
Daemon = subprocess.Popen[bytes]
StartPython = Callable[..., subprocess.Popen[Any]]

DAEMON = """
import sys, time
from esper_overwatch import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
server = Server(RunFolder.claim(sys.argv[1]), hello={})
server.start()
server.set_state("TRAINING")
print("ready", flush=True)
n = 0
while True:
    for _ in range(20):
        n += 1
        server.emitter.emit(ev.RoundStarted(rounds=n))
    for command in server.mailbox.poll():
        server.done(command, {"n": n})
    server.beat(n, 0)
    time.sleep(0.01)
"""


def until(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Wait for a condition and give its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
    return value


def freeze(process: subprocess.Popen[Any]) -> None:
    """Stop a process, and be sure that it has stopped."""
    process.send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)


@contextmanager
def serving(address: str, run: str | None = "alpha") -> Iterator[Gateway]:
    """A gateway in a thread."""
    gateway, is_over = Gateway(run, address), threading.Event()
    thread = threading.Thread(target=gateway.serve, args=(is_over.is_set,))
    thread.start()
    try:
        yield gateway
    finally:
        is_over.set()
        thread.join()
        gateway.close()


@contextmanager
def gateway_process(address: str, run: str = "alpha") -> Iterator[psutil.Process]:
    """The command; its child serves."""
    words = [sys.executable, "-m", "esper_overwatch.trainer", "gateway", run, "--listen", address]
    process = subprocess.Popen(words)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


class Reader:
    """A subscriber and all it gave."""

    def __init__(self, name: str | None = None, **more: object) -> None:
        self.subscriber = Subscriber(name, client="test", **more)  # type: ignore[arg-type]
        self.items: list[Item] = []

    def read(self, condition: Callable[[], object], seconds: float = 300.0) -> None:
        """Drain until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (self.subscriber.state, self.subscriber.stats, self.items[-3:])
            self.items += self.subscriber.drain()
            self.subscriber.wait(0.02)

    @property
    def events(self) -> list[Event]:
        """Since the last reset."""
        resets = [i for i, item in enumerate(self.items) if isinstance(item, Reset)]
        return [item for item in self.items[resets[-1] if resets else 0 :] if isinstance(item, Event)]

    @property
    def resets(self) -> list[str]:
        return [item.reason for item in self.items if isinstance(item, Reset)]

    @property
    def states(self) -> list[str]:
        return [item.state for item in self.items if isinstance(item, LinkChanged)]

    def last(self, stream: str) -> int:
        return max([e.seq for e in self.events if e.stream == stream], default=0)


@contextmanager
def looping(body: Callable[[], object], pause: float = 0.005) -> Iterator[None]:
    """Call `body` again and again in another thread until the block ends."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            body()
            ended.wait(pause)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def load(server: Server, per_s: int) -> Iterator[None]:
    """Emit on three streams until the block ends."""
    numbers = itertools.count(1)

    def work() -> None:
        for n in itertools.islice(numbers, max(1, per_s // 300)):
            server.emitter.emit(ev.RoundStarted(rounds=n))
            server.emitter.emit(ev.LogLine(level="INFO", logger="load", message=str(n)))
            server.emitter.emit(ev.ProfilerStarted(epochs=n), env=n % 4)

    with looping(work, 0.01):
        yield


def check_against_journal(server: Server, reader: Reader, streams: tuple[str, ...] = ("life", "log")) -> None:
    """The reader holds the journal's lines, without a hole from the snapshot's newest events to the end.

    On `log` a snapshot holds the newest lines; on `life` the run's state, which is number 1, and under this
    load the newest two events.
    """
    journal = {(e.stream, e.seq): e.line for e in read(server.run.events)}
    for stream in streams:
        mine = [e for e in reader.events if e.stream == stream]
        assert [e.line for e in mine] == [journal[stream, e.seq] for e in mine]
        numbers = [e.seq for e in mine]
        if stream == "life":
            assert numbers.pop(0) == 1
        newest = max(seq for s, seq in journal if s == stream)
        assert numbers == list(range(numbers[0], newest + 1))

"""Readers while daemons end, die, hang and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from esper_overwatch.protocol.client import connection as module
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.thresholds import THRESHOLDS, Threshold
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.server.server import Server

from .harness import DAEMON, Daemon, Reader, Start, freeze, load, until

pytestmark = pytest.mark.usefixtures("quick_heartbeat")


def test_a_new_boot_starts_over_and_says_so(start: Start, reader: Callable[..., Reader]) -> None:
    first = start()
    first.emitter.emit(ev.RoundStarted(rounds=1))
    one = reader("alpha")
    one.read(lambda: one.subscriber.state == "live")
    first.close("bye")
    first.run.release()
    one.read(lambda: one.subscriber.state == "ended")
    assert one.subscriber.heartbeat is not None
    assert one.subscriber.heartbeat.bye == "bye"
    second = start()
    second.emitter.emit(ev.RoundStarted(rounds=2))
    one.read(lambda: one.subscriber.state == "live" and one.last("life") == 2)
    assert [e.data.rounds for e in one.events] == [2]
    assert len(one.resets) == 2
    assert second.boot in one.resets[1]
    assert one.subscriber.boot == second.boot


def test_a_killed_daemon_is_noticed_and_its_successor_joined(
    start: Start, reader: Callable[..., Reader], daemon: Callable[..., Daemon]
) -> None:
    process = daemon()
    one = reader()
    one.read(lambda: one.subscriber.state == "live" and len(one.events) > 50)
    process.kill()
    process.wait()
    one.read(lambda: one.subscriber.state == "lost")
    held = [e for e in one.events if e.stream == "life"][1:]
    journal = {e.seq: e.line for e in read(find_run("alpha").path / "events.jsonl")}
    assert [e.line for e in held] == [journal[held[0].seq + i] for i in range(len(held))]
    second = start("alpha")
    second.emitter.emit(ev.RoundStarted(rounds=0))
    one.read(lambda: one.subscriber.state == "live" and one.subscriber.boot == second.boot)
    one.read(lambda: any(e.data == ev.RoundStarted(rounds=0) for e in one.events))


FORKING = DAEMON.replace(
    "server.set_state",
    """
import os
if os.fork() == 0:
    os.write(1, b"%d\\n" % os.getpid())
    server.emitter.emit(ev.RoundStarted(rounds=-1))
    time.sleep(600)
    os._exit(0)
server.set_state""",
)


def test_a_forked_worker_that_outlives_the_daemon_hides_nothing(
    start: Start, reader: Callable[..., Reader]
) -> None:
    """It keeps the sockets open, so that no disconnect is seen; the lock and the heartbeat tell."""
    daemon = subprocess.Popen([sys.executable, "-c", FORKING, "alpha"], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    words = daemon.stdout.readline() + daemon.stdout.readline()
    worker = int(words.replace(b"ready", b""))
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    daemon.kill()
    daemon.wait()
    try:
        os.kill(worker, 0)
        one.read(lambda: one.subscriber.state == "lost")
        second = start("alpha")
        one.read(lambda: one.subscriber.state == "live" and one.subscriber.boot == second.boot)
    finally:
        os.kill(worker, signal.SIGKILL)
        daemon.stdout.close()
    second.close()
    assert not any(e.data == ev.RoundStarted(rounds=-1) for e in read(second.run.events))


def test_without_a_name_the_next_run_is_followed(start: Start, reader: Callable[..., Reader]) -> None:
    first = start("alpha")
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    start("beta")
    one.items += one.subscriber.drain()
    assert one.subscriber.boot == first.boot, "a newer run does not tempt away from a living one"
    first.close()
    first.run.release()
    one.read(lambda: one.subscriber.run is not None and one.subscriber.run.name == "beta")
    one.read(lambda: one.subscriber.state == "live")


def test_a_hung_daemon_goes_slow_stale_lost(
    reader: Callable[..., Reader], daemon: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    age = Threshold(signal="link_age", warning=1000.0, critical=2000.0)
    monkeypatch.setitem(THRESHOLDS, "link_age", age)
    monkeypatch.setattr(module, "LOST_AFTER_SECONDS", 3000.0)
    ahead = 0.0
    monkeypatch.setattr(
        module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead, time_ns=time.time_ns)
    )

    def hears_nothing_until(state: str) -> bool:
        nonlocal ahead
        ahead += 100.0  # bit by bit: what was on its way when the daemon froze may still arrive
        return one.subscriber.state == state

    process = daemon()
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    freeze(process)
    for state in ("slow", "stale", "lost"):
        one.read(lambda state=state: hears_nothing_until(state))  # type: ignore[misc]
    assert one.states[-4:] == ["live", "slow", "stale", "lost"]
    process.send_signal(signal.SIGCONT)
    one.read(lambda: one.subscriber.state == "live")
    assert len(one.resets) == 1, "the same boot: nothing is forgotten"


READER = """
import sys
from esper_overwatch import Subscriber
for event in Subscriber(sys.argv[1], streams=("life",)).events():
    print(event.seq, flush=True)
"""


def test_stopped_reader_catches_up_killed_one_changes_nothing(server: Server) -> None:
    command = [sys.executable, "-c", READER, "alpha"]
    stopped, killed = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    with load(server, 3000):
        for process in (stopped, killed):
            assert process.stdout is not None
            assert process.stdout.readline()
        freeze(stopped)
        killed.kill()
        killed.communicate()
        until(lambda: server.subscribers == 1)
        time.sleep(1.5)
        stopped.send_signal(signal.SIGCONT)
        time.sleep(0.3)
    server.close("over")
    out, _ = stopped.communicate(timeout=300)
    assert stopped.returncode == 0
    numbers = [int(line) for line in out.split()]
    newest = max(e.seq for e in read(server.run.events) if e.stream == "life")
    assert numbers[1:] == list(range(numbers[1], newest + 1))
    assert server.error is None

"""Readers over real sockets: what they hold is what the journal holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq

from protocol import events as ev
from protocol import server as server_module
from protocol import subscriber as module
from protocol.calls import RESEND_S
from protocol.journal import read
from protocol.runs import RunFolder, find_run
from protocol.server import Server
from protocol.subscriber import Item, LinkChanged, Reply, Reset, Subscriber
from protocol.thresholds import THRESHOLDS, Threshold
from protocol.wire import Event

from .relay import Relay
from .test_server import DAEMON, freeze, until

Start = Callable[..., Server]
Daemon = subprocess.Popen[bytes]


class Reader:
    """A subscriber and all it gave."""

    def __init__(self, name: str | None = None, **more: object) -> None:
        self.subscriber = Subscriber(name, client="test", **more)  # type: ignore[arg-type]
        self.items: list[Item] = []

    def read(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
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


@pytest.fixture
def reader() -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def make(name: str | None = None, **more: object) -> Reader:
        made.append(Reader(name, **more))
        return made[-1]

    yield make
    for one in made:
        one.subscriber.close()


@pytest.fixture(autouse=True)
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of servers in this process."""
    monkeypatch.setattr(server_module, "HEARTBEAT_S", 0.2)


@pytest.fixture
def daemon() -> Iterator[Callable[..., Daemon]]:
    """Start daemons in processes of their own."""
    started: list[Daemon] = []

    def start(name: str = "alpha") -> Daemon:
        process = subprocess.Popen([sys.executable, "-c", DAEMON, name], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@contextmanager
def load(server: Server, per_s: int) -> Iterator[None]:
    """Emit on three streams until the block ends."""
    stop = threading.Event()

    def work() -> None:
        n = 0
        while not stop.is_set():
            for _ in range(max(1, per_s // 300)):
                n += 1
                server.emitter.emit(ev.RoundStarted(rounds=n))
                server.emitter.emit(ev.LogLine(level="INFO", logger="load", message=str(n)))
                server.emitter.emit(ev.ProfilerStarted(epochs=n), env=n % 4)
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


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


# --- joining ---------------------------------------------------------------------------------------


def test_joining_under_load_leaves_no_hole(server: Server, reader: Callable[..., Reader]) -> None:
    with load(server, 5000):
        readers = []
        for _ in range(20):
            one = reader()
            one.read(lambda one=one: len(one.events) > 300)
            readers.append(one)
    server.close()
    for one in readers:
        one.read(lambda one=one: one.subscriber.state == "ended")
        one.items += one.subscriber.drain(1.0)
        assert len(one.resets) == 1
        check_against_journal(server, one)
        assert one.subscriber.stats.skipped == 0


@pytest.mark.parametrize("streams", [("life",), ("log", "metric")])
def test_only_the_streams_asked_for(
    server: Server, reader: Callable[..., Reader], streams: tuple[ev.Stream, ...]
) -> None:
    one = reader(streams=streams)
    with load(server, 500):
        one.read(lambda: len(one.events) > 150)
    server.close()
    one.read(lambda: one.subscriber.state == "ended")
    assert {e.stream for e in one.events} <= set(streams)
    check_against_journal(server, one, streams=streams[:1])


def test_the_snapshot_tells_a_late_joiner_what_matters(server: Server, reader: Callable[..., Reader]) -> None:
    server.emitter.clock(round=3, epoch=2)
    server.emitter.emit(
        ev.Anomaly(kind="stalled", source="env02", severity="warning", active=True, value=float("nan"))
    )
    for i in range(600):
        server.emitter.emit(ev.LogLine(level="INFO", logger="x", message=str(i)))
    until(lambda: server._publisher.last["log"] == 600)
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    kinds = [e.type for e in one.events]
    assert kinds.count("anomaly") == 1
    assert kinds.count("log") == ev.EVENTS["log"].keep
    assert one.events[1].ctx.round == 3
    assert [type(item) for item in one.items[:2]] == [LinkChanged, Reset]
    assert one.subscriber.hello is not None
    assert one.subscriber.hello["name"] == "alpha"
    assert one.subscriber.age is not None


def test_a_subscriber_may_be_there_first(start: Start, reader: Callable[..., Reader]) -> None:
    one = reader()
    assert one.subscriber.drain() == []
    assert one.subscriber.state == "searching"
    assert one.subscriber.problem == "no live run found; start one with: esper-daemon start"
    named = reader("beta")
    named.subscriber.drain()
    assert "no run beta; there are: none" in str(named.subscriber.problem)
    start("alpha").emitter.emit(ev.RoundStarted(rounds=1))
    start("beta").emitter.emit(ev.RoundStarted(rounds=2))
    for each, name in ((one, None), (named, "beta")):
        each.read(lambda each=each: each.subscriber.state == "live" and each.events)
        assert each.subscriber.run is not None
        assert name in (None, each.subscriber.run.name)
    assert one.states == ["connecting", "live"]


# --- losing and repairing --------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "seed"), [(0.3, 1), (0.8, 2)])
def test_whatever_the_wire_loses_is_repaired(
    server: Server, reader: Callable[..., Reader], loss: float, seed: int
) -> None:
    with Relay("alpha", loss, seed) as relay:
        one = reader()
        with load(server, 3000):
            one.read(lambda: len(one.events) > 3000)
        until(lambda: not any(server.emitter.waiting.values()))
        last = server._publisher.last
        one.read(lambda: one.last("life") == last["life"] and one.last("log") == last["log"])
        assert relay.dropped > 5
        assert one.subscriber.stats.gaps > 0
        assert one.subscriber.stats.repaired > 0
        assert one.subscriber.stats.skipped == 0
        check_against_journal(server, one)


def test_a_lost_tail_is_found_by_the_heartbeat(server: Server, reader: Callable[..., Reader]) -> None:
    with Relay("alpha", 0.0) as relay:
        one = reader()
        one.read(lambda: one.subscriber.state == "live")
        relay.loss = 1.0
        for i in range(50):
            server.emitter.emit(ev.RoundStarted(rounds=i))
        one.read(lambda: one.last("life") == 51)
        assert one.subscriber.stats.repaired == 50
        assert relay.dropped > 0


def test_too_far_behind_starts_over_and_says_how_much(
    server: Server, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOO_FAR_BEHIND", 100)
    with Relay("alpha", 0.0) as relay:
        one = reader()
        one.read(lambda: one.subscriber.state == "live")
        relay.loss = 1.0
        for i in range(400):
            server.emitter.emit(ev.RoundStarted(rounds=i))
        one.read(lambda: len(one.resets) == 2)
        one.read(lambda: one.last("life") == 401)
        assert "400 events behind on life" in one.resets[1]
        assert one.subscriber.stats.skipped == 400


def test_a_range_that_is_gone_starts_over(server: Server, reader: Callable[..., Reader]) -> None:
    with Relay("alpha", 0.0) as relay:
        one = reader()
        one.read(lambda: one.subscriber.state == "live")
        relay.loss = 1.0
        for i in range(9):
            server.emitter.emit(ev.RoundStarted(rounds=i))
        ring = server._publisher.rings["life"]._items
        until(lambda: len(ring) == 10)
        ring.clear()
        os.truncate(server.run.events, 0)
        one.read(lambda: len(one.resets) == 2)
        assert "no longer held" in one.resets[1]
        one.read(lambda: one.last("life") == 10)


def test_a_tail_lost_at_the_very_end_comes_from_the_journal(
    server: Server, reader: Callable[..., Reader]
) -> None:
    with Relay("alpha", 0.0) as relay:
        one = reader()
        one.read(lambda: one.subscriber.state == "live")
        relay.loss = 1.0
        for i in range(70):
            server.emitter.emit(ev.RoundStarted(rounds=i))
        server.close("done")
        one.items += one.subscriber.items()
        assert one.last("life") == 71
        assert one.subscriber.stats.repaired == 70
        assert one.subscriber.stats.skipped == 0
        check_against_journal(server, one, streams=("life",))


def test_malformed_messages_are_counted_and_passed_over(
    server: Server, reader: Callable[..., Reader]
) -> None:
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    for frames in ([b"1/life"], [b"1/life", b"{", b""], [b"1/hb", b"\xff"], [b"1/life", b"", b"", b""]):
        server._publisher._send(frames)
    server.emitter.emit(ev.RoundStarted(rounds=1))
    one.read(lambda: one.last("life") == 2)
    assert one.subscriber.stats.bad == 4
    assert one.subscriber.stats.last_bad


# --- daemons come and go ---------------------------------------------------------------------------


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
    time.sleep(60)
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
    age = Threshold(signal="link_age", warning=1.5, critical=1.8)
    monkeypatch.setitem(THRESHOLDS, "link_age", age)
    monkeypatch.setattr(module, "LOST_S", 2.1)
    process = daemon()
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    freeze(process)
    one.read(lambda: one.subscriber.state == "lost")
    assert one.states[-4:] == ["live", "slow", "stale", "lost"]
    process.send_signal(signal.SIGCONT)
    one.read(lambda: one.subscriber.state == "live")
    assert len(one.resets) == 1, "the same boot: nothing is forgotten"


READER = """
import sys
from protocol import Subscriber
for event in Subscriber(sys.argv[1], streams=("life",)).events():
    print(event.seq, flush=True)
"""


def test_a_stopped_reader_catches_up_and_a_killed_one_changes_nothing(server: Server) -> None:
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
    out, _ = stopped.communicate(timeout=30)
    assert stopped.returncode == 0
    numbers = [int(line) for line in out.split()]
    newest = max(e.seq for e in read(server.run.events) if e.stream == "life")
    assert numbers[1:] == list(range(numbers[1], newest + 1))
    assert server.error is None


# --- asking ----------------------------------------------------------------------------------------


def replies(reader: Reader) -> list[Reply]:
    return [item for item in reader.items if isinstance(item, Reply)]


def test_a_request_is_answered_and_its_effect_seen(server: Server, reader: Callable[..., Reader]) -> None:
    one = reader()
    id_ = one.subscriber.request("pause", reason="tea")
    assert [call.id for call in one.subscriber.pending] == [id_]
    one.read(lambda: replies(one))
    (reply,) = replies(one)
    assert (reply.id, reply.method, reply.result, reply.error) == (id_, "pause", {"state": "accepted"}, None)
    assert reply.rtt_s > 0
    assert not one.subscriber.pending
    (command,) = server.mailbox.poll()
    assert (command.id, command.client, command.reason) == (id_, "test", "tea")
    server.done(command, {"epoch": 1})
    one.read(lambda: any(e.type == "command.done" and e.data.id == id_ for e in one.events))


def test_a_refusal_is_typed(server: Server, reader: Callable[..., Reader]) -> None:
    one = reader()
    one.subscriber.request("resume")
    one.subscriber.request("telemetry.escalate", {"epochs": -1})
    one.read(lambda: len(replies(one)) == 2)
    assert [reply.error.kind for reply in replies(one) if reply.error] == ["wrong_state", "invalid_params"]
    with pytest.raises(ValueError, match="no method 'fly'; there are hello, "):
        one.subscriber.request("fly")


def test_a_request_that_cannot_be_sent_is_given_up_and_never_carried_out_late(
    start: Start, reader: Callable[..., Reader]
) -> None:
    one = reader()
    one.subscriber.request("stop", deadline_s=0.2)
    one.read(lambda: replies(one))
    error = replies(one)[0].error
    assert error is not None
    assert error.kind == "no_reply"
    assert "never sent" in error.message
    server = start()
    server.set_state("TRAINING")
    one.read(lambda: one.subscriber.state == "live")
    assert not server.mailbox.poll()


def test_a_request_to_a_hung_daemon_is_repeated_and_not_carried_out_late(
    reader: Callable[..., Reader], daemon: Callable[..., Daemon]
) -> None:
    process = daemon()
    one = reader()
    one.read(lambda: one.subscriber.state == "live")
    freeze(process)
    one.subscriber.request("stop", deadline_s=RESEND_S + 0.5)
    one.subscriber.request("pause", deadline_s=30)
    one.read(lambda: replies(one))
    error = replies(one)[0].error
    assert error is not None
    assert error.kind == "no_reply"
    assert "it was sent" in error.message
    process.send_signal(signal.SIGCONT)
    one.read(lambda: len(replies(one)) == 2)
    one.read(lambda: any(e.type == "command.done" for e in one.events))
    commands = [e for e in one.events if e.type.startswith("command.")]
    refused = [e.data.code for e in commands if e.type == "command.refused"]
    assert set(refused) == {-32008}
    assert [e.data.method for e in commands if e.type == "command.accepted"] == ["pause"], (
        "sent twice, done once"
    )


def test_a_request_meant_for_the_boot_before_is_refused(
    start: Start, reader: Callable[..., Reader], daemon: Callable[..., Daemon]
) -> None:
    first = daemon()
    one = reader("alpha")
    one.read(lambda: one.subscriber.state == "live")
    freeze(first)
    one.subscriber.request("stop", deadline_s=20)
    one.subscriber.drain()
    first.kill()
    first.wait()
    second = start()
    second.set_state("TRAINING")
    one.read(lambda: replies(one))
    error = replies(one)[0].error
    assert error is not None
    assert error.kind == "boot_mismatch"
    assert error.data["boot"] == second.boot
    assert not second.mailbox.poll()


def test_iterating_ends_with_the_run_or_with_silence(server: Server) -> None:
    with Subscriber() as subscriber:
        assert [e.type for e in subscriber.events(timeout=0.3)] == ["run.state"]
    threading.Timer(0.3, server.close, args=("over",)).start()
    with Subscriber() as subscriber:
        assert [e.type for e in subscriber.events()] == ["run.state"]
    assert subscriber.state == "ended"


def test_another_protocol_is_told_and_not_joined(
    server: Server, reader: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROTOCOL_VERSION", 2)
    one = reader()
    one.read(lambda: one.subscriber.problem)
    assert one.subscriber.problem == "the daemon does not speak protocol 2: protocol 1"
    assert not one.events


def test_a_starting_run_is_waited_for(reader: Callable[..., Reader]) -> None:
    with RunFolder.claim("alpha"):
        one = reader()
        one.read(lambda: one.subscriber.problem == "run alpha is starting")
        assert one.subscriber.state == "searching"


@pytest.mark.slow
def test_a_hundred_joins_under_load(server: Server) -> None:
    with load(server, 5000):
        for _ in range(100):
            with Subscriber(streams=("log",)) as subscriber:
                numbers = [e.seq for e, _ in zip(subscriber.events(), range(600), strict=False)]
            assert numbers == list(range(numbers[0], numbers[0] + 600))
            assert subscriber.stats.skipped == 0


def test_a_frozen_neighbour_does_not_hold_a_reader_back(server: Server) -> None:
    context = zmq.Context()
    frozen = context.socket(zmq.SUB)
    frozen.set(zmq.RCVHWM, 1)
    frozen.subscribe(b"")
    frozen.connect(find_run().connection.endpoints["ev"])  # type: ignore[union-attr]
    for i in range(5000):
        server.emitter.emit(ev.RoundStarted(rounds=i))
    with Subscriber(streams=("life",)) as subscriber:
        last = 0
        for event in subscriber.events():
            last = event.seq
            if last == 5001:
                break
    context.destroy(linger=0)
    assert last == 5001

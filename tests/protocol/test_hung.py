"""A trainer that holds the interpreter, clocks that are wrong, askers that are gone."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import zmq

from esper_overwatch import connect
from esper_overwatch.protocol.errors import NoReply

from .harness import DAEMON, Daemon, Reader, freeze, until
from .raw import Raw

HANGS = """
import sys, time
from esper_overwatch.protocol.server import server as module
from esper_overwatch.protocol.runs import RunFolder
module.SILENT_SECONDS = 0.5
server = module.Server(RunFolder.claim("alpha"), hello={})
server.start()
server.set_state("TRAINING")
server.beat(1, 1)
print("ready", flush=True)
sys.stdin.readline()
"""
HOLDS = HANGS + "import ctypes; ctypes.PyDLL(None).sleep(60)\n"  # PyDLL does not let the interpreter go
SHIFTED = """
import time
now = time.time_ns
time.time_ns = lambda: now() + %d * 3_600_000_000_000
"""


def go_on(process: Daemon) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def test_trainer_holding_the_gil_gives_no_heartbeat_or_answer(
    daemon: Callable[..., Daemon], reader: Callable[..., Reader]
) -> None:
    process = daemon(script=HOLDS)
    one = reader("alpha", streams=("life",))
    one.read(lambda: one.subscriber.state == "live")
    with connect("alpha") as run:
        go_on(process)
        one.read(lambda: one.subscriber.state in ("slow", "stale"))
        beat = one.subscriber.heartbeat
        assert beat is not None
        with pytest.raises(NoReply, match="did not answer pause within"):
            run.call("pause", deadline_s=0.5)
        one.items += one.subscriber.drain()
        assert one.subscriber.heartbeat is beat, "a link that answers at a lower level is no sign of life"


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off_changes_nothing(
    daemon: Callable[..., Daemon], reader: Callable[..., Reader], hours: int
) -> None:
    daemon(script=SHIFTED % hours + DAEMON)
    with connect("alpha") as run:
        assert run.checkpoint(wait=True)["n"] > 0
    one = reader("alpha", streams=("life",))
    id_ = one.subscriber.request("pause", deadline_s=300)
    one.read(lambda: any(e.type == "command.done" and e.data.id == id_ for e in one.events))


def test_answers_that_find_nobody_are_counted(
    daemon: Callable[..., Daemon],
) -> None:
    process = daemon()
    with Raw("alpha") as raw:
        assert raw.ask("qry", "status")[0]["result"]["control"]["unanswered"] == 0

        def counted() -> bool:
            """True if the daemon got to an answer after libzmq had noticed that its asker is gone."""
            dealer = raw.open(zmq.DEALER, "qry")
            dealer.send_multipart([b"", b'{"jsonrpc":"2.0","id":"0","method":"ping"}'])
            dealer.recv_multipart()
            freeze(process)
            for n in range(20):
                dealer.send_multipart([b"", b'{"jsonrpc":"2.0","id":"%d","method":"ping"}' % n])
            dealer.close(linger=500)
            process.send_signal(signal.SIGCONT)
            found: int = raw.ask("qry", "status")[0]["result"]["control"]["unanswered"]
            return found > 0

        until(counted)

"""Much is asked back at once; who steers does not wait behind it."""

from __future__ import annotations

import json
import time

import pytest
import zmq

from esper_overwatch.protocol.journal.writer import Journal
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from tests.batches import batch_of

from .raw import Raw

LINES = 200
LINE_BYTES = 1_000_000


def write_journal(run: RunFolder) -> None:
    """200 MB of log lines, as of a boot before."""
    journal = Journal(run.events)
    for seq in range(1, LINES + 1):
        event = ev.LogLine(level="INFO", logger="x", message="x" * LINE_BYTES)
        journal.append([batch_of(seq, seq, ev.Context(), event)])
    journal.close()


@pytest.mark.slow
def test_stop_is_answered_amid_a_replay_of_200_mb(home: object) -> None:
    run = RunFolder.claim("alpha")
    write_journal(run)
    server = Server(run, hello={})
    server.start()
    server.set_state("TRAINING")
    try:
        with Raw("alpha") as raw:
            stop = raw.open(zmq.DEALER, "ctl")
            stop.send_multipart([b"", b'{"jsonrpc":"2.0","id":"warm","method":"mark","params":{"text":"x"}}'])
            stop.recv_multipart()
            asker = raw.open(zmq.DEALER, "qry")
            asker.set(zmq.RCVHWM, 0)
            for seq in range(1, LINES + 1):
                params = {"stream": "log", "first": seq, "last": seq}
                body = {"jsonrpc": "2.0", "id": str(seq), "method": "replay", "params": params}
                asker.send_multipart([b"", json.dumps(body).encode()])
            first = json.loads(asker.recv_multipart()[1])
            assert first["result"]["n"] == 1
            stop.send_multipart([b"", b'{"jsonrpc":"2.0","id":"stop","method":"stop"}'])
            begin, came = time.monotonic(), 1
            while not stop.poll(0):
                if asker.poll(1):
                    asker.recv_multipart()
                    came += 1
            reply = json.loads(stop.recv_multipart()[1])
            print(f"stop was answered after {(time.monotonic() - begin) * 1000:.0f} ms, {came} parts")
            assert reply["result"] == {"state": "accepted"}
            assert came < LINES / 4, "the replay was still on its way"
            while came < LINES:
                asker.recv_multipart()
                came += 1
        assert [command.method for command in server.mailbox.poll()] == ["stop"]
    finally:
        server.close()
        run.release()

"""40,000 messages that are no requests, or nearly, against a daemon in its own process; at night 100,000."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from esper_overwatch import connect
from tests.cases import nightly

from .harness import Daemon, until

FLOODERS = 4
ON_ONE_CONNECTION = 200
GROWTH_BYTES = 16 * 2**20
CONNECTION_BYTES = 128 * 1024
"""Of a connection that was left: its pipes and what waits in them, until a busy daemon comes to read it."""

FLOOD = """
import json, os, random, sys, zmq
from tools.message_examples import corpus
endpoints, seed, count, ON_ONE = json.loads(sys.argv[1]), *map(int, sys.argv[2:])
rng = random.Random(seed)
good = [line for line in corpus()["requests"] if b"lease" not in line.split(b'"params"')[0]]
context = zmq.Context()

def bent():
    body = bytearray(rng.choice(good))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(body))
        body[at:at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return bytes(body)

def wrong_type():
    tree = json.loads(rng.choice(good))
    part = rng.choice([tree, tree["params"] or tree, tree["meta"]])
    part[rng.choice(list(part))] = rng.choice([None, -1, 1e300, "", "x" * 2000, [], {}, True, [[[]]] * 9])
    tree["method"] = tree.get("method") or "pause"
    if tree["method"] == "stop":
        tree["method"] = "halt"
    return json.dumps(tree).encode()

KINDS = [
    lambda: [rng.randbytes(rng.randrange(80))],
    lambda: [b"", bent()],
    lambda: [b"", wrong_type()],
    lambda: [b"", b'{"id":"1","method":"hello","params":' + b"[" * rng.randrange(50_000)],
    lambda: [b"", b"\\xff\\xfe" * rng.randrange(40)],
    lambda: [b""] * rng.randrange(1, 5),
    lambda: [rng.randbytes(9) for _ in range(rng.randrange(2, 30))],
    lambda: [b"", b'{"id":"1","method":"ping"}' + b" " * rng.randrange(200_000)],
]
WEIGHTS = [20, 20, 20, 1, 10, 10, 10, 0.2]

def open_one():
    socket = context.socket(zmq.DEALER)
    socket.linger = 10_000
    socket.connect(endpoints[rng.choice(["qry", "ctl"])])
    return socket

socket = open_one()
for n in range(count):
    if n % ON_ONE == ON_ONE - 1:
        waits = n % (2 * ON_ONE) == ON_ONE - 1  # every other time it leaves without its answers
        while waits and socket.poll(30):
            socket.recv_multipart()
        socket.close()
        socket = open_one()
    socket.send_multipart(rng.choices(KINDS, WEIGHTS)[0]())
    while socket.poll(0):
        socket.recv_multipart()
socket.close()
context.term()
"""


@pytest.mark.slow
@pytest.mark.parametrize("each", [10_000, nightly(25_000)])
def test_a_flood_of_malformed_requests_harms_nobody(daemon: Callable[..., Daemon], each: int) -> None:
    process = psutil.Process(daemon("alpha").pid)
    with connect("alpha") as client:
        endpoints = client.run.endpoints
        addresses = json.dumps({name: endpoints[name] for name in ("qry", "ctl")})

        def flood(count: int) -> list[subprocess.Popen[bytes]]:
            arguments = [sys.executable, "-c", FLOOD, addresses]
            return [
                subprocess.Popen([*arguments, str(seed), str(count), str(ON_ONE_CONNECTION)])
                for seed in range(FLOODERS)
            ]

        for one in flood(1_000):
            assert one.wait(300) == 0
        warm, answered = process.memory_info().rss, []
        calm = statistics.median(client.ping() for _ in range(20))
        flooders = flood(each)
        try:
            while any(one.poll() is None for one in flooders):
                answered.append(client.ping())
                time.sleep(0.02)
        finally:
            for one in flooders:
                one.kill()
        assert [one.wait() for one in flooders] == [0] * FLOODERS
        assert len(answered) > 20
        patience = max(0.1, 20 * calm)  # where others keep the cores busy, calm is slow as well
        assert statistics.median(answered) < patience, "a legitimate request is answered meanwhile"

        # Of those who leave at once, what is still on its way goes with them.
        def all_seen() -> bool:
            answered.append(client.ping())
            return int(client.status()["control"]["requests"]) >= FLOODERS * each // 2

        until(all_seen)
        status = client.status()
        assert status["state"] == "TRAINING", "nobody's nonsense has stopped it"
        client.mark("still here")
    assert process.is_running()
    # The rings of 20,000 events fill meanwhile, as the daemon's own load and the audit of refusals come in.
    left = FLOODERS * each // ON_ONE_CONNECTION * CONNECTION_BYTES
    assert process.memory_info().rss - warm < GROWTH_BYTES + 20_000 * 1_000 + left

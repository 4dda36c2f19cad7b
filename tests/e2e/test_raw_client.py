"""Any language can do it: pyzmq's REQ and SUB, the json module and nothing of ours."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import zmq

from .conftest import House, eventually


def test_the_daemon_driven_with_req_and_json_alone(house: House) -> None:
    house.spawn("raw")
    connection = json.loads((house.run_folder("raw") / "connection.json").read_bytes())
    endpoints = connection["endpoints"]
    context = zmq.Context()

    def call(socket_name: str, method: str, **params: Any) -> dict[str, Any]:
        with context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, 60_000)
            socket.connect(endpoints[socket_name])
            identity = uuid.uuid4().hex
            request = {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}
            socket.send(json.dumps(request).encode())
            reply: dict[str, Any] = json.loads(socket.recv_multipart()[0])
            assert reply["id"] == identity
            assert "error" not in reply, reply
            return {**reply["result"], "_id": identity}

    events = context.socket(zmq.SUB)
    events.setsockopt(zmq.LINGER, 0)
    events.setsockopt(zmq.SUBSCRIBE, b"1/")
    events.connect(endpoints["ev"])

    assert call("qry", "hello")["name"] == "raw"
    assert call("qry", "status")["state"] == "TRAINING"
    accepted = call("ctl", "telemetry.escalate", level="DEBUG", epochs=2)
    assert accepted["state"] == "accepted"

    done: dict[str, Any] | None = None
    layers = 0
    numbers: dict[str, int] = {}
    end = time.monotonic() + 60
    while done is None and time.monotonic() < end:
        if not events.poll(1000):
            continue
        frames = events.recv_multipart()
        if frames == [b"1/hb"]:  # the welcome: the subscription is live
            continue
        topic, header_raw, *rest = frames
        header = json.loads(header_raw)
        if topic == b"1/hb":
            assert header["boot"] == connection["boot"]
            continue
        (body,) = rest
        lines = [json.loads(line) for line in body.splitlines()]
        assert (lines[0]["seq"], lines[-1]["seq"], len(lines)) == (
            header["first"], header["last"], header["n"],
        )  # fmt: skip
        stream = header["stream"]
        assert lines[0]["seq"] == numbers.get(stream, lines[0]["seq"] - 1) + 1, "no gap"
        numbers[stream] = lines[-1]["seq"]
        layers += sum(line["type"] == "layers" for line in lines)
        for line in lines:
            if line["type"] == "command.done" and line["data"]["id"] == accepted["_id"]:
                done = line
    assert done is not None
    call("ctl", "pause")
    eventually(lambda: call("qry", "status")["state"] == "PAUSED")
    call("ctl", "resume")
    call("ctl", "stop", checkpoint=False)
    events.close()
    context.destroy(0)
    assert house.processes[0].wait(60) == 0
    assert len(house.journal("raw", "layers")) == 2
    assert layers <= 2

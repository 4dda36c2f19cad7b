"""Any language can do it: pyzmq's REQ and SUB, the json module and nothing of ours."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest
import zmq

from .conftest import House, eventually


class RawClient:
    """A daemon's three sockets, spoken to with JSON alone."""

    def __init__(self, connection: dict[str, Any]) -> None:
        self.boot = connection["boot"]
        self.context = zmq.Context()
        self._endpoints = connection["endpoints"]
        self._events = self.context.socket(zmq.SUB)
        self._events.setsockopt(zmq.LINGER, 0)
        self._events.setsockopt(zmq.SUBSCRIBE, b"1/")
        self._events.connect(self._endpoints["ev"])
        assert self._events.poll(300_000), "the welcome: the subscription is live"
        assert len(self._events.recv_multipart()) == 1
        self._last: dict[str, int] = {}
        self.bye: str | None = None

    def call(self, socket_name: str, method: str, **params: Any) -> dict[str, Any]:
        """Ask once, on a socket of its own."""
        with self.context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, 300_000)
            socket.connect(self._endpoints[socket_name])
            identity = uuid.uuid4().hex
            request = {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}
            socket.send(json.dumps(request).encode())
            reply: dict[str, Any] = json.loads(socket.recv_multipart()[0])
            assert reply["id"] == identity
            assert "error" not in reply, reply
            return {**reply["result"], "_id": identity}

    def events(self) -> list[dict[str, Any]]:
        """The next batch, checked against its header; nothing after a second of silence."""
        if not self._events.poll(1000):
            return []
        topic, *rest = self._events.recv_multipart()
        header = json.loads(rest[0])
        if topic == b"1/hb":
            assert header["boot"] == self.boot
            self.bye = header["bye"]
            return []
        lines = [json.loads(line) for line in rest[1].splitlines()]
        first, last, count = header["first"], header["last"], header["n"]
        assert (lines[0]["seq"], lines[-1]["seq"], len(lines)) == (first, last, count)
        assert first == self._last.get(header["stream"], first - 1) + 1, "no gap"
        self._last[header["stream"]] = last
        return lines

    def close(self) -> None:
        self.context.destroy(0)


@pytest.mark.slow
def test_the_daemon_driven_with_req_and_json_alone(house: House) -> None:
    house.spawn("raw", "--set", "telemetry.escalate_on=off")
    client = RawClient(json.loads((house.run_folder("raw") / "connection.json").read_bytes()))
    assert client.call("qry", "hello")["name"] == "raw"
    assert client.call("qry", "status")["state"] == "TRAINING"
    accepted = client.call("ctl", "telemetry.escalate", level="DEBUG", epochs=2)
    assert accepted["state"] == "accepted"
    seen: list[dict[str, Any]] = []

    def done() -> list[dict[str, Any]]:
        return [e for e in seen if e["type"] == "command.done" and e["data"]["id"] == accepted["_id"]]

    end = time.monotonic() + 300
    while not done() and time.monotonic() < end:
        seen += client.events()
    assert len(done()) == 1
    client.call("ctl", "pause")
    eventually(lambda: client.call("qry", "status")["state"] == "PAUSED")
    client.call("ctl", "resume")
    client.call("ctl", "stop", checkpoint=False)
    eventually(lambda: client.events() == [] and client.bye)
    client.close()
    (stopped,) = house.journal("raw", "run.stopped")
    assert client.bye == stopped["data"]["reason"]
    assert stopped["data"]["reason"].startswith("stop by ")
    assert house.processes[0].wait(300) == 0
    assert len(house.journal("raw", "layers")) == 2
    assert sum(event["type"] == "layers" for event in seen) <= 2

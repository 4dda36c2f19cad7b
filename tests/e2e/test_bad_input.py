"""What goes in wrong comes out as one clear line, and the daemon lives."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import zmq

from .conftest import House


@pytest.mark.slow
def test_absent_device_is_refused_in_one_line(house: House) -> None:
    result = house.daemon("start", "--device", "cuda:9")
    assert result.returncode == 9
    assert "cuda:9" in result.stderr
    assert "CUDA devices" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_typo_in_a_file_names_file_and_key(house: House, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[ppo]\nlearning_rte = 0.1\n")
    result = house.daemon("start", "--config", str(file))
    assert result.returncode == 9
    assert str(file) in result.stderr
    assert "ppo.learning_rate" in result.stderr


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(house: House, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    house.environment["ESPER_HOME"] = str(blocker / "home")
    result = house.daemon("start", "x")
    assert result.returncode == 10
    assert str(blocker) in result.stderr
    assert "ESPER_HOME" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_socket_path_that_is_too_long(house: House, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir(mode=0o700)
    house.environment["XDG_RUNTIME_DIR"] = str(deep)
    result = house.daemon("start", "x")
    assert result.returncode == 10
    assert "107" in result.stderr
    assert "XDG_RUNTIME_DIR" in result.stderr


def ctl(house: House, name: str, socket_name: str = "ctl") -> str:
    connection = json.loads((house.run_folder(name) / "connection.json").read_bytes())
    endpoint: str = connection["endpoints"][socket_name]
    return endpoint


@pytest.mark.slow
def test_bad_requests_get_typed_errors_and_daemon_lives(house: House) -> None:
    house.spawn("solid")
    context = zmq.Context()

    def ask(raw: bytes) -> dict[str, object]:
        with context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, 300_000)
            socket.connect(ctl(house, "solid"))
            socket.send(raw)
            reply: dict[str, object] = json.loads(socket.recv_multipart()[0])
            return reply

    def request(**fields: object) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": "1", "method": "ping", "params": {}, **fields}).encode()

    now = time.time_ns() // 1000
    cases = [
        (b"\xff\x00junk", -32700),
        (b"", -32700),
        (b"[1,2]", -32600),
        (b'{"id":5}', -32600),
        (request(id="a", method="explode"), -32601),
        (request(id="b", method="checkpoint", params={"tagg": "x"}), -32602),
        (request(id="c", method="telemetry.escalate", params={"epochs": -5}), -32602),
        (request(id="d", method="pause", meta={"deadline": now - 1_000_000}), -32008),
        (request(id="e", method="pause", meta={"expect": {"boot": "another"}}), -32010),
        (request(id="f", method="resume"), -32003),
    ]
    for raw, code in cases:
        error = ask(raw)["error"]
        assert isinstance(error, dict)
        assert error["code"] == code, (raw, error)
        assert error["message"]
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(ctl(house, "solid"))
        for frames in ([b""], [b"", b"", b"{}"], [b"x" * 100, b""], [b"", b"y" * 500_000], [os.urandom(64)]):
            socket.send_multipart(frames)
        time.sleep(0.2)
    context.destroy(0)
    assert house.ask("status", "solid")["state"] == "TRAINING"
    assert house.daemon("stop", "solid").returncode == 0


@pytest.mark.slow
def test_commands_that_are_refused_end_with_their_exit_codes(house: House) -> None:
    house.spawn("codes")
    assert house.daemon("resume", "codes").returncode == 4
    assert house.daemon("escalate", "codes", "--epochs", "0").returncode == 5
    assert house.daemon("escalate", "codes", "--env", "99").returncode == 5
    assert house.daemon("checkpoint", "codes", "--tag", "a/b").returncode == 5
    assert house.daemon("status", "nobody").returncode == 3
    assert house.daemon("pause", "codes").returncode == 0
    assert house.daemon("pause", "codes").returncode == 4
    assert house.ask("status", "codes")["state"] == "PAUSED"
    assert house.daemon("stop", "codes").returncode == 0
    assert house.daemon("status", "codes").returncode == 3

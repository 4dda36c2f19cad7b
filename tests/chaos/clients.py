"""Clients that take part in the chaos and are judged: one writes down what it receives, one commands.

They speak the wire with pyzmq and json alone. Each has a thread. What they find wrong while they listen
stands in `problems`; what can be judged only by the whole journal, `judge` looks at in the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from esper_overwatch.protocol.storage.keys import client_pair

from .plain import Line

STREAMS = ("life", "metric", "trace", "log")
SILENT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
LATE_SECONDS = 30.0
REFUSED_ROLE, REFUSED_LATE, REFUSED_ID, REFUSED_BOOT = -32002, -32008, -32009, -32010


def connection_of(run: Path) -> dict[str, Any]:
    """What `connection.json` says; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((run / "connection.json").read_bytes()))
    return {}


class _Client:
    def __init__(self, run: Path) -> None:
        self.run = run
        self.problems: list[str] = []
        self._is_over = threading.Event()
        self._has_ended_well = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._thread = threading.Thread(target=self._attempt, daemon=True)
        self._thread.start()

    def _attempt(self) -> None:
        self._main()
        self._has_ended_well = True

    def _main(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End it."""
        self._is_over.set()
        self._thread.join()
        if not self._has_ended_well:
            self.problems.append(f"the thread of {type(self).__name__} has died; it has said why")
        self._context.destroy(linger=0)


class Recorder(_Client):
    """Subscribes to all streams and the heartbeat, and writes down every line.

    Attributes:
        lines: by boot, (stream, number, line) in the order received.
    """

    def __init__(self, run: Path) -> None:
        self.lines: dict[str, list[tuple[str, int, bytes]]] = defaultdict(list)
        self._last: dict[tuple[str, str], int] = {}
        super().__init__(run)

    def newest(self, boot: str) -> dict[str, int]:
        """The newest number received, per stream."""
        return {stream: self._last.get((boot, stream), 0) for stream in STREAMS}

    def _main(self) -> None:
        socket, where, heard = None, None, 0.0
        while not self._is_over.is_set():
            found = connection_of(self.run).get("endpoints", {}).get("ev")
            if found and (found != where or time.monotonic() - heard > SILENT_SECONDS):
                if socket is not None:
                    socket.close(linger=0)
                socket, where, heard = self._context.socket(zmq.SUB), found, time.monotonic()
                socket.set(zmq.RCVHWM, 100_000)
                for topic in (*STREAMS, "hb"):
                    socket.subscribe(f"1/{topic}".encode())
                socket.connect(found)
            if socket is None or not socket.poll(100):
                self._is_over.wait(0.05)
                continue
            while socket.poll(0):
                heard = time.monotonic()
                self._take(socket.recv_multipart())

    def _take(self, frames: list[bytes]) -> None:
        if len(frames) == 1:  # the welcome
            return
        head = json.loads(frames[1])
        boot = head["boot"]
        if frames[0] == b"1/hb":
            behind = {s: n for s, n in head["last"].items() if n < self._last.get((boot, s), 0)}
            if behind:
                self.problems.append(f"boot {boot}: a heartbeat's last is {behind}, more was received before")
            return
        stream = head["stream"]
        for number, line in enumerate(frames[2].split(b"\n"), head["first"]):
            last = self._last.get((boot, stream), 0)
            if number <= last:
                self.problems.append(f"boot {boot}: {stream} {number} was received after {last}")
            self._last[boot, stream] = number
            self.lines[boot].append((stream, number, line))

    def judge(self, held: dict[tuple[str, int], bytes], cut: dict[str, dict[str, int]]) -> int:
        """Compare what was received with the journal; gives how many lines were.

        Args:
            held: the journal's lines by their numbers.
            cut: boots that have lost their power: the newest numbers that were left, per stream.
        """
        for boot, received in self.lines.items():
            for stream, number, line in received:
                there = held.get((stream, number), b"nothing")
                if there != line and (boot not in cut or number <= cut[boot].get(stream, 0)):
                    self.problems.append(
                        f"boot {boot}: {stream} {number} was received as {line[:150]!r}, "
                        f"the journal has {there[:150]!r}"
                    )
                    break
        count = sum(map(len, self.lines.values()))
        if not count:
            self.problems.append("nothing was received")
        return count


@dataclass
class Sent:
    """A command and what came of it."""

    id: str
    method: str
    boot: str
    """At which it was sent."""
    refusal: int | None
    """The error's code that it has to be refused with; None where it may be accepted."""
    key: str | None
    """Of the client; None for the local user."""
    answers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_accepted(self) -> bool:
        return any("error" not in answer or answer["error"] is None for answer in self.answers)


class Commander(_Client):
    """Sends one command after another, some that must be refused, and each again where no answer comes.

    Args:
        run: folder of the run.
        rng: decides what it sends.
        port: of the gateway; keys `watcher` (viewer) and `steerer` (operator) are authorized.
        is_clock_right: false while the daemon's clock is another than ours.
    """

    def __init__(self, run: Path, rng: random.Random, port: int, is_clock_right: threading.Event) -> None:
        self.sent: list[Sent] = []
        self._rng = rng
        self._port = port
        self._is_clock_right = is_clock_right
        super().__init__(run)

    def _main(self) -> None:
        before = "00000000"
        while not self._is_over.wait(self._rng.uniform(0.1, 0.6)):
            boot = connection_of(self.run).get("boot")
            if boot is not None:
                self._command(boot, before)
                before = boot

    def _command(self, boot: str, before: str) -> None:
        rng = self._rng
        method = rng.choices(("mark", "checkpoint", "log.rotate"), (7, 2, 1))[0]
        meta: dict[str, Any] = {"expect": {"boot": boot}, "client": "commander"}
        refusal, key = None, rng.choices((None, "steerer", "watcher"), (6, 2, 2))[0]
        what = rng.random()
        if key == "watcher":
            refusal, method = REFUSED_ROLE, rng.choice(("stop", "mark"))
        elif what < 0.1 and self._is_clock_right.is_set():
            refusal, meta["deadline"] = REFUSED_LATE, int((time.time() - LATE_SECONDS) * 1e6)
        elif what < 0.2:
            refusal, meta["expect"] = REFUSED_BOOT, {"boot": f"{int(boot, 16) ^ 1:08x}"}
        one = Sent(os.urandom(8).hex(), method, boot, refusal, key)
        params = {"text": one.id} if method == "mark" else {}
        request = {"jsonrpc": "2.0", "id": one.id, "method": method, "params": params, "meta": meta}
        body = json.dumps(request).encode()
        self.sent.append(one)
        while not one.answers and not self._is_over.is_set():
            self._ask(one, body, key)
            if connection_of(self.run).get("boot") != boot:
                return
        if one.is_accepted and refusal is None and rng.random() < 0.4:
            self._ask(one, body, key)
            changed = json.dumps(request | {"method": "mark", "params": {"text": one.id + " again"}}).encode()
            other = Sent(one.id, "mark", boot, REFUSED_ID, key)
            self._ask(other, changed, key)
            if other.is_accepted:
                self.problems.append(f"{one.method} {one.id}: another body was accepted under its id")

    def _ask(self, one: Sent, body: bytes, key: str | None) -> None:
        """Send it once; more than one answer to that is a problem."""
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        try:
            self._connect(socket, key)
            socket.send_multipart([b"", body], zmq.NOBLOCK)
            end = time.monotonic() + ANSWER_SECONDS
            while time.monotonic() < end and not socket.poll(100):
                if self._is_over.is_set() or connection_of(self.run).get("boot") != one.boot:
                    return
            count = 0
            while socket.poll(20):
                one.answers.append(json.loads(socket.recv_multipart()[-1]))
                count += 1
            if count > 1:
                self.problems.append(f"{one.method} {one.id}: {count} answers came")
        except (zmq.ZMQError, KeyError):
            time.sleep(0.1)
        finally:
            socket.close()

    def _connect(self, socket: zmq.Socket[bytes], key: str | None) -> None:
        if key is None:
            socket.connect(connection_of(self.run)["endpoints"]["ctl"])
            return
        _, pair = client_pair(key)
        socket.set(zmq.CURVE_SERVERKEY, pair.server.encode())
        socket.set(zmq.CURVE_PUBLICKEY, pair.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, pair.secret.encode())
        socket.connect(f"tcp://127.0.0.1:{self._port + 1}")

    def judge(self, lines: list[Line], whole: set[str]) -> dict[str, int]:
        """Each command has one effect and one answer, or none of either; gives how many were what.

        Args:
            lines: the journal's.
            whole: boots that ended in order, so that all their events are in the journal.
        """
        told: dict[str, Counter[str]] = defaultdict(Counter)
        accepted: dict[str, Line] = {}
        for line in lines:
            if line.type.startswith("command."):
                told[line.data["id"]][line.type] += 1
                if line.type == "command.accepted":
                    accepted[line.data["id"]] = line
            elif line.type == "mark":
                told[line.data["text"]]["effect"] += 1
            elif line.type.startswith("checkpoint.") and line.data.get("command"):
                told[line.data["command"]]["effect"] += 1
        later: set[str] = set()
        """Boots of which a later command is in the journal, so that all before it are."""
        for one in reversed(self.sent):
            is_told = one.boot in whole or one.boot in later
            self._judge_one(one, told[one.id], is_told=is_told, is_ended=one.boot in whole)
            if told[one.id]["command.accepted"]:
                later.add(one.boot)
                if accepted[one.id].data["key"] != one.key:
                    self.problems.append(f"{one.method} {one.id} of {one.key}: the audit names another key")
        refused = sum(one.refusal is not None for one in self.sent)
        return {"commands": len(self.sent), "to_refuse": refused}

    def _judge_one(self, one: Sent, told: Counter[str], *, is_told: bool, is_ended: bool) -> None:
        def check(is_right: bool, what: str) -> None:
            if not is_right:
                answers = [answer.get("error") or answer.get("result") for answer in one.answers]
                self.problems.append(f"{one.method} {one.id} {what}: answers {answers}, events {dict(told)}")

        errors = [answer["error"]["code"] for answer in one.answers if answer.get("error")]
        ends = told["command.done"] + told["command.failed"]
        check(told["command.accepted"] <= 1 and ends <= 1 and told["effect"] <= 1, "had more than one effect")
        results = {json.dumps(answer["result"]) for answer in one.answers if not answer.get("error")}
        check(len(results) <= 1, "had different answers")
        if one.refusal is not None:
            check(not told["command.accepted"] and not told["effect"], "had to be refused")
            check(not one.is_accepted, "had to be refused")
            if (
                one.refusal in errors and is_told and one.key is not None
            ):  # a local user's rate others use, too
                check(told["command.refused"] >= 1, "was refused without a record")
        elif one.is_accepted and is_told:
            check(told["command.accepted"] == 1, "was accepted without a record")
            if is_ended:
                check(ends == 1, "did not end")
        if one.refusal is None and told["command.done"] and one.method != "log.rotate":
            check(told["effect"] == 1, "was done without its effect")
        if not one.is_accepted and errors:
            check(not told["effect"], "was refused and had an effect")

"""`tail` and `replay` of a run behind a port: the same as from its files, asked of the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.client.subscriber import Subscriber
from esper_overwatch.protocol.codec.addresses import with_key
from esper_overwatch.protocol.codec.json_lines import decode_line, encode_event
from esper_overwatch.protocol.journal.writer import JournalLimits
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server import publisher
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.keys import make_client
from esper_overwatch.trainer.cli import journal
from tests.protocol.harness import serving, until
from tests.protocol.sshd import free_ports
from tests.trainer.command import esper

KEEP_BYTES = 8_000


@pytest.fixture
def address(short_home: Path) -> str:
    for name in ("viewer", "stranger"):
        make_client(name, server=None, role="viewer")  # type: ignore[arg-type]
    return f"tcp://127.0.0.1:{free_ports(3)}"


@pytest.fixture
def server(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A run of which the memory holds little and whose oldest segments are gone."""
    monkeypatch.setattr(publisher, "MAX_RING_EVENTS", 300)
    limits = JournalLimits(segment_bytes=60_000, keep_bytes=KEEP_BYTES)
    server = Server(RunFolder.claim("alpha"), hello={}, limits=limits)
    server.start()
    server.set_state("TRAINING")
    for n in range(3_000):
        server.emitter.emit(ev.LogLine(level="INFO", logger="x", message=str(n)))
        if n % 3 == 0:
            next_microsecond()
            server.emitter.emit(ev.RoundStarted(rounds=n))
        next_microsecond()
        if n % 500 == 0:
            assert server.flush(60.0)
    assert server.flush(60.0)
    with serving(address):
        yield server
    server.close()
    server.run.release()


def next_microsecond() -> None:
    """Events of two streams have no order within one."""
    begin = time.time_ns() // 1000
    while time.time_ns() // 1000 == begin:
        pass


def settled(server: Server) -> None:
    """Wait until nothing is compressed or removed any more."""
    until(lambda: at_rest(server))


def at_rest(server: Server) -> bool:
    """Whether the newest segment that retention took has been told, and then nothing is left to be done."""
    removed = server._journal._compactor.manifest.removed.number
    told = esper("tail", "-n", "1", "--type", "journal.removed", "--json", "alpha").output
    assert server.flush(60.0)
    segments = server._journal.segments
    if segments["not_compressed"] or segments["compressed_bytes"] > KEEP_BYTES:  # type: ignore[operator]
        return False
    return (
        removed == server._journal._compactor.manifest.removed.number
        and f"events-{removed:06}.jsonl.zst" in told
    )


def test_both_ways_print_the_same(server: Server, address: str) -> None:
    settled(server)
    oldest = int(esper("replay", "alpha", "--stream", "log", "--last", "1").output.split()[-1])
    assert oldest > 100, "retention has taken the beginning"
    newest = server._publisher.last["log"]
    for words in (
        ("replay", "--json"),
        ("replay", "--stream", "life"),
        ("replay", "--stream", "log", "--first", str(newest - 1_000), "--last", str(newest - 20), "--json"),
        ("replay", "--stream", "log", "--first", str(oldest - 50), "--json"),
        ("replay", "--stream", "log", "--first", "2", "--last", "3"),
        ("replay", "--stream", "trace"),
        ("replay", "--type", "journal.removed", "--json"),
        ("tail", "-n", "1"),
        ("tail", "-n", "700", "--json"),
        ("tail", "-n", "3", "--type", "round.started", "--json"),
        ("tail", "-n", "100000", "--json"),
    ):
        here = esper(*words, "alpha")
        there = esper(*words, address, "--key", "viewer")
        assert there.exit_code == here.exit_code, there.output
        assert there.output == here.output, words
        assert here.output or "trace" in words


def test_tail_follows_to_the_end(server: Server, address: str) -> None:
    settled(server)
    here = esper("tail", "-n", "2", "--json", "alpha").output.splitlines()
    words = [
        sys.executable,
        "-m",
        "esper_overwatch.trainer",
        "tail",
        "-f",
        "-n",
        "2",
        "--json",
        address,
        "--key",
        "viewer",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process, ExitStack() as at_end:
        at_end.callback(process.kill)  # or a test that has failed waits for it without end
        assert process.stdout is not None
        rows = [json.loads(process.stdout.readline()) for _ in range(2)]
        for n in range(40):
            server.emitter.emit(ev.Mark(text=str(n), client="x", uid=None, pid=None))
        server.close()
        rows += [json.loads(line) for line in process.stdout]
        assert process.wait(300) == 0
    assert rows[:2] == [json.loads(line) for line in here]
    assert [row["data"]["text"] for row in rows if row["type"] == "mark"] == [str(n) for n in range(40)]
    numbers = [(row["stream"], row["seq"]) for row in rows]
    assert len(set(numbers)) == len(numbers)


def test_tail_of_a_run_that_has_ended_waits_for_nothing(server: Server) -> None:
    server.emitter.emit(ev.RunStopped(reason="finished", exit_code=0, rounds=1))
    settled(server)
    server.close()
    server.run.release()
    result = esper("tail", "-f", "-n", "2", "alpha")
    assert (result.exit_code, result.output.count("\n")) == (0, 2), result.output


@pytest.mark.parametrize("is_remote", [False, True])
def test_tail_of_a_run_that_ends_at_once(
    server: Server, address: str, monkeypatch: pytest.MonkeyPatch, *, is_remote: bool
) -> None:
    texts = [str(n) for n in range(500)]
    printed: list[str] = []

    def end_at_first_line(line: bytes) -> None:
        printed.append(json.loads(line).get("data", {}).get("text"))
        if len(printed) == 1:
            for text in texts:
                server.emitter.emit(ev.Mark(text=text, client="x"))
            server.close()
            server.run.release()

    monkeypatch.setattr(journal, "print_json_text", end_at_first_line)
    name = with_key(address, "viewer") if is_remote else "alpha"
    options = {"follow": True, "lines": 1, "types": (), "as_json": True}
    tail = threading.Thread(target=journal.tail_run, args=(name,), kwargs=options, daemon=True)
    tail.start()
    until(lambda: not tail.is_alive())
    assert [text for text in printed if text in texts] == texts


@pytest.mark.parametrize("asked", ["status", "replay"])
def test_tail_of_a_run_that_ends_before_it_answers(
    server: Server, address: str, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    call, printed = Client._exchange, list[dict[str, Any]]()

    def end_before(self: Client, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == asked:
            server.emitter.emit(ev.Mark(text="the last", client="x"))
            server.close()
            server.run.release()
        return call(self, method, *args, **kwargs)

    monkeypatch.setattr(Client, "_exchange", end_before)
    monkeypatch.setattr(journal, "print_json_text", lambda line: printed.append(json.loads(line)))
    journal.tail_run(with_key(address, "viewer"), follow=True, lines=1, types=("mark",), as_json=True)
    assert [row["data"]["text"] for row in printed] == ["the last"]


@pytest.mark.parametrize("is_remote", [False, True])
def test_tail_of_a_run_that_ends_before_its_snapshot(
    server: Server, address: str, monkeypatch: pytest.MonkeyPatch, *, is_remote: bool
) -> None:
    def end_before(_: Subscriber) -> None:
        server.close()
        server.run.release()

    monkeypatch.setattr(Subscriber, "_ask_snapshot", end_before)
    name = with_key(address, "viewer") if is_remote else "alpha"
    result = esper("tail", "-f", "-n", "3", name)
    assert (result.exit_code, result.output.count("\n")) == (0, 0 if is_remote else 3), result.output


def test_a_key_that_is_not_let_in_is_one_line(server: Server, address: str) -> None:
    revoked = esper("keys", "revoke", "stranger")
    assert revoked.exit_code == 0, revoked.output
    until(lambda: esper("tail", address, "--key", "stranger").exit_code == 4)
    result = esper("tail", address, "--key", "stranger")
    assert result.output.count("\n") == 1


def test_replay_follows_a_live_run_until_it_ends(server: Server, address: str) -> None:
    command = [sys.executable, "-m", "esper_overwatch.trainer", "replay", "alpha", "--json", "--follow"]
    with subprocess.Popen([*command, "--type", "mark"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        server.emitter.emit(ev.Mark(text="one", client="me"))
        assert json.loads(process.stdout.readline())["data"]["text"] == "one"
        server.emitter.emit(ev.Mark(text="two", client="me"))
        assert json.loads(process.stdout.readline())["data"]["text"] == "two"
        server.close()
        server.run.release()
        assert process.stdout.read() == b""
    for words in (("alpha", "--stream", "life"), (address,)):
        assert esper("replay", "--follow", *words).exit_code in (2, 3)


def test_replay_that_nobody_reads_ends(server: Server) -> None:
    command = [sys.executable, "-m", "esper_overwatch.trainer", "replay", "alpha", "--json", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(300) == 141


def test_event_of_lists_alone_says_so() -> None:
    """Before, `tail` printed the name of the type and nothing else."""
    fields = ("norm", "norm_ema", "norm_drift", "health", "health_ema", "health_drift")
    drift = ev.Drift(source=["env00"], **{name: [None] for name in fields})
    line = decode_line(encode_event(1, 2, ev.Context(), drift))
    assert journal.format_event(line).endswith(" drift lists alone; --json shows them")

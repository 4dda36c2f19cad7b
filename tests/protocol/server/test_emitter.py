from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.server.emitter import MAX_QUEUED, Emitted, Emitter


def test_events_carry_the_clock_of_their_moment() -> None:
    emitter = Emitter()
    emitter.set_clock(round=3, epoch=1, level="DEBUG")
    emitter.emit(ev.RoundStarted(rounds=1))
    emitter.set_clock(epoch=2)
    emitter.emit(ev.RoundStarted(rounds=2), env=5)
    first, second = emitter.drain(10)
    assert first.ctx == ev.Context(round=3, epoch=1, level="DEBUG")
    assert second.ctx == ev.Context(round=3, epoch=2, level="DEBUG")
    assert (first.env, second.env) == (None, 5)
    assert first.ns <= second.ns


def test_a_drain_takes_a_bounded_number_per_stream_by_time() -> None:
    emitter = Emitter()
    for i in range(4):
        emitter.emit(ev.RoundStarted(rounds=i))
        emitter.emit(ev.LogLine(level="INFO", logger="x", message=str(i)))
    taken = emitter.drain(2)
    assert [type(item.event) for item in taken] == [ev.RoundStarted, ev.LogLine] * 2
    assert emitter.waiting == {"life": 2, "metric": 0, "trace": 0, "log": 2}


def test_full_queue_refuses_and_counts_the_newest() -> None:
    emitter = Emitter()
    bound = MAX_QUEUED["log"]
    before = time.time_ns() // 1000
    for i in range(bound + 7):
        emitter.emit(ev.LogLine(level="INFO", logger="x", message=str(i)))
    emitter.emit(ev.RoundStarted(rounds=1))
    assert emitter.dropped == {"life": 0, "metric": 0, "trace": 0, "log": 7}
    (loss,) = emitter.take_losses()
    assert (loss.stream, loss.count) == ("log", 7)
    assert before <= loss.from_ts <= loss.to_ts
    assert emitter.take_losses() == []
    taken = emitter.drain(bound + 10)
    assert [item.event.message for item in taken if isinstance(item.event, ev.LogLine)] == [
        str(i) for i in range(bound)
    ]


def messages(taken: list[Emitted]) -> list[int]:
    return [item.event.rounds for item in taken if isinstance(item.event, ev.RoundStarted)]


def test_life_beyond_memory_waits_on_disk_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_QUEUED, "life", 50)
    emitter = Emitter()
    emitter.overflow_into(tmp_path)
    for i in range(180):
        emitter.emit(ev.RoundStarted(rounds=i), env=i)
    assert (emitter.waiting["life"], emitter.dropped["life"]) == (180, 0)
    taken = emitter.drain(70)
    for i in range(180, 200):
        emitter.emit(ev.RoundStarted(rounds=i), env=i)
    while emitter.waiting["life"]:
        taken += emitter.drain(70)
    emitter.emit(ev.RoundStarted(rounds=200), env=200)
    taken += emitter.drain(70)
    assert messages(taken) == list(range(201))
    assert [item.env for item in taken] == list(range(201))
    times = [item.ns // 1000 for item in taken]
    assert times == sorted(times)
    assert emitter.take_losses() == []
    assert list(tmp_path.iterdir()) == [], "the file has no name, so that no crash leaves it behind"


def test_a_flood_of_life_is_written_whole(tmp_path: Path) -> None:
    emitter = Emitter()
    emitter.overflow_into(tmp_path)
    total = MAX_QUEUED["life"] + 5000
    for i in range(total):
        emitter.emit(ev.RoundStarted(rounds=i))
    taken = []
    while part := emitter.drain(4096):
        taken += part
    assert messages(taken) == list(range(total))
    assert emitter.dropped["life"] == 0


def test_threads_keep_the_order_of_life_while_it_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_QUEUED, "life", 20)
    emitter, each, taken = Emitter(), 400, []
    emitter.overflow_into(tmp_path)

    def work(n: int) -> None:
        for i in range(each):
            emitter.emit(ev.RoundStarted(rounds=i), env=n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or emitter.waiting["life"]:
        taken += emitter.drain(7)
    for n in range(3):
        assert messages([item for item in taken if item.env == n]) == list(range(each))


def test_life_without_room_on_disk_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_QUEUED, "life", 5)
    emitter = Emitter()
    emitter.overflow_into(tmp_path / "gone")
    for i in range(8):
        emitter.emit(ev.RoundStarted(rounds=i))
    assert messages(emitter.drain(10)) == [0, 1, 2, 3, 4]
    (loss,) = emitter.take_losses()
    assert (loss.stream, loss.count) == ("life", 3)


def test_a_signal_handler_may_emit_while_life_goes_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_QUEUED, "life", 2)
    emitter = Emitter()
    emitter.overflow_into(tmp_path)
    write = os.pwrite

    def interrupted(fd: int, data: bytes, at: int) -> int:
        monkeypatch.setattr(os, "pwrite", write)
        emitter.emit(ev.RoundStarted(rounds=99))
        return write(fd, data, at)

    for i in range(3):
        if i == 2:
            monkeypatch.setattr(os, "pwrite", interrupted)
        emitter.emit(ev.RoundStarted(rounds=i))
    taken = emitter.drain(10) + emitter.drain(10)
    assert sorted(messages(taken)) == [0, 1, 2, 99]


def test_threads_lose_nothing_and_count_everything() -> None:
    emitter = Emitter()
    each, bound = 3000, MAX_QUEUED["log"]

    def work(n: int) -> None:
        for i in range(each):
            emitter.emit(ev.LogLine(level="INFO", logger=str(n), message=str(i)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = [item.event for item in emitter.drain(4 * each)]
    assert len(taken) + emitter.dropped["log"] == 4 * each
    assert bound <= len(taken) <= bound + len(threads)
    for n in range(4):
        numbers = [int(e.message) for e in taken if isinstance(e, ev.LogLine) and e.logger == str(n)]
        assert numbers == sorted(numbers)


def test_an_unregistered_class_is_the_callers_error() -> None:
    with pytest.raises(KeyError):
        Emitter().emit(object())


def test_a_signal_handler_may_emit_while_a_full_queue_refuses() -> None:
    emitter = Emitter()
    for _ in range(MAX_QUEUED["log"]):
        emitter.emit(ev.LogLine(level="INFO", logger="x", message=""))
    old = signal.signal(
        signal.SIGUSR1, lambda *_: emitter.emit(ev.LogLine(level="INFO", logger="x", message=""))
    )
    try:
        with emitter._refusing:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0)
        emitter.emit(ev.LogLine(level="INFO", logger="x", message=""))
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert emitter.dropped["log"] == 2


def test_a_forked_child_is_silent() -> None:
    emitter = Emitter()
    emitter.emit(ev.RoundStarted(rounds=1))
    child = os.fork()
    if child == 0:
        emitter.emit(ev.RoundStarted(rounds=2))
        silent = not any(emitter.waiting.values()) and not any(emitter.dropped.values())
        os._exit(0 if silent else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert emitter.waiting["life"] == 1

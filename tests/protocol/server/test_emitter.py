from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from protocol.messages import events as ev
from protocol.server.emitter import MAX_QUEUED, Emitter


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


@pytest.mark.finding("AR-3")
@pytest.mark.finding("EM-03")
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


@pytest.mark.finding("PD-08")
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


@pytest.mark.fault(34)
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

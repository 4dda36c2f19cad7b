"""Signals are told of while the main thread is inside C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from esper_overwatch import Subscriber
from esper_overwatch.trainer.daemon.signals import SignalListener
from tests.cases import nightly
from tests.protocol.conftest import home as home


@pytest.fixture
def handled() -> Iterator[None]:
    """SIGUSR1 has a handler of Python's."""
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("handled")
def test_each_signal_is_heard_and_afterwards_all_is_as_before() -> None:
    heard: list[int] = []
    three = threading.Event()

    def hear(number: int) -> None:
        heard.append(number)
        if len(heard) == 3:
            three.set()

    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    wakeup = SignalListener(hear)
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert three.wait(300)
    wakeup.close()
    assert heard == [signal.SIGUSR1] * 3
    assert signal.set_wakeup_fd(before) == before


@pytest.mark.usefixtures("handled")
def test_a_forked_childs_signals_are_its_own() -> None:
    heard: list[int] = []
    wakeup = SignalListener(heard.append)
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    wakeup.close()
    assert not heard


DAEMON = """
import signal, sys, torch
from esper_overwatch.protocol.runs import RunFolder
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.trainer.daemon.signals import SignalListener
torch.set_num_threads(1)
server = Server(RunFolder.claim("alpha"), hello={})
server.start()
server.set_state("TRAINING")
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: print("handled", flush=True))
SignalListener(lambda number: server.set_state("STOPPING", signal.Signals(number).name))
matrix = torch.randn(3500, 3500, dtype=torch.float64)
print("ready", flush=True)
torch.linalg.eigvals(matrix)  # far longer than the test takes, without one line of Python
print("over", flush=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("number", [signal.SIGTERM, nightly(signal.SIGINT)])
def test_signal_in_long_torch_operation_is_published_at_once(
    number: signal.Signals,
) -> None:
    process = subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with Subscriber("alpha", streams=("life",)) as subscriber:
            told = []
            for event in subscriber.events(timeout=300):
                if event.type == "run.state":
                    told.append((event.data.state, event.data.reason))
                    if told[-1][0] == "TRAINING":
                        process.send_signal(number)
                    else:
                        break
        assert told == [("TRAINING", ""), ("STOPPING", number.name)]
    finally:
        process.kill()
        written, _ = process.communicate()
    assert written == b"", "the main thread was in its operation all the time"

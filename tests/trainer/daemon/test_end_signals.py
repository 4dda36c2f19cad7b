"""The first signal asks, the second interrupts what is trained and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from esper_overwatch.trainer.daemon.signals import EndSignals, Interrupted


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """The names of the stops that were asked for; the handlers are put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield []
    for number, handler in before.items():
        signal.signal(number, handler)


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_second_signal_interrupts_once(asked: list[str]) -> None:
    ends = EndSignals(asked.append)

    def train() -> None:
        send(signal.SIGTERM)
        assert ends.is_training, "the first only asks"
        try:
            send(signal.SIGINT)
        finally:
            send(signal.SIGINT, signal.SIGTERM)  # the process is on its way out already

    with pytest.raises(Interrupted):
        ends.run(train)
    assert (asked, ends.count) == (["SIGTERM"], 4)


def test_two_signals_before_training_interrupt_its_beginning(asked: list[str]) -> None:
    ends = EndSignals(asked.append)
    send(signal.SIGINT, signal.SIGINT)
    with pytest.raises(Interrupted):
        ends.run(lambda: pytest.fail("trained"))
    assert asked == ["SIGINT"]


def test_signals_after_training_disturb_nothing(asked: list[str]) -> None:
    ends = EndSignals(asked.append)
    assert ends.run(lambda: 7) == 7
    send(signal.SIGTERM, signal.SIGTERM, signal.SIGINT)
    assert (asked, ends.is_training) == ([], False)

"""Keys over their rate of subscriptions, by a clock of the test's own."""

from __future__ import annotations

import pytest

from esper_overwatch.protocol.server import subscription_rates
from esper_overwatch.protocol.server.subscription_rates import (
    BAN_SECONDS,
    MAX_BYTES,
    MAX_BYTES_PER_SECOND,
    MAX_KEYS,
    SubscriptionRates,
)


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(subscription_rates, "time", one)
    return one


def test_key_is_over_once_and_for_a_while(clock: Clock) -> None:
    rates = SubscriptionRates()
    assert not rates.note("a", MAX_BYTES)
    assert not rates.is_over("a")
    assert rates.note("a", 1)
    assert not rates.note("a", 1), "reported once"
    assert rates.is_over("a")
    assert not rates.is_over("b")
    clock.now += BAN_SECONDS
    assert not rates.is_over("a")
    assert not rates.note("a", 100)


def test_slow_subscriptions_are_never_too_many(clock: Clock) -> None:
    rates = SubscriptionRates()
    for _ in range(1000):
        clock.now += 1.0
        assert not rates.note("a", MAX_BYTES_PER_SECOND)


def test_few_keys_are_remembered(clock: Clock) -> None:
    rates = SubscriptionRates()
    for number in range(2 * MAX_KEYS):
        rates.note(str(number), 1)
    assert len(rates._levels) == MAX_KEYS

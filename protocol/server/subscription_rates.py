"""Ban keys for a while that subscribe to more than any client does."""

from __future__ import annotations

import time

MAX_BYTES = 32 * 1024
"""Limit of a key's subscriptions at once over its connections; 128 of ours that join together have 8 KiB."""
MAX_BYTES_PER_SECOND = 4096
BAN_SECONDS = 60.0
MAX_KEYS = 1024
"""Remembered; only keys that are authorized come here."""


class SubscriptionRates:
    """Bytes of subscriptions by key, drained over time. One thread notes; any may ask."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}
        """By key: the level, and when it was that."""
        self._over_until: dict[str, float] = {}

    def note(self, key: str, size: int) -> bool:
        """Count a subscription; whether the key is over its rate by this one, and was not before."""
        now = time.monotonic()
        level, at = self._levels.pop(key, (0.0, now))
        level = max(0.0, level - (now - at) * MAX_BYTES_PER_SECOND) + size
        self._levels[key] = level, now
        while len(self._levels) > MAX_KEYS:
            del self._levels[next(iter(self._levels))]
        if level <= MAX_BYTES or self.is_over(key):
            return False
        self._over_until = {one: until for one, until in self._over_until.items() if until > now}
        self._over_until[key] = now + BAN_SECONDS
        return True

    def is_over(self, key: str) -> bool:
        """True if the key went over its rate within the last `BAN_SECONDS`."""
        return time.monotonic() < self._over_until.get(key, 0.0)

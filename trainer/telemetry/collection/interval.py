"""Interval in epochs at which the costly part of telemetry is collected: fixed, or by a budget of time.

With a budget, collecting backs off when its share of the time passes it, and comes forward again when there
is room. That is paced by the clock, so a run that adapts collects at other epochs each time it is run; what
is trained is the same, and every change is an event.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

from esper_overwatch.protocol.messages.events import TelemetryStride

MAX_INTERVAL_EPOCHS = 64
MIN_SAMPLES = 8
"""Collections at one interval before it may change."""
BUDGET_MARGIN = 0.8
"""Share of the budget that the shorter interval has to stay within, so that it does not oscillate."""


class CollectionInterval:
    """Decides which epochs are collected.

    Args:
        fixed: every `fixed`-th, whatever it costs; 0 = as the budget allows.
        budget: share of the wall time.
    """

    def __init__(self, fixed: int = 0, budget: float = 0.01) -> None:
        self._adaptive = fixed == 0
        self._budget = budget
        self._stride = fixed or 1
        self._since = 0
        """Epochs since the last one that was due."""
        self._costs: deque[float] = deque(maxlen=MIN_SAMPLES)
        self._epochs: deque[float] = deque(maxlen=MIN_SAMPLES)

    @property
    def due(self) -> bool:
        """True if the coming epoch is collected."""
        return self._since == 0

    def record_epoch(self, seconds: float, cost: float | None) -> TelemetryStride | None:
        """Count an epoch, and adapt.

        Args:
            seconds: wall time of it.
            cost: wall time of collecting, part of it; None where nothing was.

        Returns:
            The event, where collecting is more or less frequent from now on.
        """
        self._since = (self._since + 1) % self._stride
        self._epochs.append(seconds)
        if cost is None:
            return None
        self._costs.append(cost)
        if not self._adaptive or len(self._costs) < MIN_SAMPLES:
            return None
        return self._adapted(statistics.median(self._costs) / statistics.median(self._epochs))

    def _adapted(self, share: float) -> TelemetryStride | None:
        """Take the stride that fits.

        Args:
            share: of an epoch that is collected.
        """
        old = self._stride
        needed = 2 ** max(0, math.ceil(math.log2(share / self._budget)))
        if needed > old:
            self._stride = min(needed, MAX_INTERVAL_EPOCHS)
        elif share / max(1, old // 2) <= BUDGET_MARGIN * self._budget:
            self._stride = max(1, old // 2)
        if self._stride == old:
            return None
        self._since = 1 % self._stride
        self._costs.clear()
        return TelemetryStride(old=old, new=self._stride, share=share / old, budget=self._budget)

    def state_dict(self) -> dict[str, Any]:
        return {"stride": self._stride, "since": self._since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the saved interval; a configured one has precedence."""
        if self._adaptive:
            self._stride = state["stride"]
        self._since = state["since"] % self._stride

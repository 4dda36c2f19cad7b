"""Failures in the I/O thread: counted, logged now and then, never its end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from esper_overwatch.protocol.errors import EsperError

logger = logging.getLogger(__name__)

LOG_INTERVAL_SECONDS = 60.0
"""Between two lines about the same step."""

_T = TypeVar("_T")


class Faults:
    """Runs the steps of the I/O thread, each by itself: a failure of one is no failure of the others.

    Attributes:
        counts: failures by step.
        current: what a step failed with when it was last tried, of those that failed.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.current: dict[str, str] = {}
        self._logged_at: dict[str, float] = {}

    def attempt(self, step: str, do: Callable[..., _T], *args: object) -> _T | None:
        """Call `do(*args)`; None where it failed, which the next turn tries again."""
        try:
            result = do(*args)
        except Exception as error:
            with contextlib.suppress(Exception):  # counting and logging may fail for the same reason
                if self._is_log_due(step, error):
                    logger.error(
                        "the wire's step %r failed (%d failures so far): %s; "
                        "it is tried again, and training goes on",
                        step,
                        self.counts[step],
                        error,
                        exc_info=not isinstance(error, EsperError),
                    )
            return None
        if self.current:
            self.current.pop(step, None)
        return result

    def _is_log_due(self, step: str, error: Exception) -> bool:
        """Count a failure; whether it is to be logged."""
        self.counts[step] += 1
        self.current[step] = f"{type(error).__name__}: {error}"
        now = time.monotonic()
        if now - self._logged_at.get(step, float("-inf")) < LOG_INTERVAL_SECONDS:
            return False
        self._logged_at[step] = now
        return True

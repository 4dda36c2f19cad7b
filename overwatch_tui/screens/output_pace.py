"""The number of bytes that may be on their way to the terminal.

What a terminal has taken cannot be seen from here: the kernel, ssh and the network hold many seconds of a
slow link. So each frame ends with a question that terminals answer at once, by which Textual finds out about
synchronised output (DECRQM 2026); the answer says that everything before it has been shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

QUESTION = "\x1b[?2026$p"
FIRST_WINDOW, MIN_WINDOW, MAX_WINDOW = 16_384, 512, 65_536
"""Bytes: more than a screen before anything is known of the link; at least a few lines."""
WINDOW_SECONDS = 0.25
"""Time of a slow link that may be under way: a key has to wait for it."""
SLOW_SECONDS, QUICK_SECONDS = 0.4, 0.1
"""Delays beyond the quickest answer from which a link counts as slow, and up to which as quick."""
SMALL_BYTES = 2048
"""Most bytes before an answer by which the delay of the way is measured."""
RETRY_SECONDS = 30.0
"""Time without an answer after which a little is sent and asked again: the answer may be lost."""
GIVE_UP_SECONDS = 600.0
"""Time without an answer after which the terminal is taken to have stopped answering."""


class _Mark(NamedTuple):
    sent: int
    waiting: int
    """Bytes before it without an answer."""
    asked: float


class OutputPace:
    """Counts bytes sent and answered, by a clock of monotonic seconds; without answers nothing is limited."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[_Mark] = deque()
        self._quickest: float | None = None
        self._answered = 0
        self.sent = 0
        """Bytes so far."""
        self.window = FIRST_WINDOW
        """Bytes that may be under way."""
        self.is_answering = False
        """True once the terminal has answered."""
        self._silent_since: float | None = None
        """Time of the first question without an answer; None = there is none."""

    def note_sent(self, count: int) -> None:
        self.sent += count

    def ask(self) -> str:
        """The question to write after what was sent; empty where there is nothing to ask."""
        newest = self._marks[-1].sent if self._marks else self._answered
        if not self.is_answering or self.sent <= newest:
            return ""
        self.sent += len(QUESTION)
        now = self._clock()
        self._marks.append(_Mark(self.sent, self.sent - self._answered, now))
        self._silent_since = now if self._silent_since is None else self._silent_since
        return QUESTION

    def answer(self) -> None:
        """The terminal has answered: the oldest question, or the one that Textual asks at the start."""
        self.is_answering = True
        if not self._marks:
            self._answered, self._silent_since = self.sent, None
            return
        mark = self._marks.popleft()
        self._answered = mark.sent
        now = self._clock()
        delay = max(1e-6, now - mark.asked)
        self._silent_since = now if self._marks else None
        if mark.waiting <= SMALL_BYTES:
            self._quickest = delay if self._quickest is None else min(self._quickest, delay)
        queued = delay - (self._quickest or 0.0)
        if queued > SLOW_SECONDS:
            self.window = max(MIN_WINDOW, min(self.window, int(WINDOW_SECONDS * mark.waiting / delay)))
        elif queued < QUICK_SECONDS:
            self.window = min(MAX_WINDOW, self.window + max(MIN_WINDOW // 4, mark.waiting))

    @property
    def room(self) -> int | None:
        """Bytes that may be sent now; None = no limit."""
        if not self.is_answering:
            return None
        now = self._clock()
        if self._silent_since is not None and now - self._silent_since > GIVE_UP_SECONDS:
            self._marks.clear()
            self._silent_since = None
            self.is_answering, self.window = False, FIRST_WINDOW
            return None
        waited = now - self._marks[0].asked if self._marks else 0.0
        if waited > RETRY_SECONDS:
            self._marks.clear()
            self._answered = self.sent
            self.window = MIN_WINDOW
        elif waited > SLOW_SECONDS + (self._quickest or 0.0):
            return 0
        return max(0, self.window - (self.sent - self._answered))

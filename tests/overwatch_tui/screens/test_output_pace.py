"""How much may be under way: no limit without answers, little on a slow link, a screen on a quick one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.screens.output_pace import (
    FIRST_WINDOW,
    GIVE_UP_SECONDS,
    MIN_WINDOW,
    RETRY_SECONDS,
    OutputPace,
)

SCREEN_BYTES = 9_000


class Link:
    """Takes bytes at a rate, after a delay; answers what has come through."""

    def __init__(self, rate: float, delay: float) -> None:
        self.now = 100.0
        self.pace = OutputPace(lambda: self.now)
        self.pace.answer()
        self._rate, self._delay = rate, delay
        self._free_at = self.now
        self._answers: list[float] = []

    def send(self, count: int) -> None:
        self.pace.note_sent(count)
        asked = self.pace.ask()
        self._free_at = max(self._free_at, self.now) + (count + len(asked)) / self._rate
        if asked:
            self._answers.append(self._free_at + self._delay)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._answers and self._answers[0] <= end:
            self.now = max(self.now, self._answers.pop(0))
            self.pace.answer()
        self.now = end

    def run_until_idle(self) -> None:
        while self._answers:
            self.run(1.0)


def test_terminal_that_never_answers_has_no_limit() -> None:
    pace = OutputPace()
    pace.note_sent(10**6)
    assert pace.ask() == ""
    assert pace.room is None


@given(st.floats(1_000, 4_000), st.floats(0.0, 0.3))
def test_slow_link_has_little_under_way(rate: float, delay: float) -> None:
    link = Link(rate, delay)
    link.send(40)
    link.run_until_idle()
    for _ in range(20):
        for _ in range(60):
            room = link.pace.room
            assert room is not None
            if room > 160:
                link.send(room)
            link.run(1 / 30)
    assert link.pace.window <= max(2 * MIN_WINDOW, rate)
    link.run_until_idle()
    assert link.pace.room == link.pace.window


@given(st.floats(0.0, 1.5))
def test_quick_link_takes_whole_screens_whatever_its_delay(delay: float) -> None:
    link = Link(1e6, delay)
    link.send(40)
    link.run_until_idle()
    for _ in range(10):
        room = link.pace.room
        assert room is not None
        assert room >= SCREEN_BYTES
        link.send(SCREEN_BYTES)
        link.run(max(1.0, 2 * delay))
    assert link.pace.window >= FIRST_WINDOW


def test_link_that_is_down_gets_little_until_it_is_back() -> None:
    link = Link(2_000, 0.0)
    link.send(1_000)
    sent = 0
    for _ in range(int(5 * RETRY_SECONDS)):  # nothing comes through
        link.now += 1.0
        room = link.pace.room
        assert room is not None
        if room > 0:
            link.send(room)
            sent += room
    assert 4 * MIN_WINDOW <= sent <= 6 * MIN_WINDOW
    link.run_until_idle()
    assert link.pace.room == link.pace.window


def test_lost_answer_holds_frames_up_for_a_while_only() -> None:
    link = Link(1e6, 0.0)
    link.send(1_000)
    link._answers.clear()
    link.run(RETRY_SECONDS - 1.0)
    assert link.pace.room == 0
    link.run(2.0)
    assert link.pace.room == MIN_WINDOW
    link.send(MIN_WINDOW)
    link.run(1.0)
    assert link.pace.room == link.pace.window


def test_terminal_that_stops_answering_is_not_waited_for() -> None:
    link = Link(1e6, 10 * GIVE_UP_SECONDS)
    link.send(1_000)
    link.run(1.0)
    assert link.pace.room == 0
    link.run(GIVE_UP_SECONDS)
    assert link.pace.room is None

"""Progress of a comparison and the time it will take: a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

EVERY_SECONDS = 15.0


class Progress:
    """Counts episodes of what is still to do.

    Args:
        say: prints a line.
        every: seconds between two lines at least.
        clock: seconds.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        every: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._every, self._clock = say, every, clock
        self._total = self._finished = self._resumed = 0
        self._step, self._step_episodes, self._now = "", 0, 0
        self._begun = self._said = clock()

    def begin(self, episodes: int, cells: int, known: int) -> None:
        """Begin `episodes` episodes, in cells of which `known` are done already."""
        self._total, self._begun = episodes, self._clock()
        self._say(f"{cells} cells, {known} of them known; {episodes:,} episodes to go")

    def begin_step(self, name: str, episodes: int, done: int = 0) -> None:
        """Begin a cell of `episodes` episodes, of which `done` were played by an earlier process."""
        self._step, self._step_episodes, self._now = name, episodes, done
        self._resumed += done
        self._say(f"{name}: {episodes:,} episodes" + (f", {done:,} done before" if done else ""))

    def advance(self, done: int) -> None:
        """Record that `done` episodes of the cell are finished."""
        self._now = done
        if self._clock() - self._said >= self._every:
            self._said = self._clock()
            self._say(self.line())

    def end_step(self) -> None:
        """The cell is done."""
        self._finished += self._step_episodes
        self._now = 0

    def leave_out(self, episodes: int) -> None:
        """Leave out episodes that another process has played."""
        self._total -= episodes

    def wait_for(self, names: Sequence[str]) -> None:
        """Nothing is to do until other processes have done these cells."""
        if self._clock() - self._said >= self._every:
            self._said = self._clock()
            self._say(f"waiting for another process: {', '.join(names)}")

    def line(self) -> str:
        """Cell, share and time left."""
        done = min(self._finished + self._now, self._total)
        share = done / self._total if self._total else 1.0
        here = done - self._resumed
        seconds = self._clock() - self._begun
        left = format_seconds(seconds / here * (self._total - done)) if here > 0 else "--"
        cell = f"{self._step}: {self._now:,} of {self._step_episodes:,} episodes"
        return f"{cell}; {share:.0%} of all, {left} left"


def format_seconds(seconds: float) -> str:
    """Format seconds as 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"

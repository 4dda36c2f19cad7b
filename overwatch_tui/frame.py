"""What a panel is given, and what a panel is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .history import History
from .lines import Line
from .link import Link
from .state import State
from .theme import Glyphs
from .view import WINDOWS, View
from .widgets.plot import spark


@dataclass
class Frame:
    """One moment of everything that can be on the screen."""

    state: State
    view: View
    link: Link
    now: int
    """Wall time of the daemon, microseconds: the right edge of every chart."""

    @property
    def glyphs(self) -> Glyphs:
        return self.view.glyphs

    @cached_property
    def age(self) -> int:
        """Of the oldest value in any chart, microseconds."""
        firsts = [h.first_ts for h in self.state.histories.values() if h.first_ts]
        return max(0, self.now - min(firsts)) if firsts else 0

    @property
    def window_name(self) -> str:
        return WINDOWS[self.view.window_index(self.age)][0]

    @property
    def window(self) -> int:
        """Span of every chart, microseconds."""
        return WINDOWS[self.view.window_index(self.age)][1]

    def spark(self, name: str, width: int, *, low: float | None = None, high: float | None = None) -> str:
        """A sparkline of one of the state's histories."""
        return spark(
            self.history(name), width, now=self.now, window=self.window, glyphs=self.glyphs,
            low=low, high=high,
        )  # fmt: skip

    def history(self, name: str) -> History | None:
        return self.state.history(name)

    def seconds_since(self, ts: int) -> float | None:
        """Age of a wall time; None where there is none."""
        return (self.now - ts) / 1e6 if ts else None


def _no_keys(_frame: Frame) -> Sequence[Hashable]:
    return ()


def _no_note(_frame: Frame) -> str:
    return ""


class Panel(NamedTuple):
    """A part of the screen: pure functions from a frame to lines."""

    name: str
    title: Callable[[Frame], str]
    body: Callable[[Frame, int, int], list[Line]]
    """(frame, width, height) → lines; may be fewer than `height`, never more is shown."""
    needs: Callable[[Frame, int], tuple[int, int]]
    """(frame, width) → least and preferred number of lines, title not counted."""
    note: Callable[[Frame], str] = _no_note
    """What stands at the right of the title: order, filter, position."""
    keys: Callable[[Frame], Sequence[Hashable]] = _no_keys
    """Keys of the rows that can be selected, in their order."""
    detail: Callable[[Frame, int, int], list[Line]] | None = None
    """What Enter shows of the selected row."""

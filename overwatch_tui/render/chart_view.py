"""The operator's choices for charts: axis, smoothing, overlay, cursor, place in time, pins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .canvas import ChartMemory

if TYPE_CHECKING:
    from esper_overwatch.overwatch_tui.model.curves import ComparedRun

SMOOTHINGS = (0.0, 0.6, 0.9)
OVERLAYS = ("off", "all")
OVER_RUNS = "runs"
"""A further overlay, where runs are compared."""
MAX_PINS = 6
"""Charts on a page."""


@dataclass
class ChartView:
    """Choices for all charts of the screen: they stay in step."""

    names: tuple[str, ...] = ()
    """Curves that the page of charts shows; empty = it is not open."""
    is_log: bool = False
    smoothing: float = 0.0
    """Weight of earlier values; 0 = no smoothing."""
    overlay: str = "off"
    axis: str = ""
    """Kind of the horizontal axis (`chart_axis`); empty = as fits the run."""
    step_zoom: int = 0
    """How often the axis of steps is halved."""
    at: int | None = None
    """Time of the inspect cursor, microseconds; None = there is none."""
    end: int | None = None
    """Right edge, microseconds; None = the moment that is shown."""
    pins: list[str] = field(default_factory=list)
    """Curves of one's own page, in their order."""
    watched: ComparedRun | None = None
    """The run that is watched, where it is compared; its curves are empty where the state has all of them."""
    runs: list[ComparedRun] = field(default_factory=list)
    """Runs that it is compared with."""
    memory: ChartMemory = field(default_factory=ChartMemory, repr=False, compare=False)

    def compare(self, watched: ComparedRun, runs: list[ComparedRun]) -> None:
        """Lay these runs over the one that is watched."""
        self.watched, self.runs, self.overlay = watched, runs, OVER_RUNS

    @property
    def begin(self) -> int:
        """Begin of the run that is watched, microseconds; 0 where it is not compared."""
        return 0 if self.watched is None else self.watched.begin

    def move_cursor(self, cells: int, cell: int, now: int, window: int, age: int) -> None:
        """Move the cursor; at an edge the charts move by a quarter of what they show.

        Args:
            cells: columns, negative to the left, from the right edge where there is no cursor yet.
            cell: microseconds of a column.
        """
        edge = self.end or now
        first = (now - max(age, window)) // cell
        at = (edge if self.at is None else self.at) // cell
        self.at = max(first, min(now // cell, at + cells)) * cell
        while self.at <= edge - window:
            edge -= window // 4
        while self.at > edge:
            edge += window // 4
        self.end = None if edge >= now else edge

    @property
    def is_moved(self) -> bool:
        """True if there is a cursor or an older right edge, which `let_go` ends."""
        return self.at is not None or self.end is not None

    def let_go(self) -> bool:
        """Back to the newest values, without a cursor; False where that is so already."""
        was = self.is_moved
        self.at = self.end = None
        return was

    def toggle_pins(self, names: tuple[str, ...]) -> str:
        """Pin these curves, or unpin them where all are pinned; returns what was done."""
        if all(name in self.pins for name in names):
            self.pins[:] = [name for name in self.pins if name not in names]
            return f"unpinned {', '.join(names)}"
        new = [name for name in names if name not in self.pins]
        if len(self.pins) + len(new) > MAX_PINS:
            return f"not pinned: a page has {MAX_PINS} charts, {len(self.pins)} are taken (view 3 has them)"
        self.pins += new
        return f"pinned {', '.join(new)} (in view 3)"

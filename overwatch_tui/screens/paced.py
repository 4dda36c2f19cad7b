"""A screen that sends a slow terminal what matters first, and the rest when there is room.

What could not be sent is remembered as regions, not as output: when their turn comes they are drawn as they
are then, so that nothing ever waits behind an old frame. Textual has no public way to do this: the use of
`_compositor_refresh` and of the compositor's dirty regions is held by tests/overwatch_tui/screens.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, TypeVar

from textual.geometry import Region
from textual.screen import Screen

from .output_pace import OutputPace

_Result = TypeVar("_Result")
ERASED_FROM = 3
ERASE_BELOW = f"\x1b[{ERASED_FROM + 1};1H\x1b[J"
"""Erases the panels of a former view with nine bytes."""
CELL_BYTES = 2
"""Bytes of a cell of another view with its colours, about."""
MIN_ROOM = 160
"""Least room to send anything: about a line."""


class PacedScreen(Screen[_Result], inherit_bindings=False):
    """Paints in slices where the app's pace has a limit."""

    first_lines: ClassVar[tuple[int, ...]] = ()
    """Lines that are sent before the others, which follow from top to bottom."""
    last_lines: ClassVar[tuple[int, ...]] = ()
    """Lines that are sent last; negative counts from the bottom."""
    room: int | None = None
    """Bytes that the frame which is drawn may have; None = no limit."""
    _owed: frozenset[Region] = frozenset()
    _is_other_view = False

    @property
    def num_owed(self) -> int:
        """Spans of lines that have not been sent."""
        return len(self._owed)

    def rank(self, y: int) -> tuple[int, int]:
        """The importance of a line, the smallest first."""
        last = [line % self.size.height for line in self.last_lines]
        if y in self.first_lines:
            return 0, self.first_lines.index(y)
        return (2, last.index(y)) if y in last else (1, y)

    def note_other_view(self) -> None:
        """Note that the next frame has nothing in common with what is shown."""
        self._is_other_view = True

    def note_unsent(self, spans: Iterable[tuple[int, int, int]]) -> None:
        """Remember the spans (line, column, columns) of the frame for which there was no room."""
        self._owed |= {Region(x, y, width, 1) for y, x, width in spans}

    def send_owed(self) -> None:
        """Send as many owed lines as there is room for."""
        if self._owed and self.is_current:
            self._compositor_refresh()

    def _compositor_refresh(self) -> None:
        pace: OutputPace = self.app.pace  # type: ignore[attr-defined]
        self.room = room = pace.room if self.is_current else None
        if room is None and not self._owed:
            self._is_other_view = False
            super()._compositor_refresh()
            return
        compositor = self._compositor
        screen, dirty = compositor.size.region, compositor._dirty_regions
        lines = {y for region in dirty for y in region.line_range}
        if self._is_other_view and 2 * len(lines) > screen.height:
            self._is_other_view = False
            if room is not None and CELL_BYTES * screen.area > room:
                self.app.erase_below()  # type: ignore[attr-defined]
                dirty.add(Region(0, ERASED_FROM, screen.width, screen.height - ERASED_FROM))
        dirty.update(self._owed)
        if room is not None and room < MIN_ROOM:
            spans = compositor._regions_to_spans([region.intersection(screen) for region in dirty])
            self._owed = frozenset(Region(x1, y, x2 - x1, 1) for y, x1, x2 in spans)
            dirty.clear()
            return
        self._owed = frozenset()
        super()._compositor_refresh()

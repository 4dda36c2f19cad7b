"""A screen that sends a slow terminal what matters first, and the rest when there is room.

What could not be sent is not remembered as output: when there is room the screen is drawn as it is then, and
the cells that differ are sent, so that nothing ever waits behind an old frame. Textual has no public way to
do this: the use of `_compositor_refresh` and of the compositor's dirty regions is held by
tests/overwatch_tui/screens.
"""

from __future__ import annotations

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
    num_owed = 0
    """Lines, about, that have not been sent."""
    _is_other_view = False
    """True if the next frame has nothing in common with what is shown."""

    def rank(self, y: int) -> tuple[int, int]:
        """The importance of a line, the smallest first."""
        if y in self.first_lines:
            return 0, self.first_lines.index(y)
        for line in (y, y - self.size.height):
            if line in self.last_lines:
                return 2, self.last_lines.index(line)
        return 1, y

    def send_owed(self) -> None:
        """Send as many owed lines as there is room for."""
        if self.num_owed and self.is_current:
            self._compositor_refresh()

    def _compositor_refresh(self) -> None:
        pace: OutputPace = self.app.pace  # type: ignore[attr-defined]
        self.room = room = pace.room if self.is_current else None
        if room is None and not self.num_owed:
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
        if room is not None and room < MIN_ROOM:
            self.num_owed = self.num_owed or len(lines)
            dirty.clear()
            return
        if self.num_owed:
            dirty.add(screen)
        self.num_owed = 0
        super()._compositor_refresh()

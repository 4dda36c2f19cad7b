"""A screen that sends a slow terminal what matters first, and the rest when there is room.

What could not be sent is remembered as regions, not as output: when their turn comes they are drawn as they
are then, so that nothing ever waits behind an old frame. Textual has no public way to do this: the use of
`_compositor_refresh` and of the compositor's dirty regions is held by tests/overwatch_tui/screens.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.geometry import Region
from textual.screen import Screen

from .output_pace import OutputPace

_Result = TypeVar("_Result")
ERASED_FROM = 3
ERASE_BELOW = f"\x1b[{ERASED_FROM + 1};1H\x1b[J"
"""The panels of a former view are gone with nine bytes."""
SPAN_BYTES = 12
"""Of a span: to move the cursor there."""
MIN_ROOM = 160
"""A line at least fits into so much, about."""


class PacedScreen(Screen[_Result], inherit_bindings=False):
    """Paints in slices where the app's pace has a limit."""

    first_lines: ClassVar[tuple[int, ...]] = ()
    """What is sent before the other lines, which follow from top to bottom."""
    last_lines: ClassVar[tuple[int, ...]] = ()
    """What is sent after them; negative counts from the bottom."""
    _owed: frozenset[Region] = frozenset()

    @property
    def num_owed(self) -> int:
        """Spans of lines that have not been sent."""
        return len(self._owed)

    def send_owed(self) -> None:
        """Send of what is owed as much as there is room for."""
        if self._owed and self.is_current:
            self._compositor_refresh()

    def _compositor_refresh(self) -> None:
        pace: OutputPace = self.app.pace  # type: ignore[attr-defined]
        room = pace.room if self.is_current else None
        if room is None and not self._owed:
            super()._compositor_refresh()
            return
        compositor = self._compositor
        dirty = compositor._dirty_regions
        screen = compositor.size.region
        wanted = [region.intersection(screen) for region in dirty]
        if room is not None and self._is_switch(wanted, screen, room, pace):
            self.app.erase_below()  # type: ignore[attr-defined]
            wanted.append(Region(0, ERASED_FROM, screen.width, screen.height - ERASED_FROM))
        wanted += [region.intersection(screen) for region in self._owed]
        spans = list(compositor._regions_to_spans([region for region in wanted if region.area]))
        chosen, rest = self._split(spans, room, pace, screen.height)
        self._owed = frozenset(rest)
        dirty.clear()
        if chosen:
            dirty.update(chosen)
            before = pace.sent
            super()._compositor_refresh()
            pace.note_cells(sum(region.width for region in chosen), pace.sent - before)

    def _is_switch(self, fresh: list[Region], screen: Region, room: int, pace: OutputPace) -> bool:
        """Whether most of the screen is another one and does not fit into the room."""
        wide = [region for region in fresh if 2 * region.width > screen.width]
        lines = {y for region in wide for y in range(region.y, region.bottom)}
        return len(lines) > screen.height // 2 and len(lines) * screen.width * pace.cell_bytes > room

    def _split(
        self, spans: list[tuple[int, int, int]], room: int | None, pace: OutputPace, height: int
    ) -> tuple[list[Region], list[Region]]:
        """(what is sent now, what is owed), by importance."""
        last = [y % height for y in self.last_lines]

        def rank(span: tuple[int, int, int]) -> tuple[int, int]:
            y = span[0]
            if y in self.first_lines:
                return 0, self.first_lines.index(y)
            return (2, last.index(y)) if y in last else (1, y)

        chosen: list[Region] = []
        rest: list[Region] = []
        for y, x1, x2 in sorted(spans, key=rank):
            region = Region(x1, y, x2 - x1, 1)
            cost = int((x2 - x1) * pace.cell_bytes) + SPAN_BYTES
            if room is None or (not rest and (cost <= room or (not chosen and room >= MIN_ROOM))):
                chosen.append(region)
                room = None if room is None else room - cost
            else:
                rest.append(region)
        return chosen, rest

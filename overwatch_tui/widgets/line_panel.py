"""The one widget of the main screen: a block of lines that repaints only those that changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ..lines import Line, fit
from ..theme import Theme


class LinePanel(Widget):
    """Shows lines of styled spans.

    A DataTable or a Static repaints itself whole when a cell changes; on a slow link that is ten times the
    bytes. Here two frames are compared line by line, and the compositor is told of the lines that differ.

    Args:
        theme: turns style names into styles.
        id: the widget's id.
    """

    DEFAULT_CSS = "LinePanel { width: auto; height: auto; }"

    def __init__(self, theme: Theme, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._theme = theme
        self._lines: list[Line] = []
        self._strips: dict[int, Strip] = {}
        self.placed = Region()
        """Where the screen puts it."""
        self.repainted = 0
        """Lines sent to the compositor so far."""

    def show(self, lines: Sequence[Line]) -> None:
        """Display these lines in place of the former ones."""
        old, self._lines = self._lines, list(lines)
        width = self.size.width
        for y in range(max(len(old), len(self._lines))):
            if y < len(old) and y < len(self._lines) and old[y] == self._lines[y]:
                continue
            self._strips.pop(y, None)
            self.repainted += 1
            self.refresh(Region(0, y, width, 1))

    @property
    def lines(self) -> list[Line]:
        return self._lines

    def on_resize(self) -> None:
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        strip = self._strips.get(y)
        if strip is None:
            line = self._lines[y] if y < len(self._lines) else ()
            width = self.size.width
            style = self._theme.style
            strip = Strip([Segment(text, style(name)) for text, name in fit(line, width)], width)
            self._strips[y] = strip
        return strip

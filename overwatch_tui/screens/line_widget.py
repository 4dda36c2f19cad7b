"""The one widget of the main screen: a block of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from esper_overwatch.overwatch_tui.render.lines import Line, block
from esper_overwatch.overwatch_tui.render.theme import Theme
from esper_overwatch.protocol.codec.text import clean_cells


class LinePanel(Widget):
    """Shows lines of styled spans; of a frame `ShownCells` sends the cells that changed."""

    DEFAULT_CSS = "LinePanel { width: auto; height: auto; }"

    def __init__(self, theme: Theme, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._theme = theme
        self._lines: list[Line] = []
        self._strips: dict[int, tuple[Line, Strip]] = {}
        self.placed = Region()
        """Place on the screen."""

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Display these lines in place of the former ones."""
        if lines != self._lines:
            self._lines = list(lines)
            self.refresh()

    @property
    def lines(self) -> list[Line]:
        return self._lines

    def recolour(self) -> None:
        """Draw every line again: the theme has changed."""
        self._strips.clear()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, line = self.size.width, self._lines[y] if y < len(self._lines) else ()
        known = self._strips.get(y)
        if known is not None and known[0] == line and known[1].cell_length == width:
            return known[1]
        style = self._theme.style
        (fitted,) = block([line], width, 1)
        strip = LineStrip([Segment(clean_cells(text), style(name)) for text, name in fitted], width)
        self._strips[y] = line, strip
        return strip

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines as they are: no border, padding or opacity is to be applied to them."""
        strips = [self.render_line(y) for y in crop.line_range]
        for each in self.get_line_filters():
            strips = [strip.apply_filter(each, self.background_colors[1]) for strip in strips]
        if crop.column_span == (0, self.size.width):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]


class LineStrip(Strip):
    """A strip that does not remember itself as its only part: a cycle that waits for the collector."""

    __slots__ = ()

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        inside = [cut for cut in cuts if cut <= self.cell_length]
        return [self] if inside == [self.cell_length] else super().divide(inside)

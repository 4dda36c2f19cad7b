"""The main screen: every box of the layout is a line widget at its place."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.events import Key
from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from overwatch_tui import keys
from overwatch_tui.panels import PANELS
from overwatch_tui.render.layout import MIN_HEIGHT, MIN_WIDTH, Box, ScreenLayout
from overwatch_tui.render.lines import EMPTY, Line, Row
from overwatch_tui.render.theme import Theme

from .line_widget import LinePanel

BARS = ("header", "strip", "views", "status", "keys", "small")


class PlacedLayout(Layout):
    """Puts each child where the layout has its box."""

    name = "placed"

    def arrange(
        self,
        parent: Widget,  # noqa: ARG002
        children: list[Widget],
        size: Size,  # noqa: ARG002
        greedy: bool = True,  # noqa: ARG002
    ) -> ArrangeResult:
        return [
            WidgetPlacement(child.placed, NULL_OFFSET, NULL_SPACING, child)
            for child in children
            if isinstance(child, LinePanel)
        ]


class MainScreen(Screen[None], inherit_bindings=False):
    """Shows layouts and binds the keys.

    Args:
        theme: for the line widgets.
    """

    class UnknownKey(Message):
        """A key was pressed that has no meaning."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    AUTO_FOCUS = ""
    BINDINGS = [Binding(names, action, show=False) for names, action in keys.bindings()]  # noqa: RUF012

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._panels = {
            name: LinePanel(theme, id=f"box-{name}") for name in (*BARS, *(panel.name for panel in PANELS))
        }
        self._boxes: list[Box] = []
        self._layout = PlacedLayout()

    def on_key(self, event: Key) -> None:
        """Say so where a key does nothing."""
        if event.key not in self._bindings.key_to_bindings:
            self.post_message(self.UnknownKey(event.key))

    def compose(self) -> ComposeResult:
        yield from self._panels.values()

    @property
    def layout(self) -> Layout:
        return self._layout

    def show_layout(self, layout: ScreenLayout) -> None:
        """Display a layout; only lines that differ from the former one are painted."""
        if layout.boxes != self._boxes:
            self._place(layout.boxes)
        for box in layout.boxes:
            self._panels[box.name].show_lines(layout.lines[box.name])

    def _place(self, boxes: list[Box]) -> None:
        self._boxes = boxes
        places = {box.name: Region(box.x, box.y, box.width, box.height) for box in boxes}
        for name, panel in self._panels.items():
            place = places.get(name, Region())
            if place != panel.placed:
                panel.placed = place
                panel.display = name in places
                panel.refresh(layout=True)

    def show_too_small(self, width: int, height: int) -> None:
        """One line in the middle."""
        text = f"esper-tui needs {MIN_WIDTH}x{MIN_HEIGHT} (now {width}x{height})"
        more = "; `--once` works at any size"
        text += more if len(text + more) <= width else ""
        lines: list[Line] = [EMPTY] * (height // 2)
        lines.append(Row().to(max(0, (width - len(text)) // 2)).put(text, "warning").line(width))
        box = Box("small", 0, 0, width, height)
        self.show_layout(ScreenLayout(boxes=[box], lines={"small": lines}))

    @property
    def repainted(self) -> int:
        """Lines sent to the compositor so far."""
        return sum(panel.repainted for panel in self._panels.values())

"""The main screen: every box of the layout is a line widget at its place."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding
from textual.events import Key
from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.message import Message
from textual.widget import Widget

from esper_overwatch.overwatch_tui import keys
from esper_overwatch.overwatch_tui.render.layout import MIN_HEIGHT, MIN_WIDTH, Box, ScreenLayout
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.theme import Theme

from .line_widget import LinePanel
from .paced import PacedScreen


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


class MainScreen(PacedScreen[None], inherit_bindings=False):
    """Shows layouts and binds the keys."""

    @dataclass
    class UnknownKey(Message):
        """A key was pressed that has no meaning."""

        key: str

    AUTO_FOCUS = ""
    first_lines = (2, 1)
    last_lines = (0, -2, -1)
    BINDINGS = [  # noqa: RUF012
        Binding(names, action, show=False, id=name) for names, action, name in keys.bindings()
    ]

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._panels: dict[str, LinePanel] = {}
        """Widgets of all boxes shown so far: mounting one takes as long as drawing it."""
        self._boxes: list[Box] = []
        self._upwards = range(0)
        """Lines of which the last are sent first."""
        self._layout = PlacedLayout()

    def on_key(self, event: Key) -> None:
        """Report a key that does nothing."""
        if event.key not in self.active_bindings:
            self.post_message(self.UnknownKey(event.key))

    def box_at(self, x: int, y: int) -> Box | None:
        for box in self._boxes:
            if box.x <= x < box.x + box.width and box.y <= y < box.y + box.height:
                return box
        return None

    def line_of(self, box: Box, y: int) -> Line:
        """What a line of a box shows, its title included."""
        lines = self._panels[box.name].lines
        return lines[y] if y < len(lines) else EMPTY

    def rank(self, y: int) -> tuple[int, int]:
        importance, place = super().rank(y)
        if importance == 1 and y in self._upwards:
            place = self._upwards[0] + self._upwards[-1] - y
        return importance, place

    @property
    def layout(self) -> Layout:
        return self._layout

    def show_layout(self, layout: ScreenLayout) -> None:
        """Display a layout."""
        if layout.boxes != self._boxes:
            self._place(layout.boxes)
        self._upwards = layout.upwards
        for box in layout.boxes:
            self._panels[box.name].show_lines(layout.lines[box.name])

    def _place(self, boxes: list[Box]) -> None:
        self._boxes = boxes
        self._is_other_view = True
        places = {box.name: Region(box.x, box.y, box.width, box.height) for box in boxes}
        new = {name: LinePanel(self._theme, id=f"box-{name}") for name in places if name not in self._panels}
        self._panels |= new
        if new:
            self.mount(*new.values())
        for name, panel in self._panels.items():
            place = places.get(name, Region())
            if place != panel.placed:
                panel.placed = place
                panel.display = name in places
                panel.refresh(layout=True)

    def show_too_small(self, width: int, height: int) -> None:
        text = f"esper-tui needs {MIN_WIDTH}x{MIN_HEIGHT} (now {width}x{height})"
        more = "; `--once` works at any size"
        text += more if len(text + more) <= width else ""
        lines: list[Line] = [EMPTY] * (height // 2)
        lines.append(Row().to(max(0, (width - len(text)) // 2)).put(text, "warning").line(width))
        box = Box("small", 0, 0, width, height)
        self.show_layout(ScreenLayout(boxes=[box], lines={"small": lines}))

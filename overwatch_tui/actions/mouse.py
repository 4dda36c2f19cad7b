"""The mouse: what can be clicked, and what the wheel moves. Everything here has a key, too."""

from __future__ import annotations

import re

from textual.events import Click, MouseEvent, MouseScrollDown, MouseScrollUp

from esper_overwatch.overwatch_tui.render.env_rows import ENV_ORDERS
from esper_overwatch.overwatch_tui.render.layout import Box
from esper_overwatch.overwatch_tui.render.lines import Line, plain

from .moves import MoveActions

WHEEL_ROWS = 3
"""Rows that a notch of the wheel moves the selection by."""
_TAB = re.compile(r"(\d) [A-Z]")
"""Matches the key of a view and the first letter of its name in the bar of views."""
SORTS_BY_HEADING = {heading: order for order, (heading, _, _) in ENV_ORDERS.items()}
"""Headings of the envs' table, and the order that a click on one gives."""


class MouseActions(MoveActions):
    """Clicks and the wheel."""

    def on_click(self, event: Click) -> None:
        """Show a tab's view, press a key of the footer, sort by a heading, select a row or open it."""
        box = self._box_under(event)
        if box is None:
            return
        x, y = event.screen_x - box.x, event.screen_y - box.y
        line = self._main.line_of(box, y)
        if box.name == "views":
            before = [found[1] for found in _TAB.finditer(plain(line)) if found.start() - 1 <= x]
            if before:
                self.action_digit(int(before[-1]))
        elif box.name == "keys":
            self._click_hint(line, x)
        elif box.name in self.panels:
            self._click_panel(box.name, x, y - box.has_title, plain(line))
        self.paint()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._scroll(event, WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._scroll(event, -WHEEL_ROWS)

    def _scroll(self, event: MouseEvent, by: int) -> None:
        box = self._box_under(event)
        if box is not None and box.name in self.panels:
            self._focus(box.name)
            self.action_move(by)

    def _box_under(self, event: MouseEvent) -> Box | None:
        """The box of the main screen; None where another screen is above it."""
        return self._main.box_at(event.screen_x, event.screen_y) if self.screen is self._main else None

    def _click_hint(self, line: Line, x: int) -> None:
        """Press the key whose name or hint is at the column."""
        at, last = 0, ""
        for text, style in line:
            last = text.strip() if style == "key" else last
            at += len(text)
            if x < at:
                break
        names = {key.shown.split(" ")[0]: key.keys.split(",")[0] for key in self.session.view.keys}
        if last in names and (style == "key" or text.strip()):
            self.simulate_key(names[last])

    def _click_panel(self, name: str, x: int, y: int, line: str) -> None:
        """Open a row that is selected; select another one; `y` counts from below the title."""
        view = self.session.view
        was_focused = self._panel() == name
        self._focus(name)
        order = _heading_at(line, x) if name == "envs" else None
        if order is not None:
            self._sort_by(order)
            return
        rows = self.panels[name].keys(self.body)
        at = None if view.detail else view.row_at(name, len(rows), y)
        if at is not None:
            is_selected = was_focused and view.selected_index(name, rows) == at
            view.select(name, rows[at])
            if is_selected:
                self.action_enter()

    def _sort_by(self, order: str) -> None:
        view = self.session.view
        if view.sort == order:
            view.is_reversed = not view.is_reversed
        else:
            view.sort, view.is_reversed = order, False
        self.show_message(f"envs by {view.sort}")

    def _focus(self, name: str) -> None:
        view = self.session.view
        if name in self.panels.view(view.name).one and not (view.detail or view.charts.names):
            view.focus = name


def _heading_at(line: str, x: int) -> str | None:
    """The order that a click at this column of the table's header gives; None elsewhere."""
    found = {
        name: (m.start(), m.end())
        for name in SORTS_BY_HEADING
        if (m := re.search(rf"(?<!\w){name}[^A-Z]?", line))
    }
    if "STATE" not in found:
        return None
    return next((SORTS_BY_HEADING[name] for name, (at, end) in found.items() if at <= x < end), None)

"""The screen: which panels are where at this size, and their lines.

The terminal shows the boxes as widgets; `--once` pastes the same boxes into text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from . import bars
from .lines import Line, Row, block, cut_text, fade, fit, plain, sign_cuts
from .panel import Drawn, PanelInputs, PanelTable, Renderer
from .theme import Glyphs
from .view_state import Scroll

MIN_WIDTH, MIN_HEIGHT = 80, 24
TWO_COLUMNS, THREE_COLUMNS = bars.TWO_COLUMNS, 180
TOP, BOTTOM = 3, 2
"""Lines above and below the panels."""


@dataclass(frozen=True)
class Box:
    """Place of a piece of the screen."""

    name: str
    x: int
    y: int
    width: int
    height: int
    has_title: bool = False


@dataclass
class ScreenLayout:
    """Boxes and what is in them."""

    boxes: list[Box]
    lines: dict[str, list[Line]] = field(default_factory=dict)
    scroll: dict[str, Scroll] = field(default_factory=dict)
    """Per panel that scrolls, the rows that were drawn."""
    env: int | None = None
    """The env that a panel has chosen; None = as before."""
    upwards: range = range(0)
    """Lines of which the last are the most important."""

    def text(self, width: int, height: int) -> str:
        rows = [[" "] * width for _ in range(height)]
        for box in self.boxes:
            for dy, line in enumerate(self.lines[box.name][: box.height]):
                if box.y + dy < height:
                    text = plain(line)[: width - box.x]
                    rows[box.y + dy][box.x : box.x + len(text)] = text
        return "\n".join("".join(row).rstrip() for row in rows)


def shown_panels(panels: PanelTable, inputs: PanelInputs, width: int) -> list[str]:
    """Panels of the chosen view that have something to say, in the order of Tab."""
    names = panels.view(inputs.view.name).one
    return [name for name in names if panels[name].needs(inputs, width)[1]] or [names[0]]


def view_columns(panels: PanelTable, inputs: PanelInputs, width: int) -> list[tuple[int, list[str]]]:
    """(width, panels from top to bottom) of each column of the view, dividers included."""
    number = 3 if width >= THREE_COLUMNS else 2 if width >= TWO_COLUMNS else 1
    shown = shown_panels(panels, inputs, width)
    columns = panels.view(inputs.view.name).columns(number)
    found = [names for column in columns if (names := [name for name in column if name in shown])]
    return list(zip(_column_widths(width, len(found)), found, strict=True))


def _column_widths(width: int, number: int) -> tuple[int, ...]:
    if number == 3:
        middle, right = max(60, int(width * 0.29)), max(46, int(width * 0.25))
        return width - middle - right, middle, right
    if number == 2:
        right = max(43, int(width * 0.36))
        return width - right, right
    return (width,)


class _Want(NamedTuple):
    """Request of a panel in a column."""

    name: str
    title: int
    """Lines of its title: 0 or 1."""
    least: int
    preferred: int


def _stack(
    panels: PanelTable, inputs: PanelInputs, names: Sequence[str], width: int, height: int, *, alone: bool
) -> list[tuple[_Want, int]]:
    """(panel, its height) of those in a column that fit, from top to bottom.

    The first panel is shown in full, the others get what they need, then what they would like; the rest
    goes to the one that grows. A column that stands alone has no title above its first panel.
    """
    chosen: list[_Want] = []
    left = height
    for name in names:
        least, preferred = panels[name].needs(inputs, width)
        title = 0 if alone and not chosen else 1
        if not chosen:
            least = min(preferred, max(least, height - title))
        if least + title > left:
            continue
        chosen.append(_Want(name, title, least, preferred))
        left -= least + title
    heights = []
    for want in chosen:
        more = min(left, max(0, want.preferred - want.least))
        left -= more
        heights.append(want.title + want.least + more)
    if heights:
        growing = (i for i, want in enumerate(chosen) if panels[want.name].grows)
        heights[next(growing, -1)] += left
    return list(zip(chosen, heights, strict=True))


def place_panels(
    panels: PanelTable, inputs: PanelInputs, width: int, height: int
) -> tuple[list[Box], list[str]]:
    """(boxes of the view, its panels that have no place there); one of these in focus has all of it."""
    body = max(1, height - TOP - BOTTOM)
    view = inputs.view
    if inputs.state.run is None and inputs.state.epoch is None:
        return [Box("empty", 0, TOP, width, body)], []
    focus = panels.focused(view)
    if view.charts.names or view.detail:
        return [Box("pins" if view.charts.names else focus, 0, TOP, width, body)], []
    boxes: list[Box] = []
    x = 0
    columns = view_columns(panels, inputs, width)
    for column, names in columns:
        stacked = _stack(panels, inputs, names, column - (x > 0), body, alone=len(columns) == 1)
        y = TOP
        for want, box_height in stacked:
            boxes.append(Box(want.name, x, y, column, box_height, has_title=bool(want.title)))
            y += box_height
        x += column
    placed = {box.name for box in boxes}
    hidden = [name for name in shown_panels(panels, inputs, width) if name not in placed]
    if focus in hidden:
        boxes = [Box(focus, 0, TOP, width, body, has_title=True)]
    return boxes, hidden


def compose_screen(
    panels: PanelTable, live: PanelInputs, body: PanelInputs, width: int, height: int
) -> ScreenLayout:
    """Draw everything.

    Args:
        live: for the line of incidents and the bars at the bottom, which show what goes on.
        body: for the header and the panels: the moment of the cursor; the same as `live` unless frozen.
    """
    panels = panels.of(is_published=body.state.is_published)
    boxes, hidden = place_panels(panels, body, width, height)
    bar_boxes = [
        Box("header", 0, 0, width, 1),
        Box("strip", 0, 1, width, 1),
        Box("views", 0, 2, width, 1),
        Box("status", 0, height - 2, width, 1),
        Box("keys", 0, height - 1, width, 1),
    ]
    layout = ScreenLayout(boxes=bar_boxes + boxes)
    body.is_alone, body.focus = len(boxes) == 1, panels.focused(body.view)
    untitled = boxes[0] if boxes and not boxes[0].has_title and not body.view.detail else None
    note = panels[untitled.name].note(body) if untitled else ""
    layout.lines = {
        "header": [bars.header_line(body, width)],
        "strip": [bars.incident_line(live, width)],
        "views": [bars.view_line(live, width, panels, note, hidden)],
        "status": [bars.status_line(live, width, has_log=any(box.name == "log" for box in boxes))],
        "keys": [bars.key_line(live, width)],
    }
    rules = {(box.x + box.width, box.y) for box in boxes if box.has_title}
    for box in boxes:
        is_focused = box.name == body.focus
        drawn = _draw(panels[box.name], body, box, rules, is_focused=is_focused)
        if panels[box.name].is_newest_last and not body.view.detail:
            layout.upwards = range(box.y, box.y + box.height)
        layout.lines[box.name] = drawn.lines if live.link.is_fresh else [fade(x) for x in drawn.lines]
        if drawn.scroll is not None:
            layout.scroll[box.name] = drawn.scroll
        if drawn.env is not None:
            layout.env = drawn.env
    layout.lines = {name: sign_cuts(lines, body.glyphs.cut) for name, lines in layout.lines.items()}
    return layout


def _draw(
    renderer: Renderer, inputs: PanelInputs, box: Box, rules: set[tuple[int, int]], *, is_focused: bool
) -> Drawn:
    """The panel's title, its lines and the divider to its left, in exactly the size of the box."""
    gap = 1 if box.x > 0 else 0
    width = box.width - gap
    lines = [_title(inputs, renderer, width, is_focused=is_focused)] if box.has_title else []
    room = box.height - len(lines)
    is_detail = inputs.view.detail and not inputs.view.charts.names
    draw = renderer.detail if is_detail and renderer.detail else renderer.body
    drawn = draw(inputs, width, room)
    lines += block(drawn.lines, width, room)
    if gap:
        joints = [
            _joint(inputs.glyphs, (box.x, y) in rules, box.has_title and y == box.y, y == TOP)
            for y in range(box.y, box.y + len(lines))
        ]
        lines = [(joint, *line) for joint, line in zip(joints, lines, strict=True)]
    return drawn._replace(lines=lines)


def _joint(glyphs: Glyphs, left: bool, right: bool, top: bool) -> tuple[str, str]:
    """The character between two columns, by the rules that meet it."""
    if glyphs.name == "ascii":
        return ("+" if left or right else "|"), "rule"
    if top and left and right:
        return "┬", "rule"
    return {(True, True): "┼", (True, False): "┤", (False, True): "├", (False, False): "│"}[
        left, right
    ], "rule"


def _title(inputs: PanelInputs, renderer: Renderer, width: int, *, is_focused: bool) -> Line:
    """`─ ENVS 16 ──────────── sort drift ─`"""
    glyphs = inputs.glyphs
    row = Row().put(glyphs.rule, "rule").put(" ")
    row.put(renderer.title(inputs), "title" if is_focused else "bold").put(" ")
    note = renderer.note(inputs)
    room = width - row.width - 3
    if note and room >= 8:
        note = f" {cut_text(note, room - 2)} "
        row.to(width - len(note) - 1, glyphs.rule, "rule").put(note, "dim")
    row.to(width, glyphs.rule, "rule")
    return fit(tuple(row.spans), width)

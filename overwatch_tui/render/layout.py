"""The whole picture: which panels are where at this size, and their lines.

The terminal shows the boxes as widgets; `--once` pastes the same boxes into text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .frame import Frame, Panel
from .lines import Line, Row, block, fit, plain
from .panels import PANELS, bars
from .theme import Glyphs

MIN_WIDTH, MIN_HEIGHT = 80, 24
TWO_COLUMNS, THREE_COLUMNS = 120, 180
TOP, BOTTOM = 3, 2
"""Lines above and below the panels."""


@dataclass(frozen=True)
class Box:
    """Where a piece of the picture is."""

    name: str
    x: int
    y: int
    width: int
    height: int
    titled: bool = False


@dataclass
class Picture:
    """Boxes and what is in them."""

    boxes: list[Box]
    lines: dict[str, list[Line]] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    """Panels of this view that do not fit at this size."""

    def text(self, width: int, height: int) -> str:
        """The picture as plain text."""
        rows = [[" "] * width for _ in range(height)]
        for box in self.boxes:
            for dy, line in enumerate(self.lines[box.name][: box.height]):
                if box.y + dy < height:
                    text = plain(line)[: width - box.x]
                    rows[box.y + dy][box.x : box.x + len(text)] = text
        return "\n".join("".join(row).rstrip() for row in rows)


def columns_of(width: int) -> list[tuple[int, list[str]]]:
    """(width, panels from top to bottom) of each column of the main view, dividers included."""
    if width >= THREE_COLUMNS:
        middle, right = max(60, int(width * 0.29)), max(46, int(width * 0.25))
        return [
            (width - middle - right, ["envs", "policy", "log"]),
            (middle, ["env", "curves", "commands"]),
            (right, ["anomalies", "drift", "system"]),
        ]
    if width >= TWO_COLUMNS:
        right = max(43, int(width * 0.36))
        return [(width - right, ["envs", "env", "policy"]), (right, ["anomalies", "drift", "log"])]
    return [(width, ["envs", "env", "log"])]


def _stack(
    frame: Frame, names: list[str], x: int, width: int, height: int, *, alone: bool
) -> tuple[list[Box], list[str]]:
    """Boxes of a column: the first panel in full, the others what they need, then what they would like.

    A column that stands alone has no title above its first panel.
    """
    inner = width - (x > 0)
    chosen: list[tuple[Panel, int, int, int]] = []
    hidden = []
    left = height
    for i, name in enumerate(names):
        panel = PANELS[name]
        least, liked = panel.needs(frame, inner)
        title = 0 if i == 0 and alone else 1
        if i == 0:
            least = min(liked, max(least, height - title))
        if least + title > left:
            hidden.append(name)
            continue
        chosen.append((panel, title, least, liked))
        left -= least + title
    heights = []
    for _, title, least, liked in chosen:
        more = min(left, max(0, liked - least))
        left -= more
        heights.append(title + least + more)
    if heights:
        heights[-1] += left
    boxes = []
    y = TOP
    for (panel, title, _, _), box_height in zip(chosen, heights, strict=True):
        boxes.append(Box(panel.name, x, y, width, box_height, titled=bool(title)))
        y += box_height
    return boxes, hidden


def arrange(frame: Frame, width: int, height: int) -> tuple[list[Box], list[str]]:
    """(boxes of the panels, panels that do not fit) for the chosen view."""
    body = max(1, height - TOP - BOTTOM)
    view = frame.view
    if frame.state.run is None and frame.state.epoch is None:
        return [Box("empty", 0, TOP, width, body)], []
    if view.name != "envs" or view.detail:
        return [Box(view.focus if view.detail else view.name, 0, TOP, width, body)], []
    boxes: list[Box] = []
    hidden: list[str] = []
    x = 0
    columns = columns_of(width)
    for column, names in columns:
        more, out = _stack(frame, names, x, column, body, alone=len(columns) == 1)
        boxes += more
        hidden += out if len(columns) > 1 else []
        x += column
    return boxes, hidden


def compose(live: Frame, body: Frame, width: int, height: int) -> Picture:
    """Draw everything.

    Args:
        live: for the bars at top and bottom, which go on while the rest is frozen.
        body: for the panels; the same as `live` unless frozen.
        width: columns.
        height: lines.
    """
    panels, hidden = arrange(body, width, height)
    frame_boxes = [
        Box("header", 0, 0, width, 1),
        Box("strip", 0, 1, width, 1),
        Box("views", 0, 2, width, 1),
        Box("status", 0, height - 2, width, 1),
        Box("keys", 0, height - 1, width, 1),
    ]
    picture = Picture(boxes=frame_boxes + panels, hidden=hidden)
    alone = panels[0] if panels and not panels[0].titled else None
    note = PANELS[alone.name].note(body) if alone and not body.view.detail else ""
    picture.lines = {
        "header": [bars.header(live, width)],
        "strip": [bars.strip(live, width)],
        "views": [bars.views(live, width, note, [PANELS[name].title(body) for name in hidden])],
        "status": [bars.status(live, width)],
        "keys": [bars.keys(live, width)],
    }
    rules = {(box.x + box.width, box.y) for box in panels if box.titled}
    for box in panels:
        picture.lines[box.name] = _draw(body, box, rules)
    return picture


def _draw(frame: Frame, box: Box, rules: set[tuple[int, int]]) -> list[Line]:
    panel = PANELS[box.name]
    gap = 1 if box.x > 0 else 0
    width = box.width - gap
    lines: list[Line] = []
    if box.titled:
        lines.append(_title(frame, panel, width))
    room = box.height - len(lines)
    draw = panel.detail if frame.view.detail and panel.detail else panel.body
    lines += block(draw(frame, width, room), width, room)
    if not gap:
        return lines
    return [
        (_joint(frame.glyphs, (box.x, box.y + i) in rules, box.titled and i == 0, box.y + i == TOP), *line)
        for i, line in enumerate(lines)
    ]


def _joint(glyphs: Glyphs, left: bool, right: bool, top: bool) -> tuple[str, str]:
    """The character between two columns, by the rules that meet it."""
    if glyphs.name == "ascii":
        return ("+" if left or right else "|"), "rule"
    if top and left and right:
        return "┬", "rule"
    return {(True, True): "┼", (True, False): "┤", (False, True): "├", (False, False): "│"}[
        left, right
    ], "rule"


def _title(frame: Frame, panel: Panel, width: int) -> Line:
    """`─ ENVS 16 ──────────── sort drift ─`"""
    glyphs = frame.glyphs
    focused = frame.view.focus == panel.name
    row = Row().put(glyphs.rule, "rule").put(" ")
    row.put(panel.title(frame), "title" if focused else "bold").put(" ")
    note = panel.note(frame)
    room = width - row.width - 3
    if note and room >= 8:
        note = f" {note[: room - 2]} "
        row.to(width - len(note) - 1, glyphs.rule, "rule").put(note, "dim")
    row.to(width, glyphs.rule, "rule")
    return fit(tuple(row.spans), width)

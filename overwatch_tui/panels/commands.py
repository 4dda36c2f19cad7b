"""Commands, ours and others', newest first, with what became of each."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence

from .. import keys as key_table
from ..describe import span
from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row, restyle
from ..orders import OPEN, SEVERITY, Order
from .env import clock


def title(frame: Frame) -> str:
    return f"COMMANDS {len(frame.state.orders)}"


def note(frame: Frame) -> str:
    return "read-only" if frame.view.read_only else "each asks y/N"


def keys(frame: Frame) -> Sequence[Hashable]:
    return [order.id for order in frame.state.orders.newest_first()]


def needs(frame: Frame, width: int) -> tuple[int, int]:
    return 3, 10


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """A table; beneath it what can be sent."""
    orders = frame.state.orders.newest_first()
    offered = _offered(frame, width) if height >= 8 else []
    lines = [
        Row()
        .put("    #  WHEN      COMMAND                  STATE       RTT  BY           WHAT", "dim")
        .line(width)
    ]
    if not orders:
        lines.append(Row().put(" none yet, by nobody", "dim").line(width))
    order = keys(frame)
    start, stop = frame.view.visible("commands", order, height - 1 - len(offered))
    at = frame.view.index("commands", order)
    lines += [_line(frame, orders[i], width, selected=i == at) for i in range(start, stop)]
    return [*lines, *[EMPTY] * (height - len(lines) - len(offered)), *offered]


def _line(frame: Frame, order: Order, width: int, *, selected: bool) -> Line:
    row = Row().put(frame.glyphs.cursor if selected else " ", "focus")
    row.put(f"{order.number}", "dim", 4, ">").put(f"  {clock(order.ts)}  ", "dim")
    row.put(order.title, "bold", 24).put(" ").put(order.state, SEVERITY.get(order.state, "accent"), 9)
    row.put("--" if order.rtt is None else f"{1000 * order.rtt:.0f}ms", "dim", 6, ">").put("  ")
    row.put(order.by, "", 13).put(_what(frame, order), "dim")
    line = row.line(width)
    return restyle(line, "select") if selected else line


def _what(frame: Frame, order: Order) -> str:
    left = frame.state.level_left
    if order.state in OPEN and order.method == "telemetry.escalate" and left is not None:
        return f"{left} epochs left"
    return order.detail


def _offered(frame: Frame, width: int) -> list[Line]:
    """The keys that send something."""
    if frame.view.read_only:
        return [Row().put(" read-only: this terminal sends no commands", "dim").line(width)]
    lines = []
    for key in filter(lambda k: k.command, key_table.KEYS):
        lines.append(Row().put(f"  {key.shown:<4}", "key").put(key.help, "dim").line(width))
    return lines


def detail(frame: Frame, width: int, height: int) -> list[Line]:
    """The selected command in full."""
    orders = frame.state.orders.newest_first()
    if not orders:
        return body(frame, width, height)
    order = orders[frame.view.index("commands", keys(frame))]
    rtt = "--" if order.rtt is None else f"{1000 * order.rtt:.1f} ms"
    took = span((order.ended - order.ts) / 1e6) if order.ended else "--"
    facts = (
        ("id", order.id), ("method", order.method), ("parameters", json.dumps(order.params)),
        ("by", order.by), ("sent", clock(order.ts)), ("answered in", rtt), ("took", took),
        ("state", order.state), ("what", order.detail or "--"),
    )  # fmt: skip
    lines = [Row().put(f" command #{order.number}", "title").line(width), EMPTY]
    lines += [Row().put(f"   {name:<12}", "dim").put(value).line(width) for name, value in facts]
    for name, value in order.result.items():
        lines.append(Row().put(f"   {name:<12}", "dim").put(str(value)).line(width))
    return lines


PANEL = Panel(name="commands", title=title, body=body, needs=needs, note=note, keys=keys, detail=detail)

"""An env's network as a line of boxes: its blocks, and what lives in the slot behind each."""

from __future__ import annotations

import re

from esper_overwatch.overwatch_tui.model.columns import at_or_none
from esper_overwatch.overwatch_tui.render.env_rows import slot_cells
from esper_overwatch.overwatch_tui.render.lines import Line, Row, width_of
from esper_overwatch.overwatch_tui.render.panel import PanelInputs

_PLACE = re.compile(r"r(?P<row>[0-9]+)c(?P<column>[0-9]+)")
"""A slot's name; those of later rows follow the one of row 0, behind the same block."""


def host_lines(inputs: PanelInputs, env: int, width: int) -> list[Line]:
    """`block0─[r0c0 B.7 conv_light]─block1─[r0c1 .]─head`, on as many lines as it takes."""
    state, rule = inputs.state, inputs.glyphs.rule
    if state.epoch is None or not state.slots:
        return []
    cells = slot_cells(state, env, inputs.glyphs)
    blueprints = at_or_none(state.epoch.blueprint, env)
    pieces: list[Line] = []
    for slot, (name, (cell, style)) in enumerate(zip(state.slots, cells, strict=False)):
        code = at_or_none(blueprints, slot)
        made = Row()
        if (place := _PLACE.fullmatch(name)) is None or place["row"] == "0":
            made.put(f"block{slot if place is None else place['column']}", "").put(rule, "rule")
        made.put("[", "rule").put(name, "dim")
        made.put(f" {cell}", f"{style} bold")
        if code is not None:
            made.put(f" {state.blueprint_name(code)}", style)
        pieces.append(tuple(made.put(f"]{rule}", "rule").spans))
    pieces.append((("head", ""),))
    rows = [Row().put(" ")]
    for piece in pieces:
        if rows[-1].width > 1 and rows[-1].width + width_of(piece) > width:
            rows.append(Row().put("   "))
        rows[-1].add(piece)
    return [row.line(width) for row in rows]

"""How the seeds of each blueprint ended, in all slots and in each.

The counts are those that SQL has, where the terminal has received all of the run; its heading says where not.
"""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.scoreboard import BlueprintTally
from esper_overwatch.overwatch_tui.render.format import format_points
from esper_overwatch.overwatch_tui.render.lines import Line, Row
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.plot import gauge
from esper_overwatch.overwatch_tui.render.seed_row import contribution_style

_GAUGE = 10
_CELL = 19


def score_lines(inputs: PanelInputs, width: int) -> list[Line]:
    """One line a blueprint; as many slots beside it as fit. No lines before the first seed."""
    board = inputs.state.scoreboard
    totals, by_slot = board.tallies(), board.by_slot()
    if not totals:
        return []
    present = {slot for _, slot in by_slot}
    known = [slot for slot in inputs.state.slots if slot in present]
    slots = known or sorted(present)
    fitting = slots[: max(0, (width - 46) // _CELL)]
    name = "BLUEPRINT" if board.is_whole else "SEEN HERE"
    head = Row().put(f" {name}   GERM FOSS PRUNED CONTRIB FOSSILIZED", "dim")
    for slot in fitting:
        head.put(f"{slot} g/f/p worth", "dim", _CELL, ">")
    if len(fitting) < len(slots):
        head.right(f"+{len(slots) - len(fitting)} slots", "faint", width)
    lines = [head.line(width)]
    for name, tally in sorted(totals.items()):
        row = _total(inputs, name, tally)
        for slot in fitting:
            _cell(row, by_slot.get((name, slot)))
        lines.append(row.line(width))
    return lines


def _total(inputs: PanelInputs, name: str, tally: BlueprintTally) -> Row:
    row = Row().put(f" {name}", "bold", 13).put(str(tally.germinated), "germinated", 4, ">")
    row.put(str(tally.fossilized), "fossilized", 5, ">").put(str(tally.pruned), "pruned", 7, ">")
    worth = tally.mean_contribution
    row.put(format_points(worth), contribution_style(worth), 8, ">").put(" ")
    ended = tally.fossilized + tally.pruned
    return row.add(gauge(tally.fossilized / ended if ended else None, _GAUGE, inputs.glyphs, "fossilized"))


def _cell(row: Row, tally: BlueprintTally | None) -> None:
    if tally is None:
        row.put("--", "faint", _CELL, ">")
        return
    counts = f"{tally.germinated}/{tally.fossilized}/{tally.pruned}"
    row.put(counts, "", _CELL - 7, ">")
    worth = tally.mean_contribution
    row.put(format_points(worth), contribution_style(worth), 7, ">")

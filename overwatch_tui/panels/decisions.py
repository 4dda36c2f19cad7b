"""Decisions of the policy in the newest epoch: what it did in each env, how sure it was, what else."""

from __future__ import annotations

from collections.abc import Sequence

from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.render.chart_page import fill_with_charts
from esper_overwatch.overwatch_tui.render.env_rows import decision, sorted_rows
from esper_overwatch.overwatch_tui.render.format import format_share
from esper_overwatch.overwatch_tui.render.lines import Line, Row
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer

from . import env as env_panel


def _record(inputs: PanelInputs, env: int, action: str) -> dict[str, FieldValue]:
    """What was decided in an env, and the likeliest other operation."""
    names, made = ("sure", "op", "value", "else", "else_share"), decision(inputs.state, env)
    return {"env": env, "action": action, **(dict(zip(names, made, strict=True)) if made else {})}


def records(inputs: PanelInputs) -> list[dict[str, FieldValue]]:
    """All envs, the least sure decision first."""
    found = [_record(inputs, row.env, row.action) for row in sorted_rows(inputs)]
    return sorted(found, key=lambda each: (each.get("sure") is None, each.get("sure"), each["env"]))


def keys(inputs: PanelInputs) -> Sequence[int]:
    return [int(each["env"] or 0) for each in records(inputs)]


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    """Nothing where no network decides, or the run does not tell how sure it was."""
    epoch = inputs.state.epoch
    is_told = epoch is not None and any(share is not None for share in epoch.probability or ())
    return (6, inputs.state.num_envs + 2) if is_told else (0, 0)


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """A line an env, then its charts where there is room."""
    found, order = records(inputs), keys(inputs)
    head = Row().put("  ENV ACTION         SURE   OP  VALUE  ELSE", "dim").line(width)
    scroll = inputs.view.visible_rows("decisions", order, height - 1, top=1)
    at = inputs.view.selected_index("decisions", order)
    lines = [head]
    for i, each in enumerate(found[scroll.rows], scroll.start):
        lines.append(_line(inputs, each, width, selected=i == at))
    return Drawn(fill_with_charts(inputs, lines, width, height, env_panel.charts(inputs)), scroll)


def _line(inputs: PanelInputs, found: dict[str, FieldValue], width: int, *, selected: bool) -> Line:
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus")
    row.put(f"{found['env']:02d} ".rjust(5), "bold").put(str(found["action"]), "", 13).put(
        _share(found.get("sure")), "key", 6, ">"
    )
    row.put(_share(found.get("op")), "dim", 5, ">").put(_share(found.get("value"), "+"), "", 7, ">")
    if found.get("else"):
        row.put(f"  {found['else']} ", "dim").put(_share(found["else_share"]), "dim")
    return row.line(width, selected=selected)


def _share(value: FieldValue, sign: str = "") -> str:
    return format_share(value if isinstance(value, float) else None, sign)


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """The env of the selected decision, which is the selected env from then on."""
    order = keys(inputs)
    env = order[inputs.view.selected_index("decisions", order)] if order else inputs.view.env
    return Drawn(env_panel.env_lines(inputs, env, width, height), env=env)


RENDERER = Renderer(
    title=lambda _: "DECISIONS",
    body=body,
    needs=needs,
    note=lambda _: "least sure first",
    keys=keys,
    detail=detail,
    charts=env_panel.charts,
    records=records,
)

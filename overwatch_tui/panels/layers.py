"""The layers of one env, as an escalation measured them: a table that sorts and scrolls."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

from esper_overwatch.overwatch_tui.model.columns import at_or_none
from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.render.chart_page import fill_with_charts
from esper_overwatch.overwatch_tui.render.format import format_compact, format_number, rank_of
from esper_overwatch.overwatch_tui.render.lines import Line, Row
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.theme import severity_mark

from . import env as env_panel

ORDERS = ("position", "norm", "rms", "max", "zero", "nonfinite", "weight", "update")
_CELL = 7


class LayerRow(NamedTuple):
    """A tensor of weights, or what a module puts out; None is what was not measured."""

    name: str
    norm: float | None
    rms: float | None
    max: float | None
    zero: float | None
    """Share of elements that are 0."""
    nonfinite: int | None
    weight: float | None
    """Norm of the weights."""
    update: float | None
    """Norm of a step, without momentum, as a share of that of the weights."""


def layer_rows(inputs: PanelInputs, env: int) -> list[LayerRow]:
    """The layers of an env, in the order of the view."""
    layers = inputs.state.layers
    if layers is None:
        return []
    epoch = inputs.state.epoch
    rows = []
    gradients = (layers.grad_norm, layers.grad_rms, layers.grad_max, layers.zero_fraction, layers.nonfinite)
    outputs = (layers.activation_rms, layers.activation_max, layers.activation_zero_fraction)
    columns: list[Any] = [*gradients, layers.weight_norm, *outputs]
    for i, name in enumerate(layers.layer):
        cells = [at_or_none(at_or_none(column, i), env) for column in columns]
        norm, rms, peak, zero, nonfinite, weight, out_rms, out_max, out_zero = cells
        if all(cell is None for cell in cells):
            continue
        rate = None
        if epoch is not None:
            is_seed = name.split(".")[0] in inputs.state.slots
            rate = epoch.seed_learning_rate if is_seed else epoch.host_learning_rate
        update = rate * norm / weight if rate is not None and norm is not None and weight else None
        of_out = (out_rms, out_max, out_zero)
        rms, peak, zero = (b if a is None else a for a, b in zip((rms, peak, zero), of_out, strict=True))
        rows.append(LayerRow(name, norm, rms, peak, zero, nonfinite, weight, update))
    order, turned = inputs.view.order("layers")
    if order:
        rows.sort(key=lambda row: rank_of(row[order]), reverse=True)
    return rows[::-1] if turned else rows


def note(inputs: PanelInputs) -> str:
    order, turned = inputs.view.order("layers")
    ctx = inputs.state.layers_ctx
    return f"round {ctx.round} epoch {ctx.epoch}  by {ORDERS[order]}{' turned' if turned else ''}"


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    return (0, 0) if inputs.state.layers is None else (6, len(inputs.state.layers.layer) + 1)


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """A heading, one line a layer, then the env's charts where there is room."""
    env, rows = inputs.view.env, layer_rows(inputs, inputs.view.env)
    if not rows:
        why = f"env{env:02d} was not measured in that epoch: T escalates telemetry"
        return Drawn([Row().put(f" {why}", "dim").line(width)])
    column = min(width - 7 * _CELL, 4 + max(len(row.name) for row in rows))
    heading = Row().put("  LAYER", "dim", column)
    for name in ("NORM", "RMS", "MAX", "ZERO%", "NONFIN", "WEIGHT", "UPDATE"):
        heading.put(name, "dim", _CELL, ">")
    lines = [heading.line(width)]
    names = [row.name for row in rows]
    scroll = inputs.view.visible_rows("layers", names, height - len(lines), top=len(lines))
    at = inputs.view.selected_index("layers", names)
    for i, row in enumerate(rows[scroll.rows], scroll.start):
        lines.append(_line(inputs, row, column, width, selected=i == at))
    return Drawn(fill_with_charts(inputs, lines, width, height, env_panel.charts(inputs)[2:]), scroll)


def _put_judged(row: Row, text: str, severity: str | None) -> None:
    """Put a value; one that is wrong has a mark beside its colour."""
    row.put(text + severity_mark(severity).strip(), severity or "", _CELL, ">")


def _line(inputs: PanelInputs, found: LayerRow, column: int, width: int, *, selected: bool) -> Line:
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus").put(f" {found.name}", "", column - 1)
    for value in (found.norm, found.rms, found.max):
        _put_judged(row, format_compact(value, 6), "critical" if value and not isfinite(value) else None)
    zero = None if found.zero is None else 100 * found.zero
    _put_judged(row, format_number(zero, ".1f"), "warning" if zero == 100 else None)
    _put_judged(row, format_number(found.nonfinite, "d"), "critical" if found.nonfinite else None)
    row.put(format_compact(found.weight, 6), "", _CELL, ">")
    row.put(format_compact(found.update, 6), "", _CELL, ">")
    return row.line(width, selected=selected)


def records(inputs: PanelInputs) -> list[dict[str, FieldValue]]:
    """Every measured layer of every env, for an export."""
    envs = range(inputs.state.num_envs)
    return [{"env": env, **row._asdict()} for env in envs for row in layer_rows(inputs, env)]


RENDERER = Renderer(
    title=lambda inputs: f"LAYERS of env{inputs.view.env:02d}",
    body=body,
    needs=needs,
    note=note,
    keys=lambda inputs: [row.name for row in layer_rows(inputs, inputs.view.env)],
    orders=ORDERS,
    records=records,
)

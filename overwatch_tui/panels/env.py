"""The selected env: its seeds, what its reward is made of, its curves and what happened to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations

from esper_overwatch.overwatch_tui.model.anomalies import env_source
from esper_overwatch.overwatch_tui.model.columns import at_or_none
from esper_overwatch.overwatch_tui.model.log_entries import LogEntry
from esper_overwatch.overwatch_tui.render.chart_page import draw_charts, fill_with_charts
from esper_overwatch.overwatch_tui.render.env_rows import EnvRow, decision, env_row, num_copies, slot_cells
from esper_overwatch.overwatch_tui.render.event_text import event_text
from esper_overwatch.overwatch_tui.render.format import (
    format_clock,
    format_compact,
    format_count,
    format_duration,
    format_number,
    format_percent,
    format_share,
    sorted_terms,
)
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, width_of
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.seed_row import (
    MIN_BAR_WIDTH,
    contribution_style,
    gate_verdict,
    seed_cells,
    seed_header,
    seed_row,
)
from esper_overwatch.overwatch_tui.render.theme import severity_mark

from .incidents import cause, fact_lines


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    slots = max(1, len(inputs.state.slots))
    return min(slots, 4) + 1, slots + 3


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """Seeds; then, where there is room, one line of figures and one of what happened last."""
    lines = _seed_lines(inputs, inputs.view.env, width)[: max(1, height)]
    if height > len(lines):
        lines.append(gradient_line(inputs, inputs.view.env, width))
    room = height - len(lines)
    if room > 0:
        lines += [_entry_line(entry, width) for entry in _entries(inputs, inputs.view.env, room)]
    return Drawn(fill_with_charts(inputs, lines, width, height, charts(inputs)[:2]))


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    return Drawn(env_lines(inputs, inputs.view.env, width, height))


def env_lines(inputs: PanelInputs, env: int, width: int, height: int) -> list[Line]:
    found = env_row(inputs.state, env, inputs.glyphs)
    lines = [
        _headline(inputs, found, width),
        *_why(inputs, found, width),
        _decision(inputs, found, width),
        *host_lines(inputs, env, width),
        EMPTY,
        *_seed_lines(inputs, env, width),
        EMPTY,
    ]
    lines += [*_gates(inputs, env, width), *_reward(inputs, env, width), *_shapley(inputs, env, width)]
    lines += _episode(inputs, env, width)
    lines.append(gradient_line(inputs, env, width))
    lines += _layers(inputs, width)
    left = height - len(lines)
    events = _entries(inputs, env, max(3, left // 3))
    plot = left - len(events) - 3
    if plot >= 4:
        lines += [EMPTY, *draw_charts(inputs, [f"accuracy/{env}", f"return/{env}"], width, plot)]
    lines += [EMPTY, Row().put(" what happened", "dim").line(width)]
    return [*lines, *(_entry_line(entry, width) for entry in events)]


def _headline(inputs: PanelInputs, found: EnvRow, width: int) -> Line:
    epoch = inputs.state.epoch
    parameters = at_or_none(epoch.parameters, found.env) if epoch else None
    row = Row().put(f" env{found.env:02d} ", "title").put(found.status, found.severity or "ok")
    row.put(f"  acc {format_percent(found.accuracy)} (best {format_percent(found.best)})", "bold")
    row.put(f"  loss {format_number(at_or_none(epoch.val_loss, found.env) if epoch else None, '.3f')}")
    row.put(f"  return {format_number(found.total, '+.2f')}  params {format_count(parameters)}")
    if (copies := num_copies(inputs.state)) > 1:
        row.put(f"  host {found.env // copies}, copy {found.env % copies + 1} of {copies}", "dim")
    return row.line(width)


def _why(inputs: PanelInputs, found: EnvRow, width: int) -> list[Line]:
    """What is wrong since when, the change before it, and what undoes it."""
    record = inputs.state.incidents.of_env(found.env)
    if record is None:
        return []
    since = record.data.since
    when = f"since {format_clock(since)} ({format_duration(inputs.seconds_since(since))} ago)"
    facts = [("why", f"{found.trouble or record.data.title}, {when}"), *cause(record)]
    return [line for name, text in facts for line in fact_lines(name, text, width)]


def _decision(inputs: PanelInputs, found: EnvRow, width: int) -> Line:
    """`decided PRUNE r0c1, p .34 (op .52), value +.61; else WAIT .41`: where a network decided.

    The first is that of the whole action, with its slot and all else; the others are those of ops.
    """
    row = Row().put(" decided ", "dim").put(found.action)
    made = decision(inputs.state, found.env)
    if made is None or made.sure is None:
        return row.line(width)
    row.put(f", p {format_share(made.sure)}")
    if made.of_op is not None and format_share(made.of_op) != format_share(made.sure):
        row.put(f" (op {format_share(made.of_op)})", "dim")
    row.put(f", value {format_share(made.value, '+')}")
    if made.other:
        row.put(f"; else {made.other} {format_share(made.other_share)}", "dim")
    return row.line(width)


def _seed_lines(inputs: PanelInputs, env: int, width: int) -> list[Line]:
    """A header and one line per slot."""
    bar, explains = min(16, width - 76), _explains_gates(width)
    lines = [Row().put(" SLOT ", "dim").add(seed_header(bar, drift_width=6)).line(width)]
    epoch = inputs.state.epoch
    stages = at_or_none(epoch.stage, env) if epoch else None
    if not stages:
        return [*lines, Row().put(" no data yet", "dim").line(width)]
    for slot in range(len(stages)):
        seed = seed_row(inputs.state, env, slot)
        row = Row().put(f" {seed.slot}", "bold", 6)
        if seed.stage == "DORMANT":
            row.put("--         ", "faint").put("dormant", "faint")
        else:
            row.add(seed_cells(seed, bar, 5, inputs.glyphs, explains=explains))
        lines.append(row.line(width))
    return lines


def _explains_gates(width: int) -> bool:
    """True if the table of seeds has room for why a gate did not let one through."""
    bar = min(16, width - 76)
    return width >= 72 if bar < MIN_BAR_WIDTH else bar == 16


def _gates(inputs: PanelInputs, env: int, width: int) -> list[Line]:
    """The last gate of each seed that did not pass, and why, where the table does not say it."""
    if _explains_gates(width):
        return []
    lines = []
    for slot in inputs.state.slots:
        gate = inputs.state.gates.get((env, slot))
        verdict, why, style = gate_verdict(gate.failed) if gate is not None else ("", "", "")
        if gate is not None and why:
            row = Row().put(f" {slot} {gate.gate} ", "dim").put(f"{verdict}: {why}", style)
            lines.append(row.line(width))
    return lines


def _reward(inputs: PanelInputs, env: int, width: int) -> list[Line]:
    epoch = inputs.state.epoch
    if epoch is None or not epoch.reward_components:
        return []
    row = Row().put(" reward ", "dim").put(format_number(at_or_none(epoch.reward, env), "+.3f"), "bold")
    row.put(" =", "dim")
    terms = {name: at_or_none(column, env) for name, column in epoch.reward_components.items()}
    return [_put_terms(row, terms).line(width)]


def _episode(inputs: PanelInputs, env: int, width: int) -> list[Line]:
    """Result of the env's last whole episode."""
    found = inputs.state.episodes.get(env)
    if found is None:
        return []
    round_, episode = found
    row = Row().put(f" episode (round {round_}) ", "dim")
    row.put(f"return {format_number(episode.total_return, '+.2f')}", "bold")
    row.put(f"  acc {format_percent(episode.accuracy)}  params +{format_count(episode.added_parameters)}")
    for stage, count in sorted(episode.seeds.items()):
        row.put(f"  {stage.lower()} {count}", "dim")
    if episode.rollbacks:
        row.put(f"  rollbacks {episode.rollbacks}", "warning")
    lines = [row.line(width)]
    if episode.reward_components:
        lines.append(_put_terms(Row().put("   of which ", "dim"), episode.reward_components).line(width))
    return lines


def _put_terms(row: Row, terms: Mapping[str, float | None]) -> Row:
    """Put what a sum is made of."""
    for name, value in sorted_terms(terms):
        row.put(f"  {name} ", "dim").put(format_number(value, "+.3f"))
    return row


def _shapley(inputs: PanelInputs, env: int, width: int) -> list[Line]:
    """Shapley value of each seed in the last round that was analysed, in points of accuracy."""
    found = inputs.state.shapley
    values = at_or_none(found.value, env) if found else None
    if found is None or values is None or all(value is None for value in values):
        return []
    row = Row().put(f" Shapley (round {inputs.state.shapley_ctx.round}) ", "dim")
    for slot, value in enumerate(values):
        if value is None:
            continue
        row.put(f"  {at_or_none(inputs.state.slots, slot)} ", "dim")
        row.put(f"{100 * value:+.1f}", contribution_style(value))
        half_width = at_or_none(at_or_none(found.half_width, env), slot)
        if half_width:
            row.put(f" {inputs.glyphs.plus_minus}{100 * half_width:.1f}", "dim")
    return [row.line(width), *_interactions(inputs, at_or_none(found.interaction, env), width)]


def _interactions(inputs: PanelInputs, pairs: list[list[float | None]] | None, width: int) -> list[Line]:
    """Gain of each pair of seeds through one another, in points of accuracy."""
    row, slots = Row().put(" interactions ", "dim"), inputs.state.slots
    begin = row.width
    for first, second in combinations(range(len(pairs or [])), 2):
        value = at_or_none(at_or_none(pairs, first), second)
        if value is not None:
            row.put(f"  {at_or_none(slots, first)} {at_or_none(slots, second)} ", "dim")
            row.put(f"{100 * value:+.1f}", contribution_style(value))
    return [row.line(width)] if row.width > begin else []


def _put_judged(row: Row, label: str, text: str, severity: str | None) -> None:
    """Put a value with the mark and the colour of its severity."""
    row.put(label, "dim").put(text + severity_mark(severity).strip(), severity or "")


def gradient_line(inputs: PanelInputs, env: int, width: int) -> Line:
    """Gradient and curves in one line."""
    state = inputs.state
    source = env_source(env)
    epoch = state.epoch
    health = at_or_none(epoch.host_health, env) if epoch else None
    drift = state.drift_of(source)
    norm = at_or_none(epoch.host_grad_norm, env) if epoch else None
    row = Row().put(" host grad ", "dim").put(format_compact(norm, 6))
    _put_judged(row, " health ", format_number(health), state.detector_severity(source, "gradient_health"))
    _put_judged(row, " drift ", format_compact(drift, 5), state.detector_severity(source, "norm_drift"))
    if epoch is not None and epoch.loss_scale:
        row.put(" fp16 scale ", "dim").put(format_compact(at_or_none(epoch.loss_scale, env), 6))
        skipped = format_number(at_or_none(epoch.skipped_steps, env), "d")
        _put_judged(row, " skipped ", skipped, state.detector_severity(source, "fp16_overflow"))
    if epoch is not None and epoch.host_learning_rate is not None:
        row.put(" lr ", "dim").put(f"{epoch.host_learning_rate:.1e}")
        if epoch.seed_learning_rate not in (None, epoch.host_learning_rate):
            row.put(" of seeds ", "dim").put(f"{epoch.seed_learning_rate:.1e}")
    room = (width - row.width - 15) // 2
    if room >= 6:
        row.put("  acc ", "dim").put(inputs.sparkline(f"accuracy/{env}", room), "chart")
        row.put("  drift ", "dim").put(inputs.sparkline(f"drift/{source}", room, low=0.0), "chart2")
    return row.line(width)


def _layers(inputs: PanelInputs, width: int) -> list[Line]:
    """Where the layers stand that an escalation has measured."""
    if inputs.state.layers is None:
        return []
    at = inputs.state.layers_ctx
    row = Row().put(" layers ", "dim").put(f"measured in round {at.round}, epoch {at.epoch}  ")
    return [row.put(":show layers", "key").line(width)]


def _entries(inputs: PanelInputs, env: int, count: int) -> list[LogEntry]:
    """The newest log entries about this env, newest first."""
    source = env_source(env)
    found = []
    for entry in reversed(inputs.state.log):
        if entry.source == source or entry.source.startswith((source + " ", source + ".")):
            found.append(entry)
            if len(found) >= count:
                break
    return found


def _entry_line(entry: LogEntry, width: int) -> Line:
    where = entry.source.partition(" ")[2] or entry.source.partition(".")[2]
    row = Row().put(f" r{entry.round} e{entry.epoch:02d} ", "dim").put(format_clock(entry.ts), "faint")
    row.put(f" {where + severity_mark(entry.severity).strip():<5}")
    return row.put(event_text(entry.data), entry.severity or "dim").line(width)


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


def charts(inputs: PanelInputs) -> list[str]:
    """Accuracy and return of the selected env, drift and norm of its gradient."""
    env = inputs.view.env
    names = [f"accuracy/{env}", f"return/{env}", f"drift/{env_source(env)}", f"norm/{env_source(env)}"]
    return [name for name in names if inputs.history(name) is not None]


RENDERER = Renderer(
    title=lambda inputs: f"ENV {inputs.view.env:02d} seeds",
    body=body,
    needs=needs,
    note=lambda _: "Enter more",
    detail=detail,
    charts=charts,
    grows=True,
)

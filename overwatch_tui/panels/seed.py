"""One seed's life: birth, stages, gates, what was measured of it epoch by epoch, its cost and its end."""

from __future__ import annotations

from math import isfinite

from esper_overwatch.overwatch_tui.model.columns import at_or_none
from esper_overwatch.overwatch_tui.model.seed_stories import GateStep, Point, SeedStory, StageStep
from esper_overwatch.overwatch_tui.model.time_series import SECOND, History
from esper_overwatch.overwatch_tui.render.chart_axis import ChartAxis
from esper_overwatch.overwatch_tui.render.format import (
    format_clock,
    format_count,
    format_number,
    format_points,
)
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, beside
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.plot import Series, chart
from esper_overwatch.overwatch_tui.render.seed_row import contribution_style, gate_verdict

MIN_CHART_LINES = 4
TWO_LISTS = 100
"""Columns from which stages and gates stand side by side."""


def story_lines(inputs: PanelInputs, story: SeedStory, width: int, height: int) -> list[Line]:
    lines = [_headline(story, width), *_facts(inputs, story, width), EMPTY]
    stages, gates = _stages(story), _gates(story)
    if width >= TWO_LISTS:
        half = width // 2
        for i in range(max(len(stages), len(gates))):
            row = Row().add(stages[i] if i < len(stages) else EMPTY).to(half)
            lines.append(row.add(gates[i] if i < len(gates) else EMPTY).line(width))
    else:
        room = max(4, height - len(lines) - len(stages) - 5)
        shown = [gates[0], *gates[1:][-(room - 1) :]]
        lines += [Row().add(line).line(width) for line in (*stages, *shown)]
    room = height - len(lines) - 1
    if story.points and room >= MIN_CHART_LINES:
        lines += [EMPTY, *_curves(inputs, story, width, room)]
    return lines


def _headline(story: SeedStory, width: int) -> Line:
    row = Row().put(f" env{story.env:02d} {story.slot} ", "title").put(f" {story.blueprint or '--'} ", "bold")
    style = (story.end_stage or story.stage).lower()
    if story.end_stage is None:
        row.put(f" {story.stage or '--'}", style)
    else:
        row.put(f" {story.outcome}", style if story.outcome.isupper() else "bold")
        row.put(f" in epoch {format_number(story.end_epoch, 'd')}")
        if story.outcome == "round over":
            row.put(f" as {story.end_stage}", style)
    if story.epochs is not None:
        row.put(f"  {story.epochs} epochs old", "dim")
    return row.put(f"  round {story.round}", "dim").line(width)


def _facts(inputs: PanelInputs, story: SeedStory, width: int) -> list[Line]:
    born = Row().put(" born    ", "dim")
    if story.by is None:
        born.put("before what is known of it begins")
    else:
        born.put(f"in epoch {format_number(story.born_epoch, 'd')} by {story.by}")
        if story.stages:
            born.put(f", {format_clock(story.stages[0].ts)}", "dim")
    if story.seed:
        born.put(f"  id {story.seed}", "faint")
    cost = Row().put(" cost    ", "dim").put(f"{format_count(story.parameters)} parameters")
    run = inputs.state.run
    if story.parameters and run is not None and run.host_parameters:
        cost.put(f", {100 * story.parameters / run.host_parameters:+.1f} % of the host's")
    worth = Row().put(" worth   ", "dim")
    worth.put(format_points(story.contribution), contribution_style(story.contribution))
    worth.put(" points of accuracy when last measured" if story.contribution is not None else " not measured")
    shapley = _shapley(inputs, story)
    if shapley is not None:
        worth.put("  Shapley ", "dim").put(format_points(shapley), contribution_style(shapley))
    return [row.line(width) for row in (born, cost, worth)]


def _shapley(inputs: PanelInputs, story: SeedStory) -> float | None:
    """Shapley value of this seed; None if its round was not analysed or it ended before the round did."""
    state, ended = inputs.state, story.end_stage in ("PRUNED", "DORMANT")
    is_of_round = state.shapley_ctx.round == story.round and story.slot in state.slots
    if state.shapley is None or ended or not is_of_round:
        return None
    found = at_or_none(at_or_none(state.shapley.value, story.env), state.slots.index(story.slot))
    return None if found is None else float(found)


def _stages(story: SeedStory) -> list[Line]:
    """Stages of the seed, and the epochs spent in each."""
    lines = [Row().put(" STAGE      FROM EPOCHS ALPHA CONTRIB BY", "dim").line(48)]
    for i, step in enumerate(story.stages):
        lines.append(_stage(story, step, story.stages[i + 1] if i + 1 < len(story.stages) else None))
    if len(lines) == 1:
        lines.append(Row().put(" no stage is known yet", "dim").line(48))
    return lines


def _stage(story: SeedStory, step: StageStep, following: StageStep | None) -> Line:
    end = following.epoch if following is not None else story.end_epoch
    if end is None and story.points:
        end = story.points[-1].epoch
    is_last = step.stage in ("PRUNED", "EMBARGOED", "DORMANT")
    row = Row().put(f" {step.stage}", step.stage.lower(), 12).put(f"e{step.epoch}", "", 4, ">")
    row.put("" if is_last or end is None else str(max(0, end - step.epoch)), "", 7, ">")
    row.put(format_number(step.alpha), "", 6, ">")
    row.put(format_points(step.contribution), contribution_style(step.contribution), 8, ">")
    return row.put(f" {step.by}", "dim").line(48)


def _gates(story: SeedStory) -> list[Line]:
    """Each verdict, with the checks that failed."""
    lines = [Row().put(" GATE  EPOCH VERDICT", "dim").line(48)]
    lines += [_gate(step) for step in story.gates]
    return lines if len(lines) > 1 else [*lines, Row().put(" no gate was asked yet", "dim").line(48)]


def _gate(step: GateStep) -> Line:
    row = Row().put(f" {step.gate}", "", 7).put(f"e{step.epoch}", "", 5, ">").put(" ")
    verdict, why, style = gate_verdict(step.failed)
    row.put(f"{verdict}: {why}" if why else verdict, style)
    return tuple(row.put(f"  {step.times} times" if step.times > 1 else "", "dim").spans)


def _curves(inputs: PanelInputs, story: SeedStory, width: int, height: int) -> list[Line]:
    """Charts of alpha, contribution and gradient over the epochs of the life."""
    series = (
        ("alpha", _history(story.points, "alpha"), 1.0, "{:.2f}", "blending"),
        ("contribution, points", _history(story.points, "contribution"), 100.0, "{:+.1f}", "chart"),
        ("gradient norm", _history(story.points, "grad_norm"), 1.0, "{:.3g}", "chart2"),
    )
    first, last = story.points[0].epoch, story.points[-1].epoch
    axis = ChartAxis(last * SECOND, max(1, last - first + 1) * SECOND)
    measured = [each for each in series if each[1] is not None]
    columns = (width - 2 * len(measured)) // max(1, len(measured))
    ends = Row().to(7).put(f"e{first}", "dim").right(f"e{last}", "dim", columns).line(columns)
    boxes = []
    for name, history, scale, form, style in measured:
        drawn = [Series(name, history, style, scale)]
        lines = chart(drawn, columns, height - 1, axis, inputs.glyphs, form=form, floor=0.0)
        boxes.append([Row().put(f" {name}", "dim").line(columns), *lines[:-1], ends])
    return beside(boxes, columns + 2, width)


def _history(points: list[Point], name: str) -> History | None:
    """A column of the points over epochs, one epoch a second."""
    known = [(point.epoch, getattr(point, name)) for point in points]
    found = [(epoch, value) for epoch, value in known if value is not None and isfinite(value)]
    if not found:
        return None
    history = History(((SECOND, 4096),))
    for epoch, value in found:
        history.add(epoch * SECOND, value)
    return history

"""The seeds of all envs, and how those of each blueprint ended."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from esper_overwatch.overwatch_tui.model.columns import at_or_none
from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.model.seed_stories import GateStep, SeedStory
from esper_overwatch.overwatch_tui.render.env_rows import SEED_STAGES, stage_counts
from esper_overwatch.overwatch_tui.render.format import format_number, format_points
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.plot import gauge
from esper_overwatch.overwatch_tui.render.seed_row import (
    MIN_BAR_WIDTH,
    contribution_style,
    gate_verdict,
    seed_cells,
    seed_header,
    seed_row,
)
from esper_overwatch.overwatch_tui.render.view_state import Scroll
from esper_overwatch.protocol.journal.seed_counts import SeedCount
from esper_overwatch.protocol.messages.events import SeedGate

from .seed import story_lines

MIN_STORY = 10
"""Lines left that are worth the life of the selected seed."""
MIN_ENDED = 3
"""Ended seeds that are shown however many live."""

FIELDS = ("env", "slot", "bp", "st", "ep", "alpha", "contrib", "grad", "health", "drift", "gate")


def _fields_of(inputs: PanelInputs, env: int, slot: int) -> dict[str, FieldValue]:
    seed = seed_row(inputs.state, env, slot)
    return {
        "env": env,
        "slot": seed.slot,
        "bp": seed.blueprint,
        "st": seed.stage,
        "ep": seed.epochs,
        "alpha": seed.alpha,
        "contrib": None if seed.contribution is None else 100 * seed.contribution,
        "grad": seed.grad_norm,
        "health": seed.health,
        "drift": seed.drift,
        "gate": "" if seed.gate is None else _gate_field(seed.gate),
    }


def _gate_field(gate: SeedGate | GateStep) -> str:
    verdict, why, _ = gate_verdict(gate.failed)
    return f"{gate.gate} {verdict}" + (f": {why}" if why else "")


def note(inputs: PanelInputs) -> str:
    if "seeds" in inputs.view.filters:
        return inputs.view.filter_note("seeds")
    counts = stage_counts(inputs.state)
    return "  ".join(f"{name.lower()} {count}" for name, count in counts.items())


def living(inputs: PanelInputs) -> list[tuple[int, int]]:
    """(env, slot) of the seeds that live, env by env."""
    epoch = inputs.state.epoch
    if epoch is None:
        return []
    return [
        (env, slot)
        for env, row in enumerate(epoch.stage)
        for slot, code in enumerate(row)
        if inputs.state.stage_name(code) in SEED_STAGES
        and inputs.view.passes("seeds", partial(_fields_of, inputs, env, slot))
    ]


def ended(inputs: PanelInputs) -> list[SeedStory]:
    """Ended seeds, the newest end first."""
    found = inputs.state.stories.ended()
    return [story for story in found if inputs.view.passes("seeds", partial(_fields_of_ended, story))]


def _fields_of_ended(story: SeedStory) -> dict[str, FieldValue]:
    return {
        "env": story.env,
        "slot": story.slot,
        "bp": story.blueprint or "",
        "st": f"{story.outcome} {story.end_stage}",
        "ep": story.epochs,
        "contrib": None if story.contribution is None else 100 * story.contribution,
        "gate": " ".join(map(_gate_field, story.gates[-1:])),
    }


def keys(inputs: PanelInputs) -> Sequence[tuple[int, int] | str]:
    """Places of living seeds, then ids of ended ones."""
    return [*living(inputs), *(story.seed for story in ended(inputs))]


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """One line per seed that lives, then the ended ones; at the bottom one per blueprint."""
    alive, gone = living(inputs), ended(inputs)
    scores = score_lines(inputs, width)[: max(0, height // 3)]
    bar = max(MIN_BAR_WIDTH, min(20, width - 77))
    heading = Row().put("  ENV SLOT ", "dim").add(seed_header(bar, drift_width=7)).line(width)
    rows: list[tuple[int, int] | str] = [*alive, *(story.seed for story in gone)]
    room = height - len(scores)
    ends = min(len(gone), max(MIN_ENDED, room - len(alive) - 2)) if gone else 0
    order = inputs.view.selected_index("seeds", rows)
    if order >= len(alive) and gone:
        lines, scroll = _ended_list(inputs, gone, rows, width, room)
    else:
        shown = room - (ends + 1 if ends else 0)
        lines = [heading]
        if not alive:
            text = inputs.empty_text("seeds", "seed", "no seed lives in any slot now")
            lines.append(Row().put(f" {text}", "dim").line(width))
        scroll = inputs.view.visible_rows("seeds", alive, shown - 1, top=1)
        for i, key in enumerate(alive[scroll.rows], scroll.start):
            lines.append(_line(inputs, key, bar, width, selected=i == order))
        if ends:
            lines += [EMPTY] * (shown - len(lines)) if len(alive) >= shown else []
            lines.append(_ended_header(inputs, len(gone), width))
            lines += [_ended_line(inputs, story, width, selected=False) for story in gone[:ends]]
    room -= len(lines) + 1
    story = _selected_story(inputs) if room >= MIN_STORY else None
    if story is not None:
        lines += [EMPTY, *story_lines(inputs, story, width, room)[:room]]
    return Drawn([*lines, *[EMPTY] * (height - len(lines) - len(scores)), *scores], scroll)


def _ended_list(
    inputs: PanelInputs,
    gone: list[SeedStory],
    rows: Sequence[tuple[int, int] | str],
    width: int,
    height: int,
) -> tuple[list[Line], Scroll]:
    """The ended seeds alone, once the selection has come to them."""
    alive, at = len(rows) - len(gone), inputs.view.selected_index("seeds", rows)
    scroll = inputs.view.visible_rows("seeds", rows, height - 1, top=1)
    scroll = scroll._replace(start=max(alive, scroll.start))
    lines = [_ended_header(inputs, len(gone), width)]
    for i, story in enumerate(gone[scroll.start - alive :][: scroll.height], scroll.start):
        lines.append(_ended_line(inputs, story, width, selected=i == at))
    return lines, scroll


def _ended_header(inputs: PanelInputs, count: int, width: int) -> Line:
    text = "  ENV SLOT BLUEPRINT  ENDED                 ROUND EPOCHS CONTRIB FAILED"
    return Row().put(text, "dim").right(f"newest of {count}", "faint", width).line(width)


def _ended_line(inputs: PanelInputs, story: SeedStory, width: int, *, selected: bool) -> Line:
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus").put(f" {story.env:02d}", "", 5)
    row.put(story.slot, "", 5).put(story.blueprint or "--", "", 11)
    outcome = story.outcome
    if outcome == "round over":
        outcome += f", {story.end_stage}"
    row.put(outcome, (story.end_stage or "").lower(), 21)
    row.put(f"r{story.round}e{story.end_epoch}", "dim", 7, ">")
    row.put(format_number(story.epochs, "d"), "", 6, ">")
    row.put(format_points(story.contribution), contribution_style(story.contribution), 8, ">")
    failed = next((gate for gate in reversed(story.gates) if gate.failed), None)
    if failed is not None:
        verdict, why, style = gate_verdict(failed.failed)
        row.put(f" {failed.gate} {verdict}: {why}", style)
    return row.line(width, selected=selected)


def _line(inputs: PanelInputs, key: tuple[int, int], bar: int, width: int, *, selected: bool) -> Line:
    env, slot = key
    seed = seed_row(inputs.state, env, slot)
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus").put(f" {env:02d}", "bold", 5)
    row.put(seed.slot, "", 5).add(seed_cells(seed, bar, 6, inputs.glyphs, explains=bar > MIN_BAR_WIDTH))
    return row.line(width, selected=selected)


def _selected_story(inputs: PanelInputs) -> SeedStory | None:
    """Story of the selected row; None without a row or a story."""
    rows = keys(inputs)
    if not rows:
        return None
    key = rows[inputs.view.selected_index("seeds", rows)]
    state = inputs.state
    if isinstance(key, str):
        return state.stories.get(key)
    return state.stories.present(state.epoch_ctx.round, key[0], str(at_or_none(state.slots, key[1])))


_GAUGE = 10
_CELL = 19


def score_lines(inputs: PanelInputs, width: int) -> list[Line]:
    """Outcomes of the seeds by blueprint, and by as many slots as fit; the heading says if events lack."""
    board = inputs.state.seed_counts
    totals, by_slot = board.by_blueprint(), board.by_slot()
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
            if (cell := by_slot.get((name, slot))) is None:
                row.put("--", "faint", _CELL, ">")
                continue
            row.put(f"{cell.germinated}/{cell.fossilized}/{cell.pruned}", "", _CELL - 7, ">")
            worth = cell.mean_contribution
            row.put(format_points(worth), contribution_style(worth), 7, ">")
        lines.append(row.line(width))
    return lines


def _total(inputs: PanelInputs, name: str, tally: SeedCount) -> Row:
    row = Row().put(f" {name}", "bold", 13).put(str(tally.germinated), "germinated", 4, ">")
    row.put(str(tally.fossilized), "fossilized", 5, ">").put(str(tally.pruned), "pruned", 7, ">")
    worth = tally.mean_contribution
    row.put(format_points(worth), contribution_style(worth), 8, ">").put(" ")
    ended = tally.fossilized + tally.pruned
    return row.add(gauge(tally.fossilized / ended if ended else None, _GAUGE, inputs.glyphs, "fossilized"))


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """The life of the selected seed; its env is the selected one from then on."""
    story = _selected_story(inputs)
    if story is None:
        return body(inputs, width, height)
    return Drawn(story_lines(inputs, story, width, height), env=story.env)


def records(inputs: PanelInputs) -> list[dict[str, FieldValue]]:
    """All seeds, living or ended, for an export; in a detail the epochs of the selected one."""
    story = _selected_story(inputs) if inputs.view.detail else None
    if story is not None:
        return [point._asdict() for point in story.points]
    state = inputs.state
    found = [
        {**_fields_of(inputs, env, slot), "round": state.epoch_ctx.round, "ended": None}
        for env, slot in living(inputs)
    ]
    for story in ended(inputs):
        more = {"round": story.round, "ended": story.end_epoch, "born": story.born_epoch, "by": story.by}
        found.append({**_fields_of_ended(story), **more, "parameters": story.parameters})
    return found


RENDERER = Renderer(
    title=lambda inputs: f"SEEDS {len(living(inputs))}",
    body=body,
    needs=lambda inputs, _: (4, len(keys(inputs)) + 2),
    note=note,
    keys=keys,
    detail=detail,
    fields=lambda _: FIELDS,
    records=records,
)

"""The seeds of all envs, and how those of each blueprint ended."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from overwatch_tui.model.filters import Value
from overwatch_tui.render.env_rows import SEED_STAGES, stage_counts
from overwatch_tui.render.lines import EMPTY, Line, Row, restyle
from overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from overwatch_tui.render.plot import gauge
from overwatch_tui.render.seed_row import seed_cells, seed_header, seed_row

from . import env as env_panel

FIELDS = ("env", "slot", "bp", "st", "ep", "alpha", "contrib", "grad", "health", "drift", "gate")


def fields(_inputs: PanelInputs) -> Sequence[str]:
    """What a filter may name."""
    return FIELDS


def _fields_of(inputs: PanelInputs, env: int, slot: int) -> dict[str, Value]:
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
        "gate": "" if seed.gate is None else f"{seed.gate.gate} {'ok' if seed.gate.passed else 'no'}",
    }


def title(inputs: PanelInputs) -> str:
    return f"SEEDS {len(keys(inputs))}"


def note(inputs: PanelInputs) -> str:
    if "seeds" in inputs.view.filters:
        return inputs.view.filter_note("seeds")
    counts = stage_counts(inputs.state)
    return "  ".join(f"{name.lower()} {count}" for name, count in counts.items())


def keys(inputs: PanelInputs) -> Sequence[tuple[int, int]]:
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


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    return 4, len(keys(inputs)) + 2


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """One line per seed; at the bottom one per blueprint."""
    order = keys(inputs)
    tallies = _tallies(inputs, width)[: max(0, height // 3)]
    bar = max(4, min(20, width - 71))
    lines = [Row().put("  ENV SLOT ", "dim").add(seed_header(bar, drift_width=7)).line(width)]
    if not order:
        lines.append(Row().put(_nothing(inputs), "dim").line(width))
    scroll = inputs.view.visible_rows("seeds", order, height - 1 - len(tallies), top=1)
    at = inputs.view.selected_index("seeds", order)
    for i, key in enumerate(order[scroll.rows], scroll.start):
        lines.append(_line(inputs, key, bar, width, selected=i == at))
    return Drawn([*lines, *[EMPTY] * (height - len(lines) - len(tallies)), *tallies], scroll)


def _nothing(inputs: PanelInputs) -> str:
    chosen = inputs.view.filter_note("seeds")
    return f" no seed passes {chosen}; Esc shows all" if chosen else " no seed lives in any slot now"


def _line(inputs: PanelInputs, key: tuple[int, int], bar: int, width: int, *, selected: bool) -> Line:
    env, slot = key
    seed = seed_row(inputs.state, env, slot)
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus").put(f" {env:02d}", "bold", 5)
    row.put(seed.slot, "", 5).add(seed_cells(seed, bar, 6, inputs.glyphs, name_checks=True))
    line = row.line(width)
    return restyle(line, "select") if selected else line


def _tallies(inputs: PanelInputs, width: int) -> list[Line]:
    """Per blueprint: how many seeds germinated, fossilized and were pruned, by the events received."""
    tallies = inputs.state.scoreboard.tallies()
    if not tallies:
        return []
    lines = [Row().put(" BLUEPRINT    germinated fossilized pruned   share fossilized", "dim").line(width)]
    for name, tally in sorted(tallies.items()):
        row = Row().put(f" {name}", "bold", 14).put(str(tally.germinated), "germinated", 10, ">")
        row.put(str(tally.fossilized), "fossilized", 11, ">").put(str(tally.pruned), "pruned", 7, ">")
        row.put("   ")
        ended = tally.fossilized + tally.pruned
        row.add(gauge(tally.fossilized / ended if ended else None, 12, inputs.glyphs, "fossilized"))
        lines.append(row.line(width))
    return lines


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """The env that the selected seed lives in, which is the selected env from then on."""
    seeds = keys(inputs)
    if not seeds:
        return env_panel.detail(inputs, width, height)
    env, _ = seeds[inputs.view.selected_index("seeds", seeds)]
    return Drawn(env_panel.env_lines(inputs, env, width, height), env=env)


def records(inputs: PanelInputs) -> list[dict[str, Value]]:
    """What an export has of each row."""
    return [_fields_of(inputs, env, slot) for env, slot in keys(inputs)]


RENDERER = Renderer(
    title=title, body=body, needs=needs, note=note, keys=keys, detail=detail, fields=fields, records=records
)

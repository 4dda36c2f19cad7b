"""All living seeds of all envs, and what became of each blueprint."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..describe import number
from ..envrows import WITH_SEED, compact, source_of, stage_counts
from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row, restyle
from ..state import at_or_none
from ..theme import letter
from ..widgets.plot import gauge
from . import env as env_panel


def title(frame: Frame) -> str:
    return f"SEEDS {len(keys(frame))}"


def note(frame: Frame) -> str:
    counts = stage_counts(frame.state)
    return "  ".join(f"{name.lower()} {count}" for name, count in counts.items())


def keys(frame: Frame) -> Sequence[Hashable]:
    """(env, slot) of the seeds that live, env by env."""
    epoch = frame.state.epoch
    if epoch is None:
        return []
    return [
        (env, slot)
        for env, row in enumerate(epoch.stage)
        for slot, code in enumerate(row)
        if frame.state.stage_name(code) in WITH_SEED
    ]


def needs(frame: Frame, width: int) -> tuple[int, int]:
    return 4, len(keys(frame)) + 2


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """One line per seed; at the bottom one per blueprint."""
    order = keys(frame)
    tallies = _tallies(frame, width)[: max(0, height // 3)]
    bar = max(4, min(20, width - 71))
    header = Row().put("  ENV SLOT BLUEPRINT  STAGE      EP ALPHA ", "dim").put("", "", bar)
    lines = [header.put(" CONTRIB   GRAD HEALTH  DRIFT  GATE", "dim").line(width)]
    if not order:
        lines.append(Row().put(" no seed lives in any slot now", "dim").line(width))
    start, stop = frame.view.visible("seeds", order, height - 1 - len(tallies))
    at = frame.view.index("seeds", order)
    for i in range(start, stop):
        lines.append(_line(frame, order[i], bar, width, selected=i == at))
    return [*lines, *[EMPTY] * (height - len(lines) - len(tallies)), *tallies]


def _line(frame: Frame, key: Hashable, bar: int, width: int, *, selected: bool) -> Line:
    assert isinstance(key, tuple)
    env, slot = key
    state, epoch = frame.state, frame.state.epoch
    assert epoch is not None
    stage = state.stage_name(epoch.stage[env][slot])
    name = str(at_or_none(state.slots, slot))
    alpha = at_or_none(at_or_none(epoch.alpha, env), slot)
    row = Row().put(frame.glyphs.cursor if selected else " ", "focus").put(f" {env:02d}", "bold", 5)
    row.put(name, "", 5).put(state.blueprint_name(at_or_none(at_or_none(epoch.blueprint, env), slot)), "", 11)
    row.put(stage, stage.lower(), 10)
    row.put(number(at_or_none(at_or_none(epoch.epochs_in_stage, env), slot), "d"), "dim", 3, ">")
    row.put(number(alpha, ".2f"), "", 6, ">").put(" ").add(gauge(alpha, bar, frame.glyphs, stage.lower()))
    gain = at_or_none(at_or_none(epoch.contribution, env), slot)
    style = "dim" if gain is None else "ok" if gain > 0 else "pruned"
    row.put(number(None if gain is None else 100 * gain, "+.1f"), style, 8, ">")
    row.put(compact(at_or_none(at_or_none(epoch.seed_grad_norm, env), slot), 6), "", 7, ">")
    health = at_or_none(at_or_none(epoch.seed_health, env), slot)
    row.put(number(health), state.severity("gradient_health", health) or "dim", 7, ">")
    drift = state.drift_of(f"{source_of(env)}.{name}")
    severity = state.judged(f"{source_of(env)}.{name}", "norm_drift")
    row.put(compact(drift, 6), severity or "dim", 6, ">").put(letter(severity), severity or "")
    gate = state.gates.get((env, name))
    if gate is not None:
        failed = [check for check, ok in gate.checks.items() if not ok]
        text = f" {gate.gate} ok" if gate.passed else f" {gate.gate} {','.join(failed)}"
        row.put(text, "ok" if gate.passed else "info")
    line = row.line(width)
    return restyle(line, "select") if selected else line


def _tallies(frame: Frame, width: int) -> list[Line]:
    """Per blueprint: how many were born, stayed and went, as far as we have heard."""
    tallies = frame.state.tallies
    if not tallies:
        return []
    lines = [Row().put(" BLUEPRINT    germinated fossilized pruned   of those heard of", "dim").line(width)]
    for name, tally in sorted(tallies.items()):
        row = Row().put(f" {name}", "bold", 14).put(str(tally.germinated), "germinated", 10, ">")
        row.put(str(tally.fossilized), "fossilized", 11, ">").put(str(tally.pruned), "pruned", 7, ">").put(
            "   "
        )
        ended = tally.fossilized + tally.pruned
        row.add(gauge(tally.fossilized / ended if ended else None, 12, frame.glyphs, "fossilized"))
        lines.append(row.line(width))
    return lines


def detail(frame: Frame, width: int, height: int) -> list[Line]:
    """The env that the selected seed lives in."""
    order = keys(frame)
    if order:
        key = order[frame.view.index("seeds", order)]
        assert isinstance(key, tuple)
        frame.view.env = key[0]
    return env_panel.detail(frame, width, height)


PANEL = Panel(name="seeds", title=title, body=body, needs=needs, note=note, keys=keys, detail=detail)

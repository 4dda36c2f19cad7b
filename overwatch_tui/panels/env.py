"""The selected env: its seeds, what its reward is made of, its curves and what happened to it."""

from __future__ import annotations

import time

from protocol.events import LayerStatistics

from ..describe import SHORT_STAGE, Entry, amount, number
from ..envrows import WITH_SEED, EnvRow, compact, row_of, source_of
from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row
from ..state import at_or_none
from ..theme import letter
from ..widgets.plot import Series, chart, gauge

SHORTEST_BAR = 3


def title(frame: Frame) -> str:
    return f"ENV {frame.view.env:02d} seeds"


def note(frame: Frame) -> str:
    return "{ } other env  Enter more"


def needs(frame: Frame, width: int) -> tuple[int, int]:
    slots = max(1, len(frame.state.slots))
    return min(slots, 4) + 1, slots + 3


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """Seeds; then, where there is room, one line of figures and one of what happened last."""
    lines = seed_lines(frame, frame.view.env, width)[: max(1, height)]
    if height > len(lines):
        lines.append(figures(frame, frame.view.env, width))
    room = height - len(lines)
    if room > 0:
        lines += [_happened(entry, width) for entry in _entries(frame, frame.view.env, room)]
    return lines


def detail(frame: Frame, width: int, height: int) -> list[Line]:
    """Everything about one env."""
    env = frame.view.env
    found = row_of(frame.state, env, frame.now, frame.glyphs)
    lines = [_headline(frame, found, width), EMPTY, *seed_lines(frame, env, width), EMPTY]
    lines += [*_gates(frame, env, width), *_reward(frame, env, width), *_shapley(frame, env, width)]
    lines.append(figures(frame, env, width))
    lines += _layers(frame, env, width)
    left = height - len(lines)
    events = _entries(frame, env, max(3, left // 3))
    plot = left - len(events) - 3
    if plot >= 4:
        lines += [EMPTY, *_curves(frame, env, width, plot)]
    lines += [EMPTY, Row().put(" what happened", "dim").line(width)]
    return [*lines, *(_happened(entry, width) for entry in events)]


def _headline(frame: Frame, found: EnvRow, width: int) -> Line:
    epoch = frame.state.epoch
    parameters = at_or_none(epoch.parameters, found.env) if epoch else None
    row = Row().put(f" env{found.env:02d} ", "title").put(found.status, found.severity or "ok")
    row.put(f"  acc {_percent(found.accuracy)} (best {_percent(found.best)})", "bold")
    row.put(f"  loss {number(at_or_none(epoch.val_loss, found.env) if epoch else None, '.3f')}")
    row.put(f"  return {number(found.total, '+.2f')}  params {amount(parameters)}")
    row.put(f"  last {found.action}", "dim")
    return row.put(f"  {found.trouble}", found.severity or "").line(width)


def _percent(share: float | None) -> str:
    return "--" if share is None else f"{100 * share:.1f}"


def seed_lines(frame: Frame, env: int, width: int) -> list[Line]:
    """A header and one line per slot."""
    bar = min(16, width - 74)
    if bar < SHORTEST_BAR:
        lines = [Row().put(" SLOT BLUEPRINT  STAGE  EP ALPHA CONTRIB  GRAD DRIFT  GATE", "dim").line(width)]
    else:
        header = Row().put(" SLOT BLUEPRINT  STAGE      EP ALPHA ", "dim").put("", "", bar)
        lines = [header.put(" CONTRIB   GRAD HEALTH DRIFT  GATE", "dim").line(width)]
    epoch = frame.state.epoch
    stages = at_or_none(epoch.stage, env) if epoch else None
    if not stages:
        return [*lines, Row().put(" not heard of yet", "dim").line(width)]
    for slot in range(len(stages)):
        lines.append(_seed(frame, env, slot, bar).line(width))
    return lines


def _seed(frame: Frame, env: int, slot: int, bar: int) -> Row:
    """One slot; a `bar` too short to draw asks for the short form."""
    state = frame.state
    epoch = state.epoch
    assert epoch is not None
    name = str(at_or_none(state.slots, slot))
    stage = state.stage_name(epoch.stage[env][slot])
    style = stage.lower()

    def of(column: list[list[float | None]]) -> float | None:
        value: float | None = at_or_none(at_or_none(column, env), slot)
        return value

    row = Row().put(f" {name}", "bold", 6)
    if stage == "DORMANT":
        return row.put("--         ", "faint").put("dormant", "faint")
    blueprint = at_or_none(at_or_none(epoch.blueprint, env), slot)
    alpha = at_or_none(at_or_none(epoch.alpha, env), slot)
    epochs = at_or_none(at_or_none(epoch.epochs_in_stage, env), slot)
    short = bar < SHORTEST_BAR
    row.put(state.blueprint_name(blueprint), "", 11)
    row.put(SHORT_STAGE.get(stage, stage) if short else stage, style, 6 if short else 10)
    row.put(number(epochs, "d"), "dim", 3, ">").put(number(alpha, ".2f"), "", 6, ">")
    if not short:
        row.put(" ").add(gauge(alpha, bar, frame.glyphs, style))
    contribution = of(epoch.contribution)
    row.put(number(None if contribution is None else 100 * contribution, "+.1f"), _gain(contribution), 8, ">")
    row.put(compact(of(epoch.seed_grad_norm), 5), "", 6 if short else 7, ">")
    if not short:
        health = of(epoch.seed_health)
        row.put(number(health), state.severity("gradient_health", health) or "dim", 7, ">")
    drift = state.drift_of(f"{source_of(env)}.{name}") if stage in WITH_SEED else None
    severity = state.judged(f"{source_of(env)}.{name}", "norm_drift")
    row.put(compact(drift, 5), severity or "dim", 6, ">").put(letter(severity), severity or "")
    gate = state.gates.get((env, name))
    if gate is not None and stage in WITH_SEED:
        row.put(f" {gate.gate} {'ok' if gate.passed else 'no'}", "ok" if gate.passed else "info")
    return row


def _gain(contribution: float | None) -> str:
    if contribution is None:
        return "dim"
    return "ok" if contribution > 0 else "pruned"


def _gates(frame: Frame, env: int, width: int) -> list[Line]:
    """Which checks the last gate of each seed passed and failed."""
    lines = []
    for slot in frame.state.slots:
        gate = frame.state.gates.get((env, slot))
        if gate is None:
            continue
        row = Row().put(f" {slot} {gate.gate} ", "dim")
        for check, passed in gate.checks.items():
            row.put(f" {check} ", "").put("yes" if passed else "NO", "ok" if passed else "info")
        lines.append(row.line(width))
    return lines


def _reward(frame: Frame, env: int, width: int) -> list[Line]:
    epoch = frame.state.epoch
    if epoch is None or not epoch.reward_components:
        return []
    row = (
        Row()
        .put(" reward ", "dim")
        .put(number(at_or_none(epoch.reward, env), "+.3f"), "bold")
        .put(" =", "dim")
    )
    for name, column in epoch.reward_components.items():
        row.put(f"  {name} ", "dim").put(number(at_or_none(column, env), "+.3f"))
    return [row.line(width)]


def _shapley(frame: Frame, env: int, width: int) -> list[Line]:
    """What each seed of the last round with an analysis was worth, in points of accuracy."""
    found = frame.state.shapley
    values = at_or_none(found.value, env) if found else None
    if found is None or values is None or all(value is None for value in values):
        return []
    row = Row().put(f" Shapley (round {frame.state.shapley_round}) ", "dim")
    for slot, value in enumerate(values):
        if value is None:
            continue
        row.put(f"  {at_or_none(frame.state.slots, slot)} ", "dim").put(f"{100 * value:+.1f}", _gain(value))
        half_width = at_or_none(at_or_none(found.half_width, env), slot)
        if half_width:
            row.put(f" {frame.glyphs.plus_minus}{100 * half_width:.1f}", "dim")
    return [row.line(width)]


def figures(frame: Frame, env: int, width: int) -> Line:
    """Gradient and curves in one line."""
    state = frame.state
    source = source_of(env)
    epoch = state.epoch
    health = at_or_none(epoch.host_health, env) if epoch else None
    drift = state.drift_of(source)
    row = (
        Row()
        .put(" host grad ", "dim")
        .put(compact(at_or_none(epoch.host_grad_norm, env) if epoch else None, 6))
    )
    row.put(" health ", "dim").put(number(health), state.severity("gradient_health", health) or "")
    row.put(" drift ", "dim").put(compact(drift, 5), state.judged(source, "norm_drift") or "")
    room = (width - row.width - 15) // 2
    if room >= 6:
        row.put("  acc ", "dim").put(frame.spark(f"accuracy/{env}", room), "chart")
        row.put("  drift ", "dim").put(frame.spark(f"drift/{source}", room, low=0.0), "chart2")
    return row.line(width)


def _layers(frame: Frame, env: int, width: int) -> list[Line]:
    """Gradient norm of each layer, while telemetry is escalated."""
    layers = frame.state.layers
    if layers is None:
        return []
    row = Row().put(
        f" layers (round {frame.state.layers_ctx.round} epoch {frame.state.layers_ctx.epoch}) ", "dim"
    )
    for i, name in enumerate(layers.layer):
        value = at_or_none(at_or_none(layers.grad_norm, i), env)
        if value is None:
            continue
        text = f" {name} {compact(value, 5)}"
        if row.width + len(text) > width:
            break
        row.put(text)
    return [row.line(width), *_activations(layers, env, width)]


def _activations(layers: LayerStatistics, env: int, width: int) -> list[Line]:
    """What blocks, slots and head put out: root mean square, and the share that is 0."""
    row = Row().put(" outputs, rms and % zero ", "dim")
    begin = row.width
    for i, name in enumerate(layers.layer):
        rms = at_or_none(at_or_none(layers.activation_rms, i), env)
        zero = at_or_none(at_or_none(layers.activation_zero_fraction, i), env)
        if rms is None or zero is None:
            continue
        text = f" {name.removesuffix('.out')} {compact(rms, 5)} {100 * zero:.0f}"
        if row.width + len(text) > width:
            break
        row.put(text)
    return [row.line(width)] if row.width > begin else []


def _curves(frame: Frame, env: int, width: int, height: int) -> list[Line]:
    """Accuracy and return side by side."""
    half = (width - 2) // 2
    accuracy = chart(
        [Series("acc", frame.history(f"accuracy/{env}"), "chart", 100.0)], half, height - 1,
        now=frame.now, window=frame.window, glyphs=frame.glyphs, form="{:.1f}",
    )  # fmt: skip
    total = chart(
        [Series("return", frame.history(f"return/{env}"), "chart2")], half, height - 1,
        now=frame.now, window=frame.window, glyphs=frame.glyphs, form="{:+.2f}",
    )  # fmt: skip
    head = (
        Row()
        .put(f" accuracy %, {frame.window_name}", "dim")
        .to(half + 2)
        .put(" return of the episode", "dim")
    )
    return [
        head.line(width),
        *(Row().add(a).to(half + 2).add(t).line(width) for a, t in zip(accuracy, total, strict=True)),
    ]


def _entries(frame: Frame, env: int, count: int) -> list[Entry]:
    """The newest log entries about this env, newest first."""
    source = source_of(env)
    found = []
    for entry in reversed(frame.state.log):
        if entry.source == source or entry.source.startswith((source + " ", source + ".")):
            found.append(entry)
            if len(found) >= count:
                break
    return found


def _happened(entry: Entry, width: int) -> Line:
    where = entry.source.partition(" ")[2] or entry.source.partition(".")[2]
    row = (
        Row()
        .put(f" r{entry.round} e{entry.epoch:02d} ", "dim")
        .put(clock(entry.ts), "faint")
        .put(f" {where:<5}")
    )
    return row.put(entry.text, entry.severity or "dim").line(width)


def clock(ts: int) -> str:
    """Local wall time, HH:MM:SS."""
    return time.strftime("%H:%M:%S", time.localtime(ts / 1e6))


PANEL = Panel(name="env", title=title, body=body, needs=needs, note=note, detail=detail)

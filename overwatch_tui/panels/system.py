"""The machine, the trainer and the telemetry bus."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from esper_overwatch.overwatch_tui.render.chart_page import fill_with_charts
from esper_overwatch.overwatch_tui.render.comparison_table import leaves
from esper_overwatch.overwatch_tui.render.format import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
)
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, wrapped
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.plot import gauge
from esper_overwatch.protocol.messages.events import RoundFinished, SystemSample

_LABEL = 12
MIN_CONFIGURATION = 4
MAX_VALUE_LINES = 6


def note(inputs: PanelInputs) -> str:
    age = inputs.seconds_since(inputs.state.system_ts)
    return "" if age is None else f"{format_duration(age)} ago"


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """Machine, trainer, bus; where there is room the configuration, which Enter shows whole."""
    is_sampled = inputs.state.system is not None or not inputs.state.is_published
    machine = [*_machine(inputs, width), EMPTY] if is_sampled else []
    lines = [*machine, *_trainer(inputs, width), EMPTY, *_bus(inputs, width)]
    if height - len(lines) >= MIN_CONFIGURATION:
        lines += [EMPTY, *_configuration(inputs, width, height - len(lines) - 1)]
    return Drawn(fill_with_charts(inputs, lines, width, height, charts(inputs) or None))


def _configuration(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """The settings that fit, in columns that cut nothing."""
    run = inputs.state.run
    pairs = leaves(run.config) if run is not None else []
    if not pairs:
        return []
    name_width = max(len(name) for name, _ in pairs) + 1
    cell = min(max(1, width - 1), name_width + max(len(value) for _, value in pairs) + 3)
    columns = max(1, (width - 1) // cell)
    rows = min(height - 1, -(-len(pairs) // columns))
    shown = pairs[: rows * columns]
    of_all = f" configuration, {len(shown)} of {len(pairs)} (Enter: all)"
    lines = [Row().put(of_all, "bold").line(width)]
    for i in range(rows):
        row = Row()
        for column, (name, value) in enumerate(shown[i::rows]):
            row.to(1 + column * cell).put(name, "dim", name_width).put(value)
        lines.append(row.line(width))
    return lines


def _label(text: str) -> Row:
    return Row().put(f" {text}", "dim", _LABEL)


def _machine(inputs: PanelInputs, width: int) -> list[Line]:
    system = inputs.state.system
    if system is None:
        return [_label("machine").put("-- no sample yet", "dim").line(width)]
    bar = max(8, min(24, width // 4))
    room = max(0, min(40, width - _LABEL - bar - 36))
    busy = system.machine_cpu_percent
    own_share = system.cpu_percent / 100 / max(system.cores, 1)
    cpu = _label("cpu").add(gauge(own_share if busy is None else busy / 100, bar, inputs.glyphs))
    cpu.put(f" this run {system.cpu_percent:.0f}%, machine {format_number(busy, '.0f')}%", "", 30)
    cpu.put(inputs.sparkline("cpu" if busy is None else "cpu.machine", room, low=0.0), "chart")
    share = system.memory_used / system.memory_total if system.memory_total else None
    style = inputs.state.detector_severity("system", "memory") or "accent"
    memory = _label("memory").add(gauge(share, bar, inputs.glyphs, style))
    used = f"{format_bytes(system.memory_used)} of {format_bytes(system.memory_total)}"
    memory.put(f" this run {format_bytes(system.rss)}, machine {used}")
    cores = system.machine_cores or system.cores
    granted = f", {system.cores} for this run" if system.cores != cores else ""
    rest = _label("load").put(f"{system.load1:.2f} on {cores} cores{granted}")
    rest.put(f", disk {format_bytes(system.disk_free)} free")
    lines = [cpu, memory, rest]
    if system.gpu_percent is not None or system.gpu_memory is not None:
        lines.append(_gpu(inputs, system, bar, room))
    if system.gpu_reserved is not None:
        fragments = None if system.gpu_fragmentation is None else 100 * system.gpu_fragmentation
        held = _label("tensors").put(f"{format_bytes(system.gpu_allocated)} of ")
        held.put(f"{format_bytes(system.gpu_reserved)} reserved")
        lines.append(held.put(f"  {format_number(fragments, '.0f')}% fragmented", "dim"))
    return [row.line(width) for row in lines]


def _gpu(inputs: PanelInputs, system: SystemSample, bar: int, room: int) -> Row:
    percent = system.gpu_percent
    row = _label("gpu").add(gauge(None if percent is None else percent / 100, bar, inputs.glyphs))
    row.put(f" {format_number(percent, '.0f')}%", "", 6)
    row.put(f"{format_bytes(system.gpu_memory)} of {format_bytes(system.gpu_memory_total)}")
    row.put(f"  {format_number(system.gpu_celsius, '.0f')} C ", "dim")
    return row.put(inputs.sparkline("gpu", room, low=0.0, high=100.0), "chart")


def _trainer(inputs: PanelInputs, width: int) -> list[Line]:
    run, link = inputs.state.run, inputs.link
    if run is None:
        return [_label("run").put("-- no data yet", "dim").line(width)]
    beat = "--" if link.trainer_age_seconds is None else format_duration(link.trainer_age_seconds)
    name = _label("run").put(run.name, "bold")
    name.put(f"  id {run.run}  boot {run.boot}  pid {run.pid} on {run.host}")
    if inputs.state.is_published:
        loop = _label("loop").put(f"{inputs.run_word or '--'}, last beat {beat} ago")
        about = _label("about").put(f"published by a loop of its own with esper {run.version}", "dim")
        return [row.line(width) for row in (name, about, loop)]
    software = _label("software").put(f"esper {run.version}  torch {run.torch}  device {run.device}")
    task = _label("task").put(f"{run.task}, policy {run.policy}, {len(run.slots)} slots, seed {run.seed}, ")
    task.put(f"{run.envs} envs of {format_count(run.host_parameters)} parameters")
    trainer = _label("trainer").put(f"{link.trainer or inputs.state.run_state or '--'}, last beat {beat} ago")
    rows = [name, software, task, trainer]
    if (recorded := inputs.state.profiling) is not None:
        rows.append(_label("profiler").put(f"recording {recorded.epochs} epochs", "accent"))
    if inputs.state.last_round is not None:
        rows.append(_stalls(inputs.state.last_round))
    return [row.line(width) for row in rows]


def _stalls(counted: RoundFinished) -> Row:
    """Stalls of the device in the last round."""
    row = _label("last round").put(f"device waits {format_number(counted.device_syncs, 'd')}")
    for text, count in (
        ("graph breaks", counted.graph_breaks),
        ("recompiles", counted.recompiles),
        ("allocator retries", counted.allocator_retries),
    ):
        row.put(f"  {text} {format_number(count, 'd')}", "warning" if count else "dim")
    return row


def _bus(inputs: PanelInputs, width: int) -> list[Line]:
    link, state = inputs.link, inputs.state
    rate = "--" if link.events_per_second is None else f"{link.events_per_second:.1f}"
    lost = ", ".join(f"{stream} {count}" for stream, count in link.dropped.items() if count) or "none"
    clients = "--" if link.num_clients is None else str(link.num_clients)
    state_ = _label("link").put(link.label, link.severity or "ok")
    viewers = "viewer" if clients == "1" else "viewers"
    state_.put(f"  heartbeat {format_duration(link.age_seconds)} ago  {clients} {viewers}")
    received = _label("received").put(f"{link.events} events, {format_bytes(link.bytes)}, {rate} per second")
    holes = "warning" if link.gaps or link.skipped else "dim"
    gaps = _label("gaps")
    gaps.put(f"{link.gaps} found, {link.repaired} events repaired, {link.skipped} skipped", holes)
    refused = _label("refused").put(f"by the daemon: {lost}", "warning" if lost != "none" else "dim")
    bad = _label("unreadable")
    bad.put(f"bad {link.bad}, unknown types {state.unknown}", "warning" if link.bad else "dim")
    if link.last_bad:
        bad.put(f"  {link.last_bad}", "dim")
    rows = [state_, received, gaps, refused, bad]
    if state.stride is not None and state.stride.new > 1:
        collected = _label("collected").put(f"drift every {state.stride.new} epochs", "warning")
        rows.append(collected.put(f", to keep within {state.stride.budget:.2%} of the time", "dim"))
    return [row.line(width) for row in rows]


def detail(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """The configuration that the run was started with."""
    run = inputs.state.run
    if run is None:
        return body(inputs, width, height)
    pairs = list(leaves(run.config))
    names = [name for name, _ in pairs]
    column = 3 + max(map(len, names), default=0)
    lines = [Row().put(f" configuration of {run.name}", "title").line(width), EMPTY]
    at = inputs.view.selected_index("system", names)
    whole = _whole_value(*pairs[at], column, width) if pairs else []
    room = height - len(lines) - len(whole)
    scroll = inputs.view.visible_rows("system", names, room, top=len(lines))
    for i, (name, value) in enumerate(pairs[scroll.rows], scroll.start):
        row = Row().put(inputs.glyphs.cursor if i == at else " ", "focus").put(name, "dim").to(column)
        lines.append(row.put(value).line(width))
    lines = fill_with_charts(inputs, lines, width, height - len(whole), charts(inputs) or None)
    lines += [EMPTY] * (height - len(lines) - len(whole))
    return Drawn([*lines, *whole], scroll)


def _whole_value(name: str, value: str, column: int, width: int) -> list[Line]:
    """The selected setting on as many lines as it takes, where its row cuts it."""
    if column + len(value) <= width:
        return []
    lines = wrapped(f"{name} = {value}", width, "accent", column=1, is_whole=True)
    return [EMPTY, *lines[:MAX_VALUE_LINES]]


def keys(inputs: PanelInputs) -> Sequence[Hashable]:
    """Names of the configuration, where it is shown: it scrolls."""
    run = inputs.state.run
    return [name for name, _ in leaves(run.config)] if inputs.view.detail and run is not None else ()


def charts(inputs: PanelInputs) -> Sequence[str]:
    """The load of the machine, and the speed."""
    names = ("cpu.machine", "cpu", "memory", "rss", "gpu", "speed")
    return [name for name in names if inputs.history(name) is not None]


RENDERER = Renderer(
    title=lambda _: "SYSTEM",
    body=body,
    needs=lambda *_: (4, 14),
    note=note,
    keys=keys,
    detail=detail,
    charts=charts,
)

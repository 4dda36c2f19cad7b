"""The machine, the telemetry bus and the last profile."""

from __future__ import annotations

from protocol.events import RoundFinished

from ..describe import amount, number, size, span
from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row
from ..widgets.plot import gauge

_LABEL = 12


def title(frame: Frame) -> str:
    return "SYSTEM"


def note(frame: Frame) -> str:
    age = frame.seconds_since(frame.state.system_ts)
    return "" if age is None else f"{span(age)} ago"


def needs(frame: Frame, width: int) -> tuple[int, int]:
    return 4, 14


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """Machine, trainer, bus, profile; Enter shows the run's configuration."""
    lines = [*_machine(frame, width), EMPTY, *_trainer(frame, width), EMPTY, *_bus(frame, width)]
    profile = _profile(frame, width)
    return [*lines, EMPTY, *profile] if profile else lines


def _label(text: str) -> Row:
    return Row().put(f" {text}", "dim", _LABEL)


def _machine(frame: Frame, width: int) -> list[Line]:
    system = frame.state.system
    if system is None:
        return [_label("machine").put("-- no sample yet", "dim").line(width)]
    bar = max(8, min(24, width // 4))
    room = max(0, min(40, width - _LABEL - bar - 30))
    share = system.memory_used / system.memory_total if system.memory_total else None
    cpu = _label("cpu").add(gauge(system.cpu_percent / 100 / max(system.cores, 1), bar, frame.glyphs))
    cpu.put(f" {system.cpu_percent:.0f}% of {100 * system.cores}%", "", 16)
    cpu.put(frame.spark("cpu", room, low=0.0), "chart")
    style = frame.state.severity("memory", share) or "accent"
    memory = _label("memory").add(gauge(share, bar, frame.glyphs, style))
    memory.put(f" {size(system.memory_used)} of {size(system.memory_total)}, trainer {size(system.rss)}")
    rest = _label("load").put(
        f"{system.load1:.2f} on {system.cores} cores, disk {size(system.disk_free)} free"
    )
    lines = [cpu, memory, rest]
    if system.gpu_percent is not None or system.gpu_memory is not None:
        lines.append(_gpu(frame, bar, room))
    return [row.line(width) for row in lines]


def _gpu(frame: Frame, bar: int, room: int) -> Row:
    system = frame.state.system
    assert system is not None
    percent = system.gpu_percent
    row = _label("gpu").add(gauge(None if percent is None else percent / 100, bar, frame.glyphs))
    row.put(f" {number(percent, '.0f')}%", "", 6).put(
        f"{size(system.gpu_memory)} of {size(system.gpu_memory_total)}"
    )
    row.put(f"  {number(system.gpu_celsius, '.0f')} C ", "dim")
    return row.put(frame.spark("gpu", room, low=0.0, high=100.0), "chart")


def _trainer(frame: Frame, width: int) -> list[Line]:
    run, link = frame.state.run, frame.link
    if run is None:
        return [_label("run").put("-- not heard of yet", "dim").line(width)]
    beat = "--" if link.beat_age is None else span(link.beat_age)
    name = _label("run").put(run.name, "bold")
    name.put(f"  id {run.run}  boot {run.boot}  pid {run.pid} on {run.host}")
    software = _label("software").put(f"esper {run.version}  torch {run.torch}  device {run.device}")
    task = _label("task").put(f"{run.task}, policy {run.policy}, {len(run.slots)} slots, seed {run.seed}, ")
    task.put(f"{run.envs} envs of {amount(run.host_parameters)} parameters")
    trainer = _label("trainer").put(f"{link.trainer or frame.state.run_state or '--'}, last beat {beat} ago")
    rows = [name, software, task, trainer]
    if frame.state.rounds:
        rows.append(_hindrances(frame.state.rounds[-1]))
    return [row.line(width) for row in rows]


def _hindrances(counted: RoundFinished) -> Row:
    """What the last round was held up by."""
    row = _label("last round").put(f"device waits {number(counted.device_syncs, 'd')}")
    for text, count in (
        ("graph breaks", counted.graph_breaks),
        ("recompiles", counted.recompiles),
        ("allocator retries", counted.allocator_retries),
    ):
        row.put(f"  {text} {number(count, 'd')}", "warning" if count else "dim")
    return row


def _bus(frame: Frame, width: int) -> list[Line]:
    link, state = frame.link, frame.state
    rate = "--" if link.rate is None else f"{link.rate:.1f}"
    lost = (
        "none"
        if not any(link.dropped.values())
        else ", ".join(f"{k} {v}" for k, v in link.dropped.items() if v)
    )
    clients = "--" if link.clients is None else str(link.clients)
    state_ = _label("link").put(link.word, link.severity or "ok")
    state_.put(f"  heartbeat {span(link.age)} ago  {clients} viewers")
    received = _label("received").put(f"{link.events} events, {size(link.bytes)}, {rate} per second")
    holes = "warning" if link.gaps or link.skipped else "dim"
    gaps = _label("gaps").put(
        f"{link.gaps} found, {link.repaired} events repaired, {link.skipped} skipped", holes
    )
    refused = _label("refused").put(f"by the daemon: {lost}", "warning" if lost != "none" else "dim")
    bad = _label("unreadable").put(
        f"bad {link.bad}, unknown types {state.unknown}", "warning" if link.bad else "dim"
    )
    if link.last_bad:
        bad.put(f"  {link.last_bad}", "dim")
    rows = [state_, received, gaps, refused, bad]
    if state.stride is not None and state.stride.new > 1:
        collected = _label("collected").put(f"drift every {state.stride.new} epochs", "warning")
        rows.append(collected.put(f", to keep within {state.stride.budget:.2%} of the time", "dim"))
    return [row.line(width) for row in rows]


def _profile(frame: Frame, width: int) -> list[Line]:
    state = frame.state
    if state.profiling is not None:
        return [_label("profiler").put(f"recording {state.profiling.epochs} epochs", "accent").line(width)]
    profile = state.profile
    if profile is None:
        return []
    if profile.error:
        return [_label("profiler").put(profile.error, "critical").line(width)]
    lines = [_label("profile").put(profile.path, "bold").put(f"  {size(profile.bytes)}", "dim").line(width)]
    if profile.python_share is not None:
        used = _label("").put(f"gpu {number(profile.gpu_utilisation, '.0%')} busy, ")
        used.put(f"{number(profile.kernels, 'd')} kernels, ")
        used.put(f"allocator {number(profile.allocator_seconds, '.3g')} s, ")
        lines.append(used.put(f"python {profile.python_share:.0%}").line(width))
    for row in profile.top:
        share = row.get("share")
        text = f"{100 * share:5.1f}% " if isinstance(share, int | float) else "   -- "
        line = _label("").put(text, "accent")
        line.put(str(row.get("name", "?")), "", 40).put(f"{row.get('calls', '--')} calls", "dim")
        lines.append(line.line(width))
    return lines


def detail(frame: Frame, width: int, height: int) -> list[Line]:
    """The configuration that the run was started with."""
    run = frame.state.run
    if run is None:
        return body(frame, width, height)
    pairs = list(_leaves(run.config))
    lines = [Row().put(f" configuration of {run.name}", "title").line(width), EMPTY]
    per_column = max(1, height - len(lines))
    columns = [pairs[i : i + per_column] for i in range(0, len(pairs), per_column)]
    column_width = max(20, min(48, (width - 1) // max(1, len(columns))))
    for y in range(min(per_column, len(pairs))):
        row = Row().put(" ")
        for column in columns:
            if y < len(column):
                name, value = column[y]
                cell = Row().put(name + " ", "dim").put(value)
                row.add(cell.line(column_width))
        lines.append(row.line(width))
    return lines


def _leaves(table: dict[str, object], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, str(value)))
    return found


PANEL = Panel(name="system", title=title, body=body, needs=needs, note=note, detail=detail)

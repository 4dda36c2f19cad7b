"""The PPO update: is the policy learning, exploring, and moving at a sound pace."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ..describe import number, span
from ..envrows import compact
from ..frame import Frame, Panel
from ..lines import EMPTY, Line, Row, restyle
from ..theme import word
from ..widgets.plot import Series, chart, gauge
from . import curves

CURVES_FROM = 8
"""Lines left that are worth a chart."""


class Signal(NamedTuple):
    """A figure of the update, its limits and its curve."""

    label: str
    field: str
    """Of `PPOUpdate`; its history is `ppo.<field>`."""
    limit: str
    """In the table of thresholds; empty where there is none."""
    help: str


SIGNALS = (
    Signal("KL", "approx_kl", "kl", "how far the policy moved"),
    Signal("entropy", "entropy", "entropy", "1 = explores freely, 0 = has decided"),
    Signal("clip", "clip_fraction", "clip_fraction", "share of clipped samples"),
    Signal("EV", "explained_variance", "explained_variance", "how well the critic predicts"),
    Signal("ratio max", "ratio_max", "ratio_max", "widest probability ratio"),
    Signal("value loss", "value_loss", "", ""),
    Signal("grad norm", "grad_norm", "total_grad_norm", "before clipping"),
    Signal("policy loss", "policy_loss", "", ""),
    Signal("seconds", "seconds", "update_seconds", "of the update"),
    Signal("LSTM h rms", "lstm_h_rms", "lstm_rms", "recurrent state"),
)


def title(frame: Frame) -> str:
    return "POLICY (PPO)"


def note(frame: Frame) -> str:
    if frame.state.ppo is None:
        return ""
    return (
        f"update {span(frame.seconds_since(frame.state.ppo_ts))} ago  {1000 * frame.state.ppo.seconds:.0f} ms"
    )


def keys(frame: Frame) -> Sequence[Hashable]:
    return [signal.field for signal in SIGNALS]


def needs(frame: Frame, width: int) -> tuple[int, int]:
    return 4, (len(SIGNALS) + 1) // 2 + 4


def body(frame: Frame, width: int, height: int) -> list[Line]:
    """Signals in pairs with their curves, then what the policy did and got."""
    ppo = frame.state.ppo
    if ppo is None:
        return [Row().put(" no update yet: the first comes when the first round ends", "dim").line(width)]
    tail = [_actions(frame, width), _returns(frame, width), _settings(frame, width), _phases(frame, width)]
    alone = frame.view.name == "policy" and not frame.view.detail
    lines: list[Line] = []
    if alone and height >= len(SIGNALS) + len(tail) + 2:
        at = frame.view.index("policy", keys(frame))
        lines += [_full(frame, s, width, selected=i == at) for i, s in enumerate(SIGNALS)]
        lines += [EMPTY, *tail]
        rest = height - len(lines) - 1
        if rest >= 2:
            lines += [EMPTY, *_heads(frame, width)[:rest]]
        room = height - len(lines) - 1
        if room >= CURVES_FROM:
            lines += [EMPTY, *curves.side_by_side(frame, width, room)]
        return lines
    half = (width - 1) // 2
    room = max(1, height - len(tail))
    for left, right in list(zip(SIGNALS[::2], SIGNALS[1::2], strict=True))[:room]:
        row = Row().add(_pair(frame, left, half)).to(half + 1).add(_pair(frame, right, width - half - 1))
        lines.append(row.line(width))
    return [*lines, *tail]


def _value(frame: Frame, signal: Signal) -> float | None:
    value: float | None = getattr(frame.state.ppo, signal.field)
    return value


def _pair(frame: Frame, signal: Signal, width: int) -> Line:
    value = _value(frame, signal)
    severity = frame.state.severity(signal.limit, value)
    row = Row().put(f" {signal.label}", "dim", 12).put(_figure(value), "bold", 8, ">").put(" ")
    row.put(word(severity) if signal.limit and value is not None else "", severity or "ok", 5)
    return row.put(
        frame.spark(f"ppo.{signal.field}", max(0, width - row.width - 1)), severity or "chart"
    ).line(width)


def _figure(value: float | None) -> str:
    if value is None:
        return "--"
    return f"{value:.4f}" if abs(value) < 1 else compact(value, 7)


def _full(frame: Frame, signal: Signal, width: int, *, selected: bool) -> Line:
    value = _value(frame, signal)
    severity = frame.state.severity(signal.limit, value)
    limit = frame.state.thresholds.get(signal.limit)
    row = Row().put(frame.glyphs.cursor if selected else " ", "focus").put(signal.label, "bold", 12)
    row.put(_figure(value), "bold", 8, ">").put(" ")
    row.put(word(severity) if limit and value is not None else "", severity or "ok", 5)
    row.put(f"{limit.warning:g}/{limit.critical:g}" if limit else "", "dim", 11)
    room = max(0, min(width - row.width - 1, max(20, width - row.width - 40)))
    row.put(frame.spark(f"ppo.{signal.field}", room), severity or "chart")
    if width - row.width >= 34:
        row.put(f"  {signal.help}", "dim")
    line = row.line(width)
    return restyle(line, "select") if selected else line


def _actions(frame: Frame, width: int) -> Line:
    ppo = frame.state.ppo
    assert ppo is not None
    row = Row().put(" actions  ", "dim")
    for name, share in ppo.op_fraction.items():
        text = f"{name.lower()} {100 * share:.0f}%"
        if row.width + len(text) + 2 > width:
            break
        row.put(text.partition(" ")[0] + " ", "dim").put(
            text.partition(" ")[2] + "  ", "" if share else "faint"
        )
    return row.line(width)


def _returns(frame: Frame, width: int) -> Line:
    row = Row().put(" returns  ", "dim")
    if not frame.state.rounds:
        return row.put("no round has finished yet", "dim").line(width)
    last = frame.state.rounds[-1]
    row.put(f"p10 {last.return_p10:+.2f}  p50 {last.return_p50:+.2f}  p90 {last.return_p90:+.2f}")
    row.put(f"  acc {100 * last.accuracy_mean:.1f} best {100 * last.accuracy_best:.1f}", "bold")
    if last.test_accuracy_mean is not None:
        row.put(f" test {100 * last.test_accuracy_mean:.1f}", "dim")
    return row.put("  ").put(frame.spark("return.mean", max(0, width - row.width - 1)), "chart3").line(width)


def _settings(frame: Frame, width: int) -> Line:
    ppo = frame.state.ppo
    assert ppo is not None
    row = Row().put(" update   ", "dim")
    row.put(f"adv {ppo.advantage_mean:+.2f}{frame.glyphs.plus_minus}{ppo.advantage_std:.2f}")
    row.put(f"  {ppo.epochs}{frame.glyphs.times}{ppo.minibatches}", "dim")
    row.put(" early stop" if ppo.early_stop else "", "info")
    row.put(f"  skipped {ppo.skipped_nonfinite}", "critical" if ppo.skipped_nonfinite else "dim")
    return row.put(f"  lr {ppo.learning_rate:.1e}  ent coef {ppo.entropy_coefficient:g}", "dim").line(width)


def _phases(frame: Frame, width: int) -> Line:
    """Where the time of an epoch goes."""
    epoch = frame.state.epoch
    row = Row().put(" epoch    ", "dim")
    if epoch is None:
        return row.put("--", "dim").line(width)
    total = sum(epoch.phases.values())
    row.put(f"{1000 * epoch.seconds:.0f} ms  ")
    for rank, seconds in sorted(frame.state.rank_seconds.items()):
        row.put(f"rank {rank} ", "dim").put(f"{1000 * seconds:.0f} ms  ")
    for name, seconds in sorted(epoch.phases.items(), key=lambda phase: -phase[1]):
        share = seconds / total if total > 0 else 0.0
        severity = frame.state.severity("telemetry_share", share) if name == "telemetry" else None
        row.put(f"{name} ", "dim").put(f"{100 * share:.0f}%  ", severity or "")
    speed = frame.history("speed")
    if speed is not None and speed.last == speed.last:
        row.right(f"{speed.last:.0f} env-epochs/s", "dim", width - 1)
    return row.line(width)


def _heads(frame: Frame, width: int) -> list[Line]:
    """Per head of the action: entropy as a bar, gradient norm."""
    ppo = frame.state.ppo
    assert ppo is not None
    lines = [
        Row().put(" head          entropy                        grad norm  max ratio", "dim").line(width)
    ]
    for head, entropy in ppo.head_entropy.items():
        severity = frame.state.severity("entropy", entropy)
        row = Row().put(f" {head}", "", 15).put(number(entropy), severity or "", 5).put(" ")
        for text, style in gauge(entropy, 20, frame.glyphs, severity or "accent"):
            row.put(text, style)
        row.put(compact(ppo.head_grad_norm.get(head), 7), "", 10, ">")
        ratio = ppo.head_ratio_max.get(head)
        row.put(number(ratio), frame.state.severity("ratio_max", ratio) or "", 10, ">").put("  ")
        room = max(0, min(40, width - row.width - 1))
        lines.append(row.put(frame.spark(f"entropy.{head}", room, high=1.0), "chart2").line(width))
    return lines


def detail(frame: Frame, width: int, height: int) -> list[Line]:
    """The selected signal as a chart with its limits."""
    signal = SIGNALS[frame.view.index("policy", keys(frame))]
    if frame.state.ppo is None:
        return body(frame, width, height)
    limit = frame.state.thresholds.get(signal.limit)
    limits = [(limit.warning, "warning"), (limit.critical, "critical")] if limit else []
    lines = [_full(frame, signal, width, selected=False), EMPTY]
    series = [Series(signal.label, frame.history(f"ppo.{signal.field}"))]
    return lines + chart(
        series, width, max(3, height - 3), now=frame.now, window=frame.window, glyphs=frame.glyphs,
        limits=limits,
    )  # fmt: skip


PANEL = Panel(name="policy", title=title, body=body, needs=needs, note=note, keys=keys, detail=detail)

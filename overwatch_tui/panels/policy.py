"""The PPO update: loss, entropy, step size, and what the policy did and got."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from esper_overwatch.overwatch_tui.model.curves import EVALUATION_SIGNALS
from esper_overwatch.overwatch_tui.model.filters import FieldValue
from esper_overwatch.overwatch_tui.render.chart_page import GAP, draw_charts
from esper_overwatch.overwatch_tui.render.format import (
    format_compact,
    format_duration,
    format_number,
    format_percent,
    sorted_terms,
)
from esper_overwatch.overwatch_tui.render.lines import EMPTY, Line, Row, beside
from esper_overwatch.overwatch_tui.render.panel import Drawn, PanelInputs, Renderer
from esper_overwatch.overwatch_tui.render.plot import gauge
from esper_overwatch.overwatch_tui.render.theme import severity_label, severity_mark
from esper_overwatch.protocol.messages.events import EvaluationFinished, PPOUpdate

from . import curves

HEAD_COLUMNS_WIDTH = 8
"""Width of the columns of a head that older runs do not report."""
THREE_CHARTS_WIDTH = 160
TEST_WIDTH = 100
"""From which on the row of held-out hosts has their test accuracy beside the leads, which matter more."""
HELD_OUT = "held-out"
"""Key of the row of the evaluation, below the signals."""
LEAST_SHARE = 0.005
"""Share of the epoch of a phase that is worth words."""
MIN_CHART_LINES = 5
"""Lines left that are worth a chart."""
MIN_ROUND_CHARTS = 5
"""Lines left beside other panels that are worth charts of the rounds."""


class PolicySignal(NamedTuple):
    """A figure of the update, its limits and its curve."""

    label: str
    field: str
    """Field of `PPOUpdate`; its history is `ppo.<field>`."""
    help: str


SIGNALS = (
    PolicySignal("KL", "approx_kl", "how far the policy moved"),
    PolicySignal("entropy", "entropy", "1 = explores freely, 0 = has decided"),
    PolicySignal("clip", "clip_fraction", "share of clipped samples"),
    PolicySignal("EV", "explained_variance", "how well the critic predicts"),
    PolicySignal("EV envs", "explained_variance_within", "the same, apart from the epoch"),
    PolicySignal("ratio max", "ratio_max", "widest probability ratio"),
    PolicySignal("value loss", "value_loss", ""),
    PolicySignal("grad norm", "grad_norm", "before clipping"),
    PolicySignal("policy loss", "policy_loss", ""),
    PolicySignal("seconds", "seconds", "that the update took"),
    PolicySignal("LSTM h rms", "lstm_h_rms", "recurrent state"),
    PolicySignal("return std", "return_std", "spread of what is to be predicted"),
)


def note(inputs: PanelInputs) -> str:
    if inputs.state.ppo is None:
        return ""
    age = format_duration(inputs.seconds_since(inputs.state.ppo_ts))
    return f"update {age} ago  {1000 * inputs.state.ppo.seconds:.0f} ms"


def keys(inputs: PanelInputs) -> Sequence[Hashable]:
    fields = [signal.field for signal in SIGNALS]
    return [*fields, HELD_OUT] if _evaluation(inputs) is not None else fields


def needs(inputs: PanelInputs, width: int) -> tuple[int, int]:
    if inputs.view.name != "policy":
        return 4, (len(SIGNALS) + 1) // 2 + 4
    return 4, len(SIGNALS) + 9 + len(inputs.state.ppo.head_entropy if inputs.state.ppo else ())


def body(inputs: PanelInputs, width: int, height: int) -> Drawn:
    """Signals in pairs with their curves, then what the policy did and got."""
    ppo = inputs.state.ppo
    if ppo is None:
        return Drawn(_without_updates(inputs, width, height))
    at = inputs.view.selected_index("policy", keys(inputs))
    tail = [_actions(ppo, width), _returns(inputs, width), _settings(inputs, ppo, width)]
    tail.append(_phases(inputs, width))
    tail[2:2] = _components(inputs, width)
    tail[2:2] = _held_out(inputs, width)
    alone = inputs.view.name == "policy"
    lines: list[Line] = []
    chart = MIN_CHART_LINES + 1 if inputs.history("evaluation.return") is not None else 0
    if alone and height >= len(SIGNALS) + len(tail) + 2 + chart:
        lines += [_full(inputs, s, width, selected=i == at) for i, s in enumerate(SIGNALS)]
        lines += [EMPTY, *tail]
        rest = height - len(lines) - 1
        if rest >= 2:
            lines += [EMPTY, *_heads(inputs, ppo, width)[:rest]]
        groups = _observations(ppo, width)
        if groups and height - len(lines) > len(groups):
            lines += [EMPTY, *groups]
        room = height - len(lines) - 1
        if room >= MIN_CHART_LINES:
            lines += [EMPTY, *_charts_below(inputs, width, room)]
        return Drawn(lines)
    half = (width - 1) // 2
    room = max(1, height - len(tail))
    chosen = SIGNALS[at] if alone and at < len(SIGNALS) else None
    for left, right in list(zip(SIGNALS[::2], SIGNALS[1::2], strict=True))[:room]:
        row = Row().add(_pair(inputs, left, half, selected=left is chosen)).to(half + 1)
        row.add(_pair(inputs, right, width - half - 1, selected=right is chosen))
        lines.append(row.line(width))
    lines += tail
    if alone and height - len(lines) >= MIN_ROUND_CHARTS:
        lines += _rounds_below(inputs, width, height - len(lines))
    return Drawn(lines)


def _without_updates(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """Results of a policy that has not been updated yet, or never is."""
    run = inputs.state.run
    text = " no update yet: the first comes when the first round ends"
    if run is not None and run.policy != "ppo":
        text = f" no updates: the policy {run.policy} is a rule"
    elif run is not None and run.config.get("policy", {}).get("learn") is False:
        text = " no updates: the policy stays as it is (policy.learn=false)"
    lines = [Row().put(text, "dim").line(width)]
    if inputs.state.last_round is not None or _evaluation(inputs) is not None:
        lines += [_returns(inputs, width), *_components(inputs, width)]
    lines += _held_out(inputs, width)
    if inputs.state.last_round is not None and height - len(lines) >= MIN_ROUND_CHARTS:
        lines += _rounds_below(inputs, width, height - len(lines))
    return lines


def _rounds_below(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """Returns and accuracies of the rounds beside each other."""
    half = (width - GAP) // 2
    drawn = curves.returns(inputs, half, height), curves.accuracies(inputs, half, height)
    return beside(drawn, half + GAP, width)


def _charts_below(inputs: PanelInputs, width: int, height: int) -> list[Line]:
    """The selected signal, the returns, and where there is room the accuracies."""
    count = 3 if width >= THREE_CHARTS_WIDTH else 2
    each = (width - GAP * (count - 1)) // count
    drawn = [draw_charts(inputs, charts(inputs), each, height), curves.returns(inputs, each, height)]
    if count == 3:
        drawn.append(curves.accuracies(inputs, each, height))
    return beside(drawn, each + GAP, width)


def _value(inputs: PanelInputs, signal: PolicySignal) -> float | None:
    value: float | None = getattr(inputs.state.ppo, signal.field)
    return value


def _severity(inputs: PanelInputs, signal: PolicySignal, value: float | None) -> str | None:
    if signal.field == "seconds":  # only the daemon knows what is usual
        return inputs.state.detector_severity("system", "slow_update")
    return inputs.state.policy_severity(signal.field, value)


def _pair(inputs: PanelInputs, signal: PolicySignal, width: int, *, selected: bool) -> Line:
    row, severity = _judged(inputs, signal, "dim", selected=selected)
    curve = inputs.sparkline(f"ppo.{signal.field}", max(0, width - row.width - 1))
    return row.put(curve, severity or "chart").line(width)


def _judged(
    inputs: PanelInputs, signal: PolicySignal, style: str, *, selected: bool
) -> tuple[Row, str | None]:
    """(name, value and verdict of a figure, its severity)."""
    value = _value(inputs, signal)
    severity = _severity(inputs, signal, value)
    is_judged = (inputs.state.policy_limits(signal.field) or severity) and value is not None
    row = Row().put(inputs.glyphs.cursor if selected else " ", "focus").put(signal.label, style, 12)
    figure = "--" if value is None else f"{value:.4f}" if abs(value) < 1 else format_compact(value, 7)
    row.put(figure, "bold", 8, ">").put(" ")
    return row.put(severity_label(severity) if is_judged else "", severity or "ok", 5), severity


def _full(inputs: PanelInputs, signal: PolicySignal, width: int, *, selected: bool) -> Line:
    row, severity = _judged(inputs, signal, "bold", selected=selected)
    row.put("/".join(f"{limit:g}" for limit in inputs.state.policy_limits(signal.field)), "dim", 11)
    room = max(0, min(width - row.width - 1, max(20, width - row.width - 40)))
    row.put(inputs.sparkline(f"ppo.{signal.field}", room), severity or "chart")
    if width - row.width >= 34:
        row.put(f"  {signal.help}", "dim")
    return row.line(width, selected=selected)


def _actions(ppo: PPOUpdate, width: int) -> Line:
    row = Row().put(" actions  ", "dim")
    for name, share in sorted_terms(ppo.op_fraction, 0.005):
        text = f"{name.lower()} {100 * share:.0f}%"
        if row.width + len(text) + 2 > width:
            break
        row.put(text.partition(" ")[0] + " ", "dim")
        row.put(text.partition(" ")[2] + "  ", "")
    return row.line(width)


def _returns(inputs: PanelInputs, width: int) -> Line:
    row = Row().put(" returns  ", "dim")
    last = inputs.state.last_round
    if last is None:
        return row.put("no round has finished yet", "dim").line(width)
    row.put(f"p10 {last.return_p10:+.2f}  p50 {last.return_p50:+.2f}  p90 {last.return_p90:+.2f}")
    row.put(f"  acc {100 * last.accuracy_mean:.1f} best {100 * last.accuracy_best:.1f}", "bold")
    if last.test_accuracy_mean is not None:
        row.put(f" test {100 * last.test_accuracy_mean:.1f}", "dim")
    curve = inputs.sparkline("return.mean", max(0, width - row.width - 3))
    return row.put("  ").put(curve, "chart3").line(width)


def _components(inputs: PanelInputs, width: int) -> list[Line]:
    """Components of the last round's mean return, in its units and as shares of it."""
    last = inputs.state.last_round
    if last is None or not last.reward_components:
        return []
    row = Row().put(" return   ", "dim").put(format_number(last.return_mean, "+.3f"), "bold").put(" =", "dim")
    for name, value in sorted_terms(last.reward_components):
        row.put(f"  {name} ", "dim").put(format_number(value, "+.3f"))
        if last.return_mean:
            row.put(f" {100 * value / last.return_mean:.0f}%", "dim")
    return [row.line(width)]


def _evaluation(inputs: PanelInputs) -> tuple[int, EvaluationFinished] | None:
    """The newest evaluation of the run's policy, and the round that it came after."""
    return next((found for found in inputs.state.evaluations.values() if not found[1].is_rival), None)


def _held_out(inputs: PanelInputs, width: int) -> list[Line]:
    """The policy on the hosts that it is not trained on, and its lead over each rival there.

    Before that, when it is played first, and what the rivals got; nothing where it never is.
    """
    evaluation, run = _evaluation(inputs), inputs.state.run
    if evaluation is None:
        every = run.config.get("evaluation", {}).get("rounds", 0) if run is not None else 0
        row = Row().put(" held-out ", "dim").put(f"first after round {every}", "dim")
        for rival, (_, found) in inputs.state.evaluations.items():
            row.put(f"  {rival} ", "dim").put(f"{found.return_mean:+.2f}")
        return [row.line(width)] if every else []
    round_, last = evaluation
    selected = inputs.view.selected_index("policy", keys(inputs)) == len(SIGNALS)
    row = Row().put(" held-out ", "dim").put(f"{last.policy.upper()} {last.return_mean:+.2f}", "bold")
    if width >= TEST_WIDTH:
        row.put(f"  test {100 * last.test_accuracy_mean:.1f}", "bold")
    row.put(f" after round {round_}" if width >= TEST_WIDTH else f" after r{round_}", "dim")
    between = ": "
    for rival, lead in last.leads.items():
        low, mean, high = lead.get("low"), lead.get("mean"), lead.get("high")
        if mean is None:
            continue
        row.put(between, "dim")
        between = ", "
        if low is None or high is None:
            row.put(f"{mean:+.2f} to {rival}")
            continue
        half = f"{inputs.glyphs.plus_minus}{(high - low) / 2:.2f}" if width >= TEST_WIDTH else ""
        if low <= 0 <= high:
            row.put(f"level with {rival}" + f" ({mean:+.2f}{half})" * (width >= TEST_WIDTH))
        else:
            where, style = ("above", "ok") if low > 0 else ("below", "warning")
            row.put(f"{abs(mean):.2f}{half} {where} {rival}", style)
    row.put("  ").put(inputs.sparkline("evaluation.return", max(0, width - row.width - 3)), "chart")
    return [row.line(width, selected=selected)]


def _settings(inputs: PanelInputs, ppo: PPOUpdate, width: int) -> Line:
    row = Row().put(" update   ", "dim")
    row.put(f"adv {ppo.advantage_mean:+.2f}{inputs.glyphs.plus_minus}{ppo.advantage_std:.2f}")
    row.put(f"  {ppo.epochs}{inputs.glyphs.times}{ppo.minibatches}", "dim")
    row.put(" early stop" if ppo.early_stop else "", "info")
    row.put(f"  skipped {ppo.skipped_nonfinite}", "critical" if ppo.skipped_nonfinite else "dim")
    row.put(f"  lr {ppo.learning_rate:.1e}  ent coef {ppo.entropy_coefficient:.3g}", "dim")
    if ppo.value_coefficient is not None:
        row.put(f"  value coef {ppo.value_coefficient:.3g}", "dim")
    return row.line(width)


def _phases(inputs: PanelInputs, width: int) -> Line:
    """Time of an epoch by phase."""
    epoch = inputs.state.epoch
    row = Row().put(" epoch    ", "dim")
    if epoch is None:
        return row.put("--", "dim").line(width)
    total = sum(epoch.phases.values())
    row.put(f"{1000 * epoch.seconds:.0f} ms  ")
    for rank, seconds in sorted(inputs.state.rank_seconds.items()):
        row.put(f"rank {rank} ", "dim").put(f"{1000 * seconds:.0f} ms  ")
    for name, seconds in sorted(epoch.phases.items(), key=lambda phase: -phase[1]):
        share = seconds / total if total > 0 else 0.0
        if share < LEAST_SHARE:
            continue
        severity = inputs.state.detector_severity("telemetry", "share") if name == "telemetry" else None
        row.put(f"{name} ", "dim").put(f"{100 * share:.0f}%  ", severity or "")
    speed = inputs.history("speed")
    if speed is not None and speed.last == speed.last:
        row.right(f"{speed.last:.0f} env-epochs/s", "dim", width - 1)
    return row.line(width)


def _heads(inputs: PanelInputs, ppo: PPOUpdate, width: int) -> list[Line]:
    """Per head of the action: entropy as a bar, gradient norm, ratios."""
    title = f" {'head':<14}{'entropy':<26}{'grad norm':>10}{'max ratio':>11}"
    has_more = bool(ppo.head_clip_fraction) and width >= len(title) + HEAD_COLUMNS_WIDTH
    more = f"{'clip':>8}" if has_more else ""
    lines = [Row().put(title + more, "dim").line(width)]
    for head, entropy in ppo.head_entropy.items():
        severity = inputs.state.detector_severity(f"policy.{head}", "entropy_collapse")
        row = Row().put(f" {head}", "", 15).put(format_number(entropy), severity or "", 5)
        row.put(severity_mark(severity), severity or "")
        for text, style in gauge(entropy, 20, inputs.glyphs, severity or "accent"):
            row.put(text, style)
        row.put(format_compact(ppo.head_grad_norm.get(head), 7), "", 10, ">")
        ratio = ppo.head_ratio_max.get(head)
        row.put(format_number(ratio), inputs.state.policy_severity("ratio_max", ratio) or "", 11, ">")
        if has_more:
            clipped = ppo.head_clip_fraction.get(head)
            row.put(format_number(clipped), "", 8, ">")
        row.put("  ")
        room = max(0, min(40, width - row.width - 1))
        lines.append(row.put(inputs.sparkline(f"entropy.{head}", room, high=1.0), "chart2").line(width))
    return lines


def _observations(ppo: PPOUpdate, width: int) -> list[Line]:
    """Per group of the policy's inputs: where they lie, and how far from where they were."""
    if not ppo.observation_groups:
        return []
    columns = ("mean", "std", "outliers", "clipped", "missing", "drift")
    row = Row().put(" inputs", "dim", 15)
    for name in columns:
        row.put(name, "dim", 10, ">")
    lines = [row.line(width)]
    for group, found in ppo.observation_groups.items():
        row = Row().put(f" {group}", "", 15)
        for name in columns:
            value = found.get(name)
            share = name in ("outliers", "clipped", "missing")
            text = format_percent(value) if share else format_number(value)
            row.put(text, "" if value else "faint", 10, ">")
        lines.append(row.line(width))
    return lines


def charts(inputs: PanelInputs) -> Sequence[str]:
    at = inputs.view.selected_index("policy", keys(inputs))
    if at == len(SIGNALS):
        last = _evaluation(inputs)
        rivals = [] if last is None else [f"lead.{rival}" for rival in last[1].leads]
        return [name for name in (*EVALUATION_SIGNALS, *rivals) if inputs.history(name) is not None]
    name = f"ppo.{SIGNALS[at].field}"
    return [name] if inputs.history(name) is not None else ()


def records(inputs: PanelInputs) -> list[dict[str, FieldValue]]:
    if inputs.state.ppo is None:
        return []
    found: list[dict[str, FieldValue]] = []
    for signal in SIGNALS:
        value, limits = _value(inputs, signal), [*inputs.state.policy_limits(signal.field), None, None]
        found.append(
            {
                "signal": signal.field,
                "value": value,
                "sev": severity_label(_severity(inputs, signal, value)),
                "warning": limits[0],
                "critical": limits[1],
            }
        )
    return found


RENDERER = Renderer(
    title=lambda _: "POLICY (PPO)",
    body=body,
    needs=needs,
    note=note,
    keys=keys,
    charts=charts,
    records=records,
)

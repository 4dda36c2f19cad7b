"""One env: a row of the table, a character of the grid, an object of the JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from esper_overwatch.overwatch_tui.model.anomalies import env_source, raised_at
from esper_overwatch.overwatch_tui.model.columns import at_or_none
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.protocol.messages.anomaly_guide import ROLLBACK, title_of
from esper_overwatch.protocol.messages.events import Anomaly
from esper_overwatch.protocol.messages.vocabulary import WITH_SEED, Stage

from .format import rank_of
from .lines import StyledText
from .panel import PanelInputs
from .theme import Glyphs, severity_mark

STAGE_LETTERS = {stage.name: stage.name[0] for stage in Stage} | {"DORMANT": "."}
SEED_STAGES = frozenset(stage.name for stage in WITH_SEED)
SHORT_OPS = {"GERMINATE": "GERM", "SET_ALPHA": "ALPHA", "FOSSILIZE": "FOSSIL"}
ENV_ORDERS = {
    "env": ("ENV", "env", 1),
    "attention": ("STATE", "", 1),
    "accuracy": ("ACC", "accuracy", -1),
    "change": ("GAIN", "change", 1),
    "return": ("RETURN", "total", -1),
    "gradient": ("GRAD", "gradient", -1),
    "drift": ("DRIFT", "drift", -1),
}
"""Heading, field and direction of the orders of the table."""
CELL_WIDTH, WORD_WIDTH = 6, 13
"""Columns of a slot in the table, with the letter of its stage or with its name."""


class EnvRow(NamedTuple):
    """One env now; None is what was not measured."""

    env: int
    status: str
    """`ok`, `warning`, `critical`, `stalled` (no progress), `rollback` or `--` (no data)."""
    severity: str | None
    accuracy: float | None
    change: float | None
    """Change of accuracy since the epoch before."""
    total: float | None
    """Return of the episode so far."""
    gradient: float | None
    drift: float | None
    drift_severity: str | None
    action: str
    trouble: str
    best: float | None

    @property
    def is_flagged(self) -> bool:
        return self.status not in ("ok", "--")


def sorted_rows(inputs: PanelInputs) -> list[EnvRow]:
    """All envs in the order that the view asks for."""
    view = inputs.view
    return inputs.keep(("env rows", view.sort, view.is_reversed), lambda: _sort_rows(inputs))


def _sort_rows(inputs: PanelInputs) -> list[EnvRow]:
    state = inputs.state
    found = [env_row(state, env, inputs.glyphs) for env in range(state.num_envs)]
    sort = inputs.view.sort
    if sort == "attention":
        ranks = state.incidents.env_ranks()
        found.sort(key=lambda r: (ranks.get(r.env, len(ranks)), r.env))
    else:
        _, field, sign = ENV_ORDERS[sort]
        found.sort(key=lambda r: (getattr(r, field) is None, sign * rank_of(getattr(r, field)), r.env))
    return found[::-1] if inputs.view.is_reversed else found


def worst_env(state: State) -> int:
    """The env that needs attention most; 0 where none needs any."""
    ranks = state.incidents.env_ranks()
    return min((env for env in ranks if env < state.num_envs), key=ranks.__getitem__, default=0)


def env_row(state: State, env: int, glyphs: Glyphs) -> EnvRow:
    epoch = state.epoch
    source = env_source(env)
    records = raised_at(state.anomalies, source)
    status, severity = _status(records, has_data=epoch is not None)
    accuracy = at_or_none(epoch.val_accuracy, env) if epoch else None
    earlier = at_or_none(state.previous_epoch.val_accuracy, env) if state.previous_epoch else None
    drift = state.drift_of(source)
    best = at_or_none(state.best_accuracy, env)
    return EnvRow(
        env=env,
        status=status,
        severity=severity,
        accuracy=accuracy,
        change=accuracy - earlier if accuracy is not None and earlier is not None else None,
        total=at_or_none(epoch.episode_return, env) if epoch else None,
        gradient=at_or_none(epoch.host_grad_norm, env) if epoch else None,
        drift=drift,
        drift_severity=state.detector_severity(source, "norm_drift"),
        action=_action(state, env),
        trouble=_trouble(records, source, glyphs),
        best=best if best is not None and best >= 0 else None,
    )


def _status(records: Sequence[Anomaly], *, has_data: bool) -> tuple[str, str | None]:
    worst = records[0].severity if records else None
    if records and records[0].kind == ROLLBACK:
        return ROLLBACK, worst
    if worst == "critical":
        return worst, worst
    if records and all("stall" in r.kind for r in records):
        return "stalled", worst
    if worst == "warning":
        return worst, worst
    return ("ok" if has_data else "--"), None


def _trouble(records: Sequence[Anomaly], source: str, glyphs: Glyphs) -> str:
    if not records:
        return ""
    record = records[0]
    where = record.source[len(source) + 1 :]
    words = [title_of(record.kind), where, f"{glyphs.times}{record.count}" if record.count > 1 else ""]
    return " ".join(w for w in words if w)


class EnvDecision(NamedTuple):
    """How sure a network was of what it decided for an env; None is what was not measured."""

    sure: float | None
    """Probability of the whole action, with its slot and all else."""
    of_op: float | None
    """Probability of its operation alone."""
    value: float | None
    other: str
    """The likeliest other operation; empty where there is none."""
    other_share: float | None


def decision(state: State, env: int) -> EnvDecision | None:
    epoch = state.epoch
    if epoch is None:
        return None
    shares, chosen = at_or_none(epoch.op_probability, env) or [], at_or_none(epoch.op, env)
    others = [(share, op) for op, share in enumerate(shares) if share > 0 and op != chosen]
    share, op = max(others, default=(None, None))
    return EnvDecision(
        at_or_none(epoch.probability, env),
        None if chosen is None else at_or_none(shares, chosen),
        at_or_none(epoch.value, env),
        "" if op is None else state.op_name(op),
        share,
    )


def _action(state: State, env: int) -> str:
    """The policy's last op for this env, and where."""
    if state.epoch is None:
        return "--"
    op = at_or_none(state.epoch.op, env)
    if op is None:
        return "--"
    name = state.op_name(op)
    slot = at_or_none(state.epoch.action_slot, env)
    if slot is None or name == "WAIT":
        return name
    return f"{SHORT_OPS.get(name, name)} {at_or_none(state.slots, slot) or slot}"


def slot_cells(state: State, env: int, glyphs: Glyphs, *, words: bool = False) -> list[StyledText]:
    """Per slot: the stage's letter or its name, then its epochs or its alpha."""
    if state.epoch is None:
        return [("--", "dim")] * len(state.slots)
    stages = at_or_none(state.epoch.stage, env) or []
    return [_cell(state, env, slot, code, glyphs, words=words) for slot, code in enumerate(stages)]


def _cell(state: State, env: int, slot: int, code: int, glyphs: Glyphs, *, words: bool) -> StyledText:
    epoch = state.epoch
    assert epoch is not None
    name = state.stage_name(code)
    text = stage_text(name, words=words)
    if name in ("BLENDING", "HOLDING"):
        alpha = at_or_none(at_or_none(epoch.alpha, env), slot)
        if name == "BLENDING" and alpha is not None:
            text += f"{alpha:.1f}".replace("0.", ".", 1) + _direction(state, env, slot, alpha, glyphs)
    if name not in ("DORMANT", "FOSSILIZED", "BLENDING"):
        text += str(at_or_none(at_or_none(epoch.epochs_in_stage, env), slot) or 0)
    if name in SEED_STAGES:
        seed = f"{env_source(env)}.{at_or_none(state.slots, slot) or slot}"
        text += severity_mark(state.detector_severity(seed, "norm_drift")).strip()
    return text, name.lower()


def _direction(state: State, env: int, slot: int, alpha: float, glyphs: Glyphs) -> str:
    before = at_or_none(at_or_none(state.previous_epoch.alpha, env), slot) if state.previous_epoch else None
    if before is None or before == alpha:
        return ""
    return glyphs.up if alpha > before else glyphs.down


def stage_text(stage: str, *, words: bool) -> str:
    """A stage in front of a number: its letter, or its name and a space."""
    return f"{stage} " if words and stage != "DORMANT" else STAGE_LETTERS.get(stage, "?")


def stage_counts(state: State) -> dict[str, int]:
    """Number of slots in each stage but DORMANT, the most frequent first."""
    rows = state.epoch.stage if state.epoch else []
    counts = Counter(state.stage_name(code) for row in rows for code in row)
    del counts["DORMANT"]
    return dict(counts.most_common())


def finite_mean(values: Sequence[float | None]) -> float | None:
    """Mean of the measured, finite values."""
    known = [v for v in values if v is not None and isfinite(v)]
    return sum(known) / len(known) if known else None


def num_copies(state: State) -> int:
    """Envs in a row that are copies of one host; 1 where there are none."""
    config = state.run.config if state.run is not None else {}
    return int(config.get("envs", {}).get("copies", 1))

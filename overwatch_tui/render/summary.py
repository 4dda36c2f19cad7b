"""Output of `--once --json`: one moment of the run as plain data; None = not measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .env_rows import STAGE_LETTERS, env_row
from .panel import PanelInputs

_ROUND_FIELDS = (
    "return_mean",
    "accuracy_mean",
    "accuracy_best",
    "best_env",
    "test_accuracy_mean",
    "env_epochs_per_second",
)
_POLICY_FIELDS = ("approx_kl", "entropy", "explained_variance")
_INCIDENT_FIELDS = (
    "id",
    "severity",
    "active",
    "title",
    "kind",
    "scope",
    "source",
    "since",
    "suspect",
    "undo",
)


def summary(inputs: PanelInputs) -> dict[str, Any]:
    """Run, link, envs, the last round, the policy and all incidents."""
    state, link = inputs.state, inputs.link
    return {
        "run": state.run.name if state.run else link.name,
        "id": state.run.run if state.run else None,
        "link": link.state,
        "heartbeat_age_s": link.age_seconds,
        "state": inputs.run_word,
        "round": state.ctx.round,
        "rounds": state.rounds_planned,
        "epoch": inputs.epoch,
        "level": state.ctx.level,
        "slots": state.slots,
        "envs": [_env(inputs, env) for env in range(state.num_envs)],
        "last_round": _fields(state.last_round, _ROUND_FIELDS),
        "policy": _fields(state.ppo, _POLICY_FIELDS),
        "step": state.metrics.step,
        "metrics": {name: one.last for name, one in sorted(state.metrics.statistics.items())},
        "incidents": [_fields(each.data, _INCIDENT_FIELDS) for each in state.incidents.ordered()],
    }


def _fields(event: object, names: Sequence[str]) -> dict[str, Any] | None:
    return None if event is None else {name: getattr(event, name) for name in names}


def _env(inputs: PanelInputs, env: int) -> dict[str, Any]:
    state = inputs.state
    row = env_row(state, env, inputs.glyphs)
    epoch = state.epoch
    stages = epoch.stage[env] if epoch is not None and env < len(epoch.stage) else []
    return {
        "env": env,
        "status": row.status,
        "accuracy": row.accuracy,
        "return": row.total,
        "gradient_norm": row.gradient,
        "norm_drift": row.drift,
        "action": row.action,
        "trouble": row.trouble or None,
        "stages": [state.stage_name(code) for code in stages],
        "slots": "".join(STAGE_LETTERS.get(state.stage_name(code), "?") for code in stages),
    }

"""Events of a round: a PPO update, an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from esper_overwatch.protocol.messages.events import EvaluationFinished, PPOUpdate
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op
from esper_overwatch.trainer.episode_table import EpisodeTable, PolicyEvaluation
from esper_overwatch.trainer.policy.feature_statistics import FEATURE_GROUPS, STATISTICS
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics


def update_event(statistics: UpdateStatistics, limits: Mapping[str, list[float]] | None = None) -> PPOUpdate:
    """Event of an update's statistics; None where a head never had a choice, or the returns were constant.

    Args:
        limits: those in force, by the event's fields.
    """
    varied, within = bool(statistics.return_std), statistics.explained_variance_within
    fields = {name: value for name, value in vars(statistics).items() if name != "features"} | {
        "head_entropy": _by_head(statistics.head_entropy),
        "head_grad_norm": _by_head(statistics.head_grad_norm),
        "head_clip_fraction": _by_head(statistics.head_clip_fraction),
        "head_ratio_max": dict(zip(HEAD_NAMES, statistics.head_ratio_max.tolist(), strict=True)),
        "op_fraction": {op.name: float(statistics.op_fraction[op]) for op in Op},
        "explained_variance": statistics.explained_variance if varied else None,
        "explained_variance_within": None if math.isnan(within) else within,
        "value_nrmse": statistics.value_nrmse if varied else None,
        "observation_groups": {
            group: _null_where_nan(dict(zip(STATISTICS, row, strict=True)))
            for group, row in zip(FEATURE_GROUPS, statistics.features.tolist(), strict=True)
        },
    }
    return PPOUpdate(**_shortest(fields), limits=dict(limits) if limits else None)


def _shortest(value: Any) -> Any:
    """Numbers that a device gave as float32, as the shortest decimals that are the same float32."""
    if isinstance(value, dict):
        return {key: _shortest(each) for key, each in value.items()}
    if type(value) is float and math.isfinite(value) and float(single := np.float32(value)) == value:
        return float(str(single))
    return value


def _by_head(values: Iterable[float]) -> dict[str, float | None]:
    return _null_where_nan(dict(zip(HEAD_NAMES, values, strict=True)))


def _null_where_nan(values: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else float(value) for name, value in values.items()}


def evaluation_event(evaluation: PolicyEvaluation) -> EvaluationFinished:
    """Event of a policy's results on the held-out hosts, as means over them."""
    table = evaluation.table
    means = _means(table)
    return EvaluationFinished(
        policy=evaluation.policy,
        is_rival=evaluation.is_rival,
        hosts=len(table),
        seconds=evaluation.seconds,
        return_mean=means["return"],
        accuracy_mean=means["accuracy"],
        test_accuracy_mean=means["test_accuracy"],
        added_parameters_mean=means["added_parameters"],
        fossilized_mean=means["fossilized"],
        return_components={name: float(column.mean()) for name, column in table.components.items()},
        op_fraction={op.name: float(table.ops[:, op].sum() / table.ops.sum()) for op in Op},
        tasks={task: _means(table.of_task(task)) for task in dict.fromkeys(table.task)},
        leads={rival: _null_where_nan(lead._asdict()) for rival, lead in evaluation.leads.items()},
        is_best=evaluation.is_best,
    )


def _means(table: EpisodeTable) -> dict[str, float]:
    columns = {
        "return": table.episode_return,
        "accuracy": table.val_accuracy,
        "test_accuracy": table.test_accuracy,
        "added_parameters": table.added_parameters,
        "fossilized": table.fossilized,
    }
    return {name: float(column.mean()) for name, column in columns.items()}

"""The event of a PPO update, or of a teacher's round, made from what the algorithm returns."""

from __future__ import annotations

import math
from collections.abc import Iterable

from esper_overwatch.protocol.messages.events import PPOUpdate, TeacherRound
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op
from esper_overwatch.trainer.policy.feature_statistics import FEATURE_GROUPS, STATISTICS
from esper_overwatch.trainer.policy.teacher import TeacherReport
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics


def update_event(statistics: UpdateStatistics) -> PPOUpdate:
    """Event of an update's statistics; None where a head never had a choice, or the returns were constant."""
    varied, within = bool(statistics.return_std), statistics.explained_variance_within
    fields = {name: value for name, value in vars(statistics).items() if name != "features"} | {
        "head_entropy": _by_head(statistics.head_entropy),
        "head_grad_norm": _by_head(statistics.head_grad_norm),
        "head_clip_fraction": _by_head(statistics.head_clip_fraction),
        "head_ratio_max": dict(zip(HEAD_NAMES, statistics.head_ratio_max.tolist(), strict=True)),
        "head_entropy_coefficient": dict(
            zip(HEAD_NAMES, statistics.head_entropy_coefficient.tolist(), strict=True)
        ),
        "head_floor": dict(zip(HEAD_NAMES, statistics.head_floor.tolist(), strict=True)),
        "op_fraction": {op.name: float(statistics.op_fraction[op]) for op in Op},
        "explained_variance": statistics.explained_variance if varied else None,
        "explained_variance_within": None if math.isnan(within) else within,
        "value_nrmse": statistics.value_nrmse if varied else None,
        "observation_groups": {
            group: _null_where_nan(dict(zip(STATISTICS, row, strict=True)))
            for group, row in zip(FEATURE_GROUPS, statistics.features.tolist(), strict=True)
        },
    }
    return PPOUpdate(**fields)


def teacher_event(report: TeacherReport) -> TeacherRound:
    """Event of the teacher's report."""
    return TeacherRound(**vars(report))


def _by_head(values: Iterable[float]) -> dict[str, float | None]:
    return _null_where_nan(dict(zip(HEAD_NAMES, values, strict=True)))


def _null_where_nan(values: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else float(value) for name, value in values.items()}

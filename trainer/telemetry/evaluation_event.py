"""The event of an evaluation, made from its table."""

from __future__ import annotations

import math

from esper_overwatch.protocol.messages.events import EvaluationFinished
from esper_overwatch.protocol.messages.vocabulary import Op
from esper_overwatch.trainer.episode_table import EpisodeTable, PolicyEvaluation


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
        leads={rival: _finite(lead._asdict()) for rival, lead in evaluation.leads.items()},
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


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in values.items()}

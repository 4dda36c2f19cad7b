"""The numbers of `round.finished` and `ppo.update` by round, and epoch means by epoch.

Tags are `round/<field>`, `ppo/<field>`, `ppo/<field>/<key>` for dicts by head or op, `evaluation/<policy>/…`
by round, and `epoch/<field>` for the mean over the envs that have a finite value. The epoch axis counts the
run's epochs over all rounds.
Numbers of a published run have their own names and steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import msgspec

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.messages.events import (
    EpochFinished,
    EvaluationFinished,
    PPOUpdate,
    RoundFinished,
    Scalars,
    TeacherRound,
)
from esper_overwatch.protocol.runs import RunInfo
from esper_overwatch.trainer.config.schema import Config

_PREFIX = {RoundFinished: "round", PPOUpdate: "ppo", TeacherRound: "teacher"}


def read_episode_epochs(run: RunInfo) -> int:
    """The length of an episode, from the run's configuration; 0 for a published run, which has none.

    Raises:
        FolderError: it cannot be read.
    """
    if run.kind == "published":
        return 0
    path = run.path / "config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Config).episode_epochs
    except (OSError, msgspec.DecodeError) as error:
        raise FolderError(f"{path} cannot be read: {error}") from None


def scalars(event: Event, episode_epochs: int) -> Iterator[tuple[str, float, int]]:
    """(tag, value, step) of an event; none of the types that have no place here."""
    data, ctx = event.data, event.ctx
    if isinstance(data, Scalars):
        for name, value in data.values.items():
            yield name, float(value), data.step
        return
    if isinstance(data, EpochFinished):
        step = epoch_of(event, episode_epochs)
        for name, value in _means(data):
            yield f"epoch/{name}", value, step
        return
    if isinstance(data, EvaluationFinished):
        yield from _evaluation(data, ctx.round)
        return
    prefix = _PREFIX.get(type(data))
    if prefix is None:
        return
    for field in fields(data):
        value = getattr(data, field.name)
        parts = value if isinstance(value, dict) else {"": value}
        for key, number in parts.items():
            if isinstance(number, int | float):
                yield f"{prefix}/{field.name}" + (f"/{key}" if key else ""), float(number), ctx.round


def _evaluation(data: EvaluationFinished, round_: int) -> Iterator[tuple[str, float, int]]:
    """Its means, those of each task, and its lead over each rival."""
    prefix = f"evaluation/{data.policy}"
    for field in fields(data):
        if field.name.endswith("_mean"):
            yield f"{prefix}/{field.name}", float(getattr(data, field.name)), round_
    for task, means in data.tasks.items():
        for name, mean in means.items():
            yield f"{prefix}/tasks/{task}/{name}", float(mean), round_
    for rival, lead in data.leads.items():
        for name, value in lead.items():
            if value is not None:
                yield f"{prefix}/leads/{rival}/{name}", value, round_


def epoch_of(event: Event, episode_epochs: int) -> int:
    """The epoch of an event, counted over all rounds; what ends a round belongs to its last one.

    Of a published run's numbers their step.
    """
    if isinstance(event.data, Scalars):
        return event.data.step
    epoch = event.ctx.epoch if isinstance(event.data, EpochFinished) else episode_epochs
    return max(0, event.ctx.round - 1) * episode_epochs + epoch


def _means(data: EpochFinished) -> Iterator[tuple[str, float]]:
    """The epoch's seconds and rates, and per column of floats its mean over the envs that have one."""
    yield "seconds", data.seconds
    for name, rate in (
        ("host_learning_rate", data.host_learning_rate),
        ("seed_learning_rate", data.seed_learning_rate),
    ):
        if rate is not None:
            yield name, rate
    columns = {f.name: getattr(data, f.name) for f in fields(data) if "list[float" in str(f.type)}
    columns["parameters"] = data.parameters
    columns.update({f"reward_components/{key}": column for key, column in data.reward_components.items()})
    del columns["reward_components"]
    for name, column in columns.items():
        numbers = [x for x in _flat(column) if x is not None and math.isfinite(x)]
        if numbers:
            yield name, sum(numbers) / len(numbers)


def _flat(column: list[Any]) -> Iterator[float | None]:
    for item in column:
        if isinstance(item, list):
            yield from _flat(item)
        else:
            yield item

"""TensorBoard scalars: the numbers of `round.finished` and `ppo.update` over rounds, epoch means over epochs.

Tags are `round/<field>`, `ppo/<field>`, `ppo/<field>/<key>` for dicts by head or op, and `epoch/<field>` for
the mean over the envs that have a finite value. The epoch axis counts the run's epochs over all rounds.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
from torch.utils.tensorboard import SummaryWriter

from protocol.codec.json_lines import Event
from protocol.messages.events import EpochFinished, PPOUpdate, RoundFinished
from protocol.runs import RunInfo
from trainer.config.schema import Config

_PREFIX = {RoundFinished: "round", PPOUpdate: "ppo"}


def write(events: Iterator[Event], folder: Path, *, run: RunInfo) -> dict[str, Any]:
    """Write one event file; it replaces that of an earlier export of the run.

    Args:
        events: of one run.
        folder: exists.
        run: its id is part of the file's name, its configuration has the length of an episode.

    Raises:
        OSError: the folder cannot be written.
    """
    suffix = f".esper-{run.id}"
    count, episode = 0, _episode_epochs(run)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as part:
        with SummaryWriter(part, filename_suffix=suffix) as writer:
            for event in events:
                for tag, value, step in scalars(event, episode):
                    writer.add_scalar(tag, value, step, walltime=event.ts / 1e6)
                    count += 1
        (made,) = Path(part).iterdir()
        for old in folder.glob(f"events.out.tfevents.*{suffix}"):
            old.unlink()
        file = Path(shutil.move(made, folder / made.name))
    return {"format": "tensorboard", "to": str(file), "scalars": count}


def _episode_epochs(run: RunInfo) -> int:
    config = msgspec.json.decode((run.path / "config.json").read_bytes(), type=Config)
    return config.episode_epochs


def scalars(event: Event, episode_epochs: int) -> Iterator[tuple[str, float, int]]:
    """(tag, value, step) of an event; none of the types that have no place here."""
    data, ctx = event.data, event.ctx
    if isinstance(data, EpochFinished):
        step = max(0, ctx.round - 1) * episode_epochs + ctx.epoch
        for name, value in _means(data):
            yield f"epoch/{name}", value, step
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


def _means(data: EpochFinished) -> Iterator[tuple[str, float]]:
    """The epoch's seconds, and per column of floats its mean over the envs that have one."""
    yield "seconds", data.seconds
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

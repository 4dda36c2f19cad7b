"""What a run promises over a power cut, judged by what its process had written and what the disk has left."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from esper_overwatch.trainer.checkpoint import read_archive
from esper_overwatch.trainer.checkpoint_files import CheckpointError
from tests.chaos.plain import Line, parsed, plain_lines

from .disk import ForgetfulDisk, read_steps

_CHECKPOINT = re.compile(r"round-(\d+)(?:-epoch-(\d+))?")


@dataclass(frozen=True)
class Left:
    """What a power cut has left of a journal."""

    newest: dict[str, int]
    """Number, per stream."""
    num_lost: int
    lost_seconds: float
    """From the oldest event that was lost to the newest that was written."""


def lose_power(disk: ForgetfulDisk, record: Path, run: Path, rng: random.Random) -> Left:
    """Cut the power of a run whose process was killed just now.

    Raises:
        AssertionError: something is missing that was said to be on the disk, or a checkpoint is ahead of the
            journal.
    """
    disk.take(read_steps(record))
    before = [parsed(line) for line in plain_lines(run / "events.jsonl") if _is_whole(line)]
    checkpoints = {path: path.read_bytes() for path in (run / "checkpoints").glob("round-*.pt")}
    disk.lose_power(rng)
    left = {line for line in plain_lines(run / "events.jsonl") if _is_whole(line)}
    events = [event for event in before if event.raw in left]
    _check_checkpoints(run, before, events, checkpoints)
    newest: dict[str, int] = {}
    for event in events:
        newest[event.stream] = max(event.seq, newest.get(event.stream, 0))
    lost = [event.ts for event in before if event.raw not in left]
    lost_us = max(event.ts for event in before) - min(lost) if lost else 0
    return Left(newest, len(lost), lost_us / 1e6)


def _is_whole(line: bytes) -> bool:
    try:
        parsed(line)
    except (ValueError, KeyError, TypeError):
        return False
    return True


def _check_archive(path: Path) -> None:
    try:
        read_archive(path, "checkpoint")
    except CheckpointError as error:
        raise AssertionError(f"it was told of as saved: {error}") from error


def _check_checkpoints(
    run: Path, before: list[Line], events: list[Line], checkpoints: dict[Path, bytes]
) -> None:
    saved = {Path(event.data["path"]) for event in before if event.type == "checkpoint.saved"}
    for path in saved & checkpoints.keys():
        assert path.exists(), f"{path.name} was told of as saved, and is lost"
        if path.read_bytes() != checkpoints[path]:  # it was being replaced; the chaos damages some, too
            _check_archive(path)
    epochs = {event.place for event in events if event.type == "epoch"}
    finished = {event.ctx["round"] for event in events if event.type == "round.finished"}
    for path in (run / "checkpoints").glob("round-*.pt"):
        found = _CHECKPOINT.match(path.name)
        assert found is not None, path.name
        number, epoch = int(found[1]), found[2]
        held = number in finished if epoch is None else (number, int(epoch)) in epochs
        assert held, f"{path.name} is there, and what it holds is not in the journal"

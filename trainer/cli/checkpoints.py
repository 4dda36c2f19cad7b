"""`esper-daemon checkpoints`: what a run can be resumed from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.trainer.checkpoint_files import (
    CheckpointFile,
    best_checkpoint,
    find_checkpoint,
    list_checkpoints,
)

from .options import JSON
from .output import print_json, print_lines, print_table

COLUMNS = {"file": 20, "round": 5, "epoch": 5, "accuracy": 8, "bytes": 9, "tag": 4}
"""Columns of the table, and their least widths."""


@click.command()
@click.argument("name")
@click.option("--delete", metavar="WHICH", help="Delete this one: best, a tag, or a file's name.")
@JSON
def checkpoints(name: str, delete: str | None, as_json: bool) -> None:
    """List the checkpoints of the run NAME: round, epoch, accuracy, size, tag.

    One with a tag, and the best, stay until they are deleted; of the others the newest checkpoint.keep stay.
    """
    folder = find_run(name).path / "checkpoints"
    if delete is not None:
        path = _delete(folder, delete)
        if as_json:
            print_json({"deleted": str(path)})
        else:
            print_lines([f"deleted {path}"])
        return
    files = list_checkpoints(folder)
    best = best_checkpoint(folder)
    rows = [_row(file) for file in [*files, *([best] if best else [])]]
    if rows or as_json:
        print_table(rows, COLUMNS, as_json)
    else:
        print_lines([f"no checkpoint of {name} yet"])


def _delete(folder: Path, which: str) -> Path:
    """Delete a checkpoint of this folder; returns its path."""
    path = find_checkpoint(folder, which)
    if path.parent != folder:
        raise click.UsageError(f"--delete: {path} is not of this run")
    try:
        path.unlink()
    except OSError as error:
        raise FolderError(f"cannot delete {path}: {error.strerror}") from None
    return path


def _row(file: CheckpointFile) -> dict[str, Any]:
    return {
        "file": file.path.name,
        "round": file.round,
        "epoch": file.epoch,
        "accuracy": None if file.accuracy is None else round(file.accuracy, 4),
        "bytes": file.bytes,
        "tag": file.tag,
    }

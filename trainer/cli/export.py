"""`esper-daemon export`: a run's events as Parquet files, TensorBoard scalars or an offline wandb run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from esper_overwatch.protocol.codec.addresses import require_local
from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

from .options import JSON, RUN
from .output import exit_on_damage, print_result
from .run_argument import RunArgument

FORMATS = ("parquet", "tensorboard", "wandb")


@click.command()
@RUN
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Into this folder, where the run gets one of its own.",
)
@click.option("--format", "format_", type=click.Choice(FORMATS), required=True)
@JSON
def export(run: RunArgument, folder: Path, format_: str, as_json: bool) -> None:
    """Write a run's events as Parquet files, TensorBoard scalars or an offline wandb run.

    The run may be live. `wandb sync` uploads the wandb run.
    """
    require_local(run.address, "export")
    report = DamageReport()
    print_result(export_run(run.address, folder, format_, report), as_json)
    exit_on_damage(report)


def export_run(run: str | None, folder: Path, format_: str, damage: DamageReport) -> dict[str, Any]:
    """Write what the run's journal holds now; an earlier export of the run in that folder is replaced.

    Args:
        run: name or id, or the beginning of one; live or ended.
        folder: made where it is missing; the run's own in it has its name.
        format_: one of `FORMATS`.
        damage: learns what could not be read.

    Returns:
        Files and counts, to be printed.

    Raises:
        ImportError: pyarrow, tensorboard or wandb is not installed.
        FolderError: the folder cannot be written or holds Parquet files of another run, or the journal
            cannot be read.
    """
    from esper_overwatch.trainer.query.timeline import valid_events

    info = find_run(run)
    if format_ == "parquet":
        from esper_overwatch.trainer.export.parquet import write
    elif format_ == "wandb":
        from esper_overwatch.trainer.export.wandb_run import write
    else:
        from esper_overwatch.trainer.export.tensorboard import write
    own = folder / info.name
    try:
        own.mkdir(parents=True, exist_ok=True)
        return write(valid_events(info.path / EVENTS_FILE, damage), own, run=info)
    except FileExistsError as error:
        raise FolderError(f"cannot export to {error.filename}: it is a file; move it away") from None
    except OSError as error:
        raise FolderError(f"cannot export to {own}: {error.strerror or error}") from None

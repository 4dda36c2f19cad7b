"""`esper-daemon export`: which format is written by whom, and what is missing where it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from protocol.errors import EsperError, FolderError
from protocol.history import read
from protocol.runs import find_run

FORMATS = ("parquet", "tensorboard")


class MissingExtra(EsperError):
    """A library that only the extra `export` installs."""

    exit_code = 9


def export_run(run: str | None, folder: Path, format_: str) -> dict[str, Any]:
    """Write what the run's journal holds now; an earlier export of the run in that folder is replaced.

    Args:
        run: name or id, or the beginning of one; live or ended.
        folder: made where it is missing.
        format_: one of `FORMATS`.

    Returns:
        Files and counts, to be printed.

    Raises:
        MissingExtra: pyarrow or tensorboard is not installed.
        FolderError: the folder cannot be written, or the journal not be read.
    """
    info = find_run(run)
    try:
        if format_ == "parquet":
            from .parquet import write
        else:
            from .tensorboard import write
    except ImportError as error:
        raise MissingExtra(
            f"{format_} needs {error.name}; install it with: pip install 'esper-overwatch[export]'"
        ) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write(read(info.path / "events.jsonl"), folder, run=info)
    except msgspec.DecodeError as error:
        raise FolderError(f"{info.path / 'config.json'} cannot be read: {error}") from None
    except OSError as error:
        raise FolderError(f"cannot export to {folder}: {error.strerror or error}") from None

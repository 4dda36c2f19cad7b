"""Folders for what is fetched: removed when they are closed, or however else the terminal ends."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

_folders: set[Path] = set()


def make_temporary_folder(prefix: str) -> Path:
    """Make a folder that nobody but this user can read."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    _folders.add(folder)
    return folder


def remove_temporary_folder(folder: Path) -> None:
    """Remove a folder and its contents."""
    shutil.rmtree(folder, ignore_errors=True)
    _folders.discard(folder)


def remove_temporary_folders() -> None:
    """Remove all that are left; safe from any thread and from a signal's handler."""
    for folder in tuple(_folders):
        remove_temporary_folder(folder)

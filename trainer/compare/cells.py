"""Results in a folder, one JSON file for each cell, so that a comparison goes on where it was interrupted.

A cell's file is named after what it is and after a hash of all that its result depends on: with other options
it is another cell, and what was computed before stays. What is half done is kept beside it, and removed once
the cell is. Several processes share a folder: each cell is computed by one that holds its lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.storage.folders import write_atomically
from esper_overwatch.protocol.storage.lock import Lock, LockHeld

HASH_DIGITS = 12


@dataclass(frozen=True)
class Cell:
    """One piece of work.

    Attributes:
        name: for people; letters, digits, `-`, `_` and `+`.
        key: all that the result depends on, as JSON has it.
    """

    name: str
    key: Mapping[str, Any]

    @property
    def file(self) -> str:
        """Name of its file, without the ending."""
        canonical = json.dumps(self.key, sort_keys=True, separators=(",", ":"))
        return f"{self.name}-{hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]}"


class CellStore:
    """The cells of a folder.

    Args:
        folder: made where it is missing.

    Raises:
        FolderError: it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderError(f"cannot make the folder {folder}: {error.strerror}") from None

    def load(self, cell: Cell) -> dict[str, Any] | None:
        """The result of a cell; None where it has none yet, or its file is damaged or of another cell."""
        try:
            document = json.loads(self._path(cell, "json").read_bytes())
            return dict(document["result"]) if document["key"] == _plain(cell.key) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, cell: Cell, result: Mapping[str, Any]) -> None:
        """Keep the result of a cell, and forget what was half done.

        Raises:
            FolderError: the disk refused.
        """
        document = {"cell": cell.name, "key": cell.key, "result": result}
        content = json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"
        write_atomically(self._path(cell, "json"), content)
        self._path(cell, "part").unlink(missing_ok=True)

    def save_file(self, cell: Cell, content: bytes) -> None:
        """Keep a file beside the cell's result; before `save`, so that a result has its file.

        Raises:
            FolderError: the disk refused.
        """
        write_atomically(self._path(cell, "bin"), content)

    def load_file(self, cell: Cell) -> bytes:
        """Load a file that `save_file` kept.

        Raises:
            FolderError: it is gone; the message says what to do.
        """
        path = self._path(cell, "bin")
        try:
            return path.read_bytes()
        except OSError as error:
            result = self._path(cell, "json").name
            raise FolderError(
                f"cannot read {path}: {error.strerror}; delete {result} beside it to compute it again"
            ) from None

    def load_part(self, cell: Cell) -> bytes | None:
        """Load the part of a cell that was done when it was interrupted."""
        try:
            return self._path(cell, "part").read_bytes()
        except OSError:
            return None

    def save_part(self, cell: Cell, content: bytes) -> None:
        """Keep what of a cell is done.

        Raises:
            FolderError: the disk refused.
        """
        write_atomically(self._path(cell, "part"), content)

    @contextmanager
    def claim(self, cell: Cell) -> Iterator[bool]:
        """Keep other processes from computing a cell; False where one does so now.

        Raises:
            FolderError: the disk refused.
        """
        path = self._path(cell, "lock")
        try:
            lock = Lock(path)
        except LockHeld:
            yield False
            return
        except OSError as error:
            raise FolderError(f"cannot make {path}: {error.strerror}") from None
        try:
            yield True
        finally:
            if self._path(cell, "json").exists():  # whoever waits for the deleted file finds the result
                path.unlink(missing_ok=True)
            lock.release()

    def _path(self, cell: Cell, ending: str) -> Path:
        return self.folder / f"{cell.file}.{ending}"


def _plain(key: Mapping[str, Any]) -> Any:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(key))

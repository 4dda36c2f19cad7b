"""Datasets that the user has registered: one file each, `$ESPER_HOME/datasets/NAME.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from esper_overwatch.protocol.storage.folders import esper_home, is_valid_name, make_private, write_atomically

from .dataset import DataError
from .task import Task
from .text import Text

MAX_NAME_LENGTH = 32
_ADVICE = "set ESPER_HOME to a folder of yours"


class DatasetContents(msgspec.Struct, frozen=True):
    """Content of a dataset."""

    classes: int
    shape: tuple[int, ...]
    """C, H, W of an image; empty for a text."""
    train: int
    """Images or characters to train on, like `val` and `test` to validate and to test on."""
    val: int
    test: int

    @classmethod
    def of(cls, data: Task) -> Self:
        if isinstance(data, Text):
            return cls(len(data.alphabet) + 1, (), *data.characters)
        return cls(data.classes, data.shape, len(data.train), len(data.val), len(data.test))

    def __str__(self) -> str:
        counts = f"{self.train} + {self.val} + {self.test}"
        if not self.shape:
            return f"{counts} characters (train, validation, test) of {self.classes} kinds"
        shape = "x".join(map(str, self.shape))
        return f"{counts} images (train, validation, test) of {shape} in {self.classes} classes"


class Registration(msgspec.Struct, frozen=True):
    """Location of a dataset, and its content when it was checked."""

    format: str
    folder: str
    holds: DatasetContents


def save(name: str, registration: Registration) -> None:
    """Register a dataset, or register it again.

    Raises:
        DataError: the name cannot be one.
        FolderError: the registration cannot be written.
    """
    if not is_valid_name(name, MAX_NAME_LENGTH):
        raise DataError(
            f"{name!r} is not a name for a dataset: up to {MAX_NAME_LENGTH} letters, digits, '-', '_' and "
            "'.', a letter or digit first"
        )
    home = esper_home()
    make_private(home, advice=_ADVICE, readable=True)
    folder = make_private(home / "datasets", advice=_ADVICE, readable=True)
    write_atomically(folder / f"{name}.json", msgspec.json.encode(registration))


def registrations() -> dict[str, Registration]:
    """All of them by name.

    Raises:
        DataError: one cannot be read.
    """
    files = sorted((esper_home() / "datasets").glob("[!.]*.json"))
    return {path.name.removesuffix(".json"): _read(path) for path in files}


def _read(path: Path) -> Registration:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Registration)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; make it readable for you") from None
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: {error}; remove it and register the dataset again") from None

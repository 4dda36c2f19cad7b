"""The file formats that datasets come in, and how a folder shows which one it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import idx
from .cifar import CIFAR10, CIFAR100, read_cifar10, read_cifar100
from .dataset import DataError
from .files import Files


@dataclass(frozen=True)
class Format:
    """One of them."""

    names: tuple[str, ...]
    """Files that give it away."""
    read: Callable[[Path, int | None], Files]
    """From a folder, with so many classes (None: as the labels say)."""


FORMATS = {
    "idx": Format(idx.NAMES, idx.read_folder),
    "cifar10": Format(CIFAR10.names, read_cifar10),
    "cifar100": Format(CIFAR100.names, read_cifar100),
}


def detect(folder: Path) -> str:
    """The format of the files in a folder.

    Raises:
        DataError: there is no such folder, or it holds no known files; says which one below it does.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; name the one that has the files")
    try:
        found = _format(folder)
        below = [] if found else [f for f in (*folder.glob("*/"), *folder.glob("*/*/")) if _format(f)]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}; make it readable for you") from None
    if found is None:
        known = ", ".join(form.names[0] for form in FORMATS.values())
        hint = f"did you mean {below[0]}?" if below else "name the folder that has the unpacked files"
        raise DataError(f"{folder}: no dataset in it ({known}, …); {hint}")
    return found


def _format(folder: Path) -> str | None:
    for name, form in FORMATS.items():
        if any((folder / file).is_file() for file in form.names):
            return name
    return None

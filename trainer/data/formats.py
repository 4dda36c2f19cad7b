"""The file formats that datasets come in, and how a folder shows which one it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import idx
from .cifar import CIFAR10, CIFAR100, files_of_cifar10, files_of_cifar100, read_cifar10, read_cifar100
from .dataset import DataError
from .files import DatasetFiles
from .npz import SUFFIX, read_npz


@dataclass(frozen=True)
class Format:
    """One file format."""

    names: tuple[str, ...]
    """Files that identify it."""
    read: Callable[[Path, int | None], DatasetFiles]
    """Reads a folder with a number of classes (None = as many as the labels name)."""
    published: Callable[[Path], dict[str, Path]]
    """Those files of a folder whose checksums may be known, by the names they were published under."""


NPZ_FORMAT = "npz"
"""The format of one file of arrays; the others are of folders."""
FORMATS = {
    "idx": Format(idx.NAMES, idx.read_folder, idx.published_files),
    "cifar10": Format(CIFAR10.names, read_cifar10, files_of_cifar10),
    "cifar100": Format(CIFAR100.names, read_cifar100, files_of_cifar100),
    NPZ_FORMAT: Format((), read_npz, lambda _file: {}),
}


TEXT_FORMAT = "text"
"""The format of a file that is to be read as it is."""


def text_file(path: Path) -> Path:
    """The text itself, where `path` is it or the folder that has it alone.

    Raises:
        DataError: the file does not exist, or there are several.
    """
    if not path.is_dir():
        if not path.exists():
            raise DataError(f"{path}: no such file; name a text, or the folder that has it")
        return path
    texts = sorted(path.glob("*.txt"))
    if len(texts) != 1:
        found = f"{len(texts)} texts, {texts[0].name} and others" if texts else "no .txt file"
        raise DataError(f"{path}: {found}; name the file itself")
    return texts[0]


def detect(folder: Path) -> str:
    """The format of the files in a folder, or of a file: arrays by its name's end, else a text.

    Raises:
        DataError: the folder does not exist, or holds no known files; suggests one below it that does.
    """
    if folder.is_file():
        return NPZ_FORMAT if folder.suffix == SUFFIX else TEXT_FORMAT
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder or file; name the one that has the files")
    try:
        found = _format(folder)
        below = [] if found else [f for f in (*folder.glob("*/"), *folder.glob("*/*/")) if _format(f)]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}; make it readable for you") from None
    if found is None:
        known = ", ".join([*(form.names[0] for form in FORMATS.values() if form.names), "one .txt"])
        hint = f"did you mean {below[0]}?" if below else "name the folder that has the unpacked files"
        if arrays := sorted(folder.glob(f"*{SUFFIX}")):
            hint = f"did you mean {arrays[0]}?"
        raise DataError(f"{folder}: no dataset in it ({known}, …); {hint}")
    return found


def _format(folder: Path) -> str | None:
    for name, form in FORMATS.items():
        if any((folder / file).is_file() for file in form.names):
            return name
    return TEXT_FORMAT if len(list(folder.glob("*.txt"))) == 1 else None

"""Files that datasets are read from: as they should be, or one line that names the file and the fault."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .dataset import DataError, Split

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Files:
    """What the files of a folder hold."""

    classes: int
    train: Split
    test: Split


def damaged(path: Path, fault: str) -> DataError:
    """The error for a file that is not what it should be."""
    return DataError(f"{path}: {fault}; get the file anew")


def find(folder: Path, names: Iterable[str]) -> Path:
    """The first of `names` that is a file in `folder`.

    Raises:
        DataError: none is.
    """
    names = tuple(names)
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder / names[0]}: no such file; put it there or name the folder that has it")


def read(path: Path) -> bytearray:
    """The file's content, unpacked where it is gzip by its first two bytes.

    Raises:
        DataError: it cannot be read or unpacked.
    """
    try:
        content = path.read_bytes()
        return bytearray(gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content)
    except EOFError:
        raise damaged(path, "the gzip file is cut short") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"the gzip file is damaged ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; make it readable for you") from None


def to_bytes(content: bytearray, shape: tuple[int, ...]) -> Tensor:
    """uint8 of that shape, over the same memory."""
    return torch.frombuffer(content, dtype=torch.uint8).view(shape)


def checked_labels(path: Path, labels: Tensor, classes: int | None) -> Tensor:
    """The labels of a file as int64 [M].

    Args:
        labels: any integer type, [M].
        classes: how many there are; None where the labels say it.

    Raises:
        DataError: a label is out of range, or there is a class without images.
    """
    labels = labels.long()
    if classes is None:
        missing = (torch.bincount(labels) == 0).nonzero().flatten().tolist()
        if missing:
            raise damaged(
                path, f"labels run to {int(labels.max())}, but none is {missing[0]}: they must count from 0"
            )
    elif (wrong := labels[(labels < 0) | (labels >= classes)]).numel():
        raise damaged(path, f"label {int(wrong[0])} is not within 0..{classes - 1}")
    return labels

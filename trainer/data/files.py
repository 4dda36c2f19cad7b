"""Reads the files of datasets; a damaged one is an error of one line that names file and fault."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from .dataset import DataError, Split

MAX_BYTES = 2 * 1024**3
"""Most bytes in one file, unpacked: a few MB of gzip can hold thousands of times as much."""
MAX_BATCH_BYTES = 512 * 1024**2
"""Most bytes in one batch of CIFAR, unpacked; the largest has 160 MB."""
_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class DatasetFiles:
    """Content of a folder's files."""

    classes: int
    train: Split
    test: Split


def damaged(path: Path, fault: str) -> DataError:
    """The error for a file that is not what it should be."""
    return DataError(f"{path}: {fault}; get the file again")


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


def read(path: Path, limit: int = MAX_BYTES) -> bytearray:
    """The file's content, unpacked where it is gzip by its first two bytes.

    Raises:
        DataError: it cannot be read or unpacked, or holds more than `limit` bytes.
    """
    content = read_beginning(path, limit + 1)
    if len(content) > limit:
        raise damaged(path, f"it holds more than {limit} bytes")
    return content


def read_beginning(path: Path, count: int) -> bytearray:
    """Read at most `count` bytes of the file's content; of a gzip file no more than that is unpacked.

    Raises:
        DataError: it cannot be read or unpacked.
    """
    content = bytearray()
    for block in blocks(path):
        content += block[: count - len(content)]
        if len(content) == count:
            break
    return content


def blocks(path: Path) -> Iterator[bytes]:
    """The file's content piece by piece, unpacked where it is gzip by its first two bytes.

    Raises:
        DataError: it cannot be read or unpacked.
    """
    done = 0
    try:
        with path.open("rb") as raw:
            zipped = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            raw.seek(0)
            file: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if zipped else raw
            while block := file.read(_BLOCK_BYTES):
                yield block
                done += len(block)
    except EOFError:
        raise damaged(path, "the gzip file is cut short") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"the gzip file is damaged ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; make it readable for you") from None
    except MemoryError:
        raise DataError(f"{path}: memory is too small for it; it holds over {done} bytes") from None


def to_bytes(content: bytearray, shape: tuple[int, ...]) -> Tensor:
    """uint8 of that shape, over the same memory."""
    return torch.frombuffer(content, dtype=torch.uint8).view(shape)


def checked_labels(path: Path, labels: Tensor, classes: int | None) -> Tensor:
    """The labels of a file as int64 [M].

    Args:
        labels: any integer type, [M].
        classes: how many there are; None = as many as the labels name.

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

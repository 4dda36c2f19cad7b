"""CIFAR-10 and CIFAR-100, as their binary or their Python batches (Krizhevsky, "Learning multiple layers of
features from tiny images", 2009).

A binary record is one label byte (CIFAR-100: coarse, then fine) and 3,072 bytes, one 32x32 plane per colour.
A Python batch is a pickled dictionary of the same; see `unpickle`. CIFAR-100's classes are the 100 fine ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from .dataset import Split
from .files import MAX_BATCH_BYTES, DatasetFiles, checked_labels, damaged, find, read, to_bytes
from .unpickle import Array, load_plain

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """Files and records of CIFAR-10 or of CIFAR-100."""

    classes: int
    train: tuple[str, ...]
    """Names of the Python batches; the binary ones end in .bin."""
    test: tuple[str, ...]
    label_bytes: int
    """Before the pixels of a binary record; the last is the class."""
    key: bytes
    """Key of the classes in a Python batch."""

    @property
    def names(self) -> tuple[str, ...]:
        """Any of these in a folder means that its files are of this layout."""
        return tuple(name + end for name in (*self.train, *self.test) for end in (".bin", ""))


CIFAR10 = Layout(10, tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",), 1, b"labels")
CIFAR100 = Layout(100, ("train",), ("test",), 2, b"fine_labels")


def _binary(layout: Layout, path: Path) -> tuple[Tensor, Tensor]:
    content, record = read(path, MAX_BATCH_BYTES), layout.label_bytes + PIXELS
    if not content or len(content) % record:
        raise damaged(path, f"{len(content)} bytes are not a multiple of the {record} of a record")
    records = to_bytes(content, (-1, record))
    return records[:, layout.label_bytes :], records[:, layout.label_bytes - 1]


def _pickled(layout: Layout, path: Path) -> tuple[Tensor, Tensor]:
    batch = load_plain(path)
    if not isinstance(batch, dict) or not {b"data", layout.key} <= batch.keys():
        raise damaged(path, f"this is not a batch with 'data' and '{layout.key.decode()}'")
    array, labels = batch[b"data"], batch[layout.key]
    if not isinstance(array, Array) or array.dtype != "u1" or len(array.shape) != 2:
        raise damaged(path, "'data' is not a matrix of unsigned bytes")
    count, width = array.shape
    if width != PIXELS or count == 0 or len(array.content) != count * width:
        raise damaged(path, f"{len(array.content)} bytes as {count}x{width} pixels, not rows of {PIXELS}")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise damaged(path, f"'{layout.key.decode()}' is not a list of integers from 0 to 255")
    if len(labels) != count:
        raise damaged(path, f"{len(labels)} labels for {count} images")
    return to_bytes(bytearray(array.content), (count, width)), torch.tensor(labels)


def _is_binary(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / f"{name}.bin").is_file() for name in names)


def _split(layout: Layout, folder: Path, names: tuple[str, ...]) -> Split:
    binary = _is_binary(folder, names)
    pixels, classes = [], []
    for name in names:
        path = find(folder, (f"{name}.bin" if binary else name,))
        images, labels = (_binary if binary else _pickled)(layout, path)
        pixels.append(images)
        classes.append(checked_labels(path, labels, layout.classes))
    return Split(torch.cat(pixels).view(-1, *SHAPE), torch.cat(classes))


def _read_folder(layout: Layout, folder: Path, _classes: int | None) -> DatasetFiles:
    return DatasetFiles(
        layout.classes, _split(layout, folder, layout.train), _split(layout, folder, layout.test)
    )


def _published_files(layout: Layout, folder: Path) -> dict[str, Path]:
    """The Python batches that `_read_folder` reads, by their names."""
    parts = (layout.train, layout.test)
    return {name: find(folder, (name,)) for names in parts if not _is_binary(folder, names) for name in names}


files_of_cifar10 = partial(_published_files, CIFAR10)
files_of_cifar100 = partial(_published_files, CIFAR100)
read_cifar10 = partial(_read_folder, CIFAR10)
read_cifar100 = partial(_read_folder, CIFAR100)

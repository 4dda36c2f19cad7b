"""IDX files, the format of MNIST and of datasets modelled on it.

A file is a big-endian header and the numbers: two zero bytes, a byte for the type (8 = unsigned byte), a byte
for the number of dimensions, then the size of each as 32 bits (LeCun, Cortes and Burges, "The MNIST database
of handwritten digits").
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

from torch import Tensor

from .dataset import Split
from .files import MAX_BYTES, DatasetFiles, checked_labels, damaged, find, read_beginning, to_bytes

_UNSIGNED_BYTE = 8
_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"


def _spellings(part: str, what: str) -> tuple[str, ...]:
    """The names a file goes by: as published (gzip), unpacked, and with the dot some tools make."""
    plain = f"{part}-{what}"
    dotted = plain.replace("-idx", ".idx")
    return f"{plain}.gz", plain, f"{dotted}.gz", dotted


NAMES = tuple(
    name for part in ("train", "t10k") for what in (_IMAGES, _LABELS) for name in _spellings(part, what)
)
"""Any of these in a folder means that its files are IDX."""


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read a uint8 tensor of `dimensions` dimensions.

    Raises:
        DataError: the header is not that of such a file, or the size is not what it says.
    """
    size = 4 + 4 * dimensions
    content = read_beginning(path, size)
    if len(content) < size or content[:2] != b"\0\0":
        raise damaged(path, "this is not an IDX file (it does not begin with the magic number)")
    if content[2] != _UNSIGNED_BYTE or content[3] != dimensions:
        raise damaged(
            path, f"type 0x{content[2]:02x} in {content[3]} dimensions, not unsigned bytes in {dimensions}"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:size])
    if 0 in shape:
        raise damaged(path, f"it is empty ({'x'.join(map(str, shape))})")
    wanted = size + math.prod(shape)
    if wanted > MAX_BYTES:
        raise damaged(path, f"over {MAX_BYTES} bytes by its header, which says {'x'.join(map(str, shape))}")
    content = read_beginning(path, wanted + 1)
    if len(content) != wanted:
        raise damaged(
            path, f"{len(content) - size} bytes after the header, which says {'x'.join(map(str, shape))}"
        )
    return to_bytes(content[size:], shape)


def _split(folder: Path, part: str, classes: int | None) -> Split:
    image_file = find(folder, _spellings(part, _IMAGES))
    label_file = find(folder, _spellings(part, _LABELS))
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    if len(images) != len(labels):
        raise damaged(label_file, f"{len(labels)} labels for the {len(images)} images of {image_file.name}")
    return Split(images.unsqueeze(1), checked_labels(label_file, labels, classes))


def published_files(folder: Path) -> dict[str, Path]:
    """The files of a folder by the names of MNIST's, unpacked.

    Raises:
        DataError: one is missing.
    """
    return {
        f"{part}-{what}": find(folder, _spellings(part, what))
        for part in ("train", "t10k")
        for what in (_IMAGES, _LABELS)
    }


def read_folder(folder: Path, classes: int | None) -> DatasetFiles:
    """The four files of a folder.

    Args:
        classes: as many as there must be; None: as many as the training labels name.

    Raises:
        DataError: a file is missing or damaged.
    """
    train = _split(folder, "train", classes)
    classes = classes or int(train.labels.max()) + 1
    return DatasetFiles(classes, train, _split(folder, "t10k", classes))

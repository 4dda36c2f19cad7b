"""A file of numpy's `np.savez`: images and labels under the names x_train, y_train[, x_test, y_test].

Pixels are bytes, or floats of which all are from 0 to 1 or all from 0 to 255. Without a test part a fifth of
the images of each class, the same ones in every run, is the test set.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .dataset import DataError, Split, split_stratified
from .files import MAX_BYTES, DatasetFiles, checked_labels, damaged

SUFFIX = ".npz"
TEST_SHARE = 0.2
"""Share of the images of a file without a test part."""
MAX_CHANNELS = 4
_NAMES = ("x_train", "y_train", "x_test", "y_test")
_SHAPES = "[N, H, W], [N, H, W, C] or [N, C, H, W]"
Array = np.ndarray[Any, np.dtype[Any]]


def read_npz(path: Path, classes: int | None) -> DatasetFiles:
    """The arrays of a file.

    Args:
        classes: as many as there must be; None: as many as the training labels name.

    Raises:
        DataError: the file is missing or damaged, or an array is not what it should be.
    """
    arrays = _arrays(path)
    if lacking := [name for name in _wanted(arrays) if name not in arrays]:
        there = ", ".join(arrays) or "nothing"
        raise DataError(
            f"{path}: no array {lacking[0]} in it (it has {there}); save it by "
            "np.savez(FILE, x_train=…, y_train=…), with x_test and y_test where there are any"
        )
    train = _split(path, arrays, "train", classes)
    classes = classes or int(train.labels.max()) + 1
    if "x_test" in arrays:
        floats = [name for name in ("x_train", "x_test") if arrays[name].dtype.kind == "f"]
        if len({_white(path, name, arrays[name]) for name in floats}) > 1:
            raise DataError(f"{path}: of x_train and x_test only one is from 0 to 1; scale both")
        return DatasetFiles(classes, train, _split(path, arrays, "test", classes))
    learned, tested = split_stratified(train.labels, (1 - TEST_SHARE, TEST_SHARE))
    parts = (Split(train.images[part], train.labels[part]) for part in (learned, tested))
    return DatasetFiles(classes, *parts)


def _wanted(arrays: Mapping[str, Array]) -> tuple[str, ...]:
    return _NAMES if arrays.keys() & {"x_test", "y_test"} else _NAMES[:2]


def _arrays(path: Path) -> dict[str, Array]:
    """Those arrays of the file that have a meaning here; nothing that is pickled in it is read."""
    try:
        with zipfile.ZipFile(path) as file:
            for member in file.infolist():
                if member.file_size > MAX_BYTES:
                    raise damaged(path, f"{member.filename} holds more than {MAX_BYTES} bytes")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in _NAMES if name in archive.files}
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise damaged(path, f"this is not a whole .npz file ({error})") from None
    except ValueError as error:
        raise DataError(
            f"{path}: an array cannot be read ({error}); save arrays of numbers, not of objects"
        ) from None
    except MemoryError:
        raise DataError(f"{path}: memory is too small for it") from None


def _split(path: Path, arrays: Mapping[str, Array], part: str, classes: int | None) -> Split:
    images = _images(path, f"x_{part}", arrays[f"x_{part}"])
    labels = arrays[f"y_{part}"]
    if labels.shape != (len(images),):
        raise DataError(
            f"{path}: y_{part} has shape {labels.shape}, not ({len(images)},): one label for each image"
        )
    if labels.dtype.kind not in "iu":
        raise DataError(f"{path}: y_{part} is {labels.dtype}; make it whole numbers that count from 0")
    if labels.min() < 0:
        raise DataError(f"{path}: y_{part} has the label {labels.min()}; labels count from 0")
    return Split(images, checked_labels(path, torch.from_numpy(labels.astype(np.int64)), classes))


def _images(path: Path, name: str, array: Array) -> Tensor:
    """uint8 [N, C, H, W]."""
    what = f"{path}: {name} has shape {array.shape}"
    if array.ndim == 2:
        raise DataError(f"{what}, a table; hosts convolve and need images: {_SHAPES}")
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise DataError(f"{what}, not {_SHAPES}")
    if array.ndim == 3:
        array = array[:, None]
    else:
        first, last = array.shape[1] <= MAX_CHANNELS, array.shape[3] <= MAX_CHANNELS
        if first == last:
            which = "either could be" if first else "neither is"
            raise DataError(f"{what}: channels are the second or the last size, {which} 1 to {MAX_CHANNELS}")
        array = array if first else np.moveaxis(array, 3, 1)
    if array.dtype != np.uint8:
        array = np.rint(array * (255 // _white(path, name, array))).astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(array))


def _white(path: Path, name: str, array: Array) -> int:
    """The value of a white pixel among floats, 1 or 255."""
    if array.dtype.kind != "f":
        raise DataError(f"{path}: {name} is {array.dtype}; make it uint8, or floats from 0 to 1")
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    if not (low >= 0 and high <= 255):
        raise DataError(
            f"{path}: {name} runs from {low:g} to {high:g}; scale it to 0 to 1, or to bytes from 0 to 255"
        )
    return 1 if high <= 1 else 255

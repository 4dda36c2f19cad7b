"""Reads the pickles that CIFAR's Python batches are, without running anything they ask for.

A pickle is a program that may call whatever it can name. Here it can name what the published files hold and
nothing else: numpy's array, its dtype and the function that rebuilds an array. Each of them stands for a
plain record of this module, so that not even numpy's code runs. What comes out is made of dictionaries,
lists, numbers, bytes and `Array`s.
"""

from __future__ import annotations

import io
import pickle
import struct
from pathlib import Path
from typing import Any

from .files import MAX_BATCH_BYTES, damaged, read


class _Dtype:
    """Stands for numpy.dtype: keeps the code of the type."""

    def __init__(self, code: Any, *_flags: Any) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else str(code)

    def __setstate__(self, _state: Any) -> None:
        """Byte order and alignment, which single bytes do not have."""


class Array:
    """Stands for numpy.ndarray and for what rebuilds one: keeps shape, type and bytes."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    content: bytes = b""

    def __init__(self, *_arguments: Any) -> None:
        """Empty; `__setstate__` sets what it holds."""

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, by_columns, content = state
        valid = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        if not valid or not isinstance(dtype, _Dtype) or by_columns or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array that is not plain rows of bytes")
        self.shape, self.dtype, self.content = shape, dtype.code, content


_ADMITTED: dict[tuple[str, str], type] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): Array,
    ("numpy.core.multiarray", "_reconstruct"): Array,
}


class _Unpickler(pickle._Unpickler):
    """The one in Python, though private: that in C reserves whatever memory a number in the file asks."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no such file needs")
        return _ADMITTED[module, name]


def load_plain(path: Path) -> Any:
    """Read the object in a file; text of Python 2 comes as bytes.

    Raises:
        DataError: it is not a pickle, a damaged one, or one that asks for more than plain data.
    """
    try:
        return _Unpickler(io.BytesIO(read(path, MAX_BATCH_BYTES)), encoding="bytes").load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
        MemoryError,
        RecursionError,
        struct.error,
    ) as error:
        reason = str(error) or type(error).__name__
        raise damaged(
            path, f"this is not a batch that can be read safely: {' '.join(reason.split())}"
        ) from None

"""Files that are one record of JSON, in folders where somebody else may have put anything."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from esper_overwatch.protocol.errors import WireError

from .folders import open_regular

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""Of one file."""
_T = TypeVar("_T")


def read_record(path: Path, kind: type[_T]) -> _T:
    """Read a file that is one record of JSON.

    Raises:
        OSError: it is not there, or cannot be read.
        WireError: it holds something else.
    """
    with open_regular(path) as file:
        content = file.read(MAX_RECORD_BYTES + 1)
    if len(content) > MAX_RECORD_BYTES:
        raise WireError(f"it has more than {MAX_RECORD_BYTES} bytes")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(str(error)) from None

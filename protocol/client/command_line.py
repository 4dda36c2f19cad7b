"""What command lines share: errors as one line on standard error, and their exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.codec.text import clean_text
from protocol.errors import EsperError


@contextmanager
def exit_on_error(program: str) -> Iterator[None]:
    """Of a command line: end with one line on standard error and the exit code of an `EsperError`."""
    try:
        yield
    except EsperError as error:
        print(f"{program}: {clean_text(str(error))}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None

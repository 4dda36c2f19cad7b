"""Names of the pinned charts, kept between sessions for this user alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from esper_overwatch.protocol.codec.text import clean_text

MAX_NAME = 200
"""Characters; a longer line is none of ours."""


class PinFile:
    """One name a line; a disk error loses them silently.

    Args:
        path: None = `tui-charts` in the user's folder for state.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(platformdirs.user_state_dir("esper")) / "tui-charts"

    def names(self, at_most: int) -> list[str]:
        """Pinned names, in their order."""
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        known = [line for line in lines if line and line == clean_text(line) and len(line) <= MAX_NAME]
        return list(dict.fromkeys(known))[:at_most]

    def write(self, names: Sequence[str]) -> None:
        """Keep these instead."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = self._path.with_suffix(f".{os.getpid()}")
            new.touch(mode=0o600)
            new.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
            new.replace(self._path)

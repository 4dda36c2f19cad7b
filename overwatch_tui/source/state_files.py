"""Lines kept between sessions for this user alone: names of pinned charts, and lines typed after `:`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from esper_overwatch.protocol.codec.text import clean_text

MAX_NAME = 200
"""Characters; longer lines are ignored."""
MAX_LINES = 200


class _StateFile:
    """A text file in the user's folder for state; a disk error loses its lines silently."""

    name = ""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(platformdirs.user_state_dir("esper")) / self.name

    def lines(self) -> list[str]:
        try:
            return self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []

    def write(self, lines: Sequence[str]) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = self._path.with_suffix(f".{os.getpid()}")
            new.touch(mode=0o600)
            new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            new.replace(self._path)


class PinFile(_StateFile):
    """Names of the pinned charts; by default in `tui-charts` in the user's folder for state."""

    name = "tui-charts"

    def names(self, at_most: int) -> list[str]:
        lines = self.lines()
        known = [line for line in lines if line and line == clean_text(line) and len(line) <= MAX_NAME]
        return list(dict.fromkeys(known))[:at_most]


class HistoryFile(_StateFile):
    """Lines typed after `:`, the newest last; by default in `tui-history` in the user's folder for state."""

    name = "tui-history"

    def lines(self) -> list[str]:
        return super().lines()[-MAX_LINES:]

    def add(self, line: str) -> None:
        """Keep a line; one that is there already moves to the end."""
        kept = [old for old in self.lines() if old != line.strip()]
        self.write([*kept[-(MAX_LINES - 1) :], line.strip()])

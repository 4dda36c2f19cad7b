"""Lines that were typed after `:`, kept between sessions for this user alone."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import platformdirs

MAX_LINES = 200


class HistoryFile:
    """Newest lines last; a disk error loses them silently.

    Args:
        path: None = `tui-history` in the user's folder for state.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path(platformdirs.user_state_dir("esper")) / "tui-history"

    def lines(self) -> list[str]:
        """Lines typed before, oldest first."""
        try:
            return self._path.read_text(encoding="utf-8", errors="replace").splitlines()[-MAX_LINES:]
        except OSError:
            return []

    def add(self, line: str) -> None:
        """Keep a line; one that is there already moves to the end."""
        kept = [old for old in self.lines() if old != line.strip()]
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = self._path.with_suffix(f".{os.getpid()}")
            new.touch(mode=0o600)
            new.write_text("\n".join([*kept[-(MAX_LINES - 1) :], line.strip(), ""]), encoding="utf-8")
            new.replace(self._path)

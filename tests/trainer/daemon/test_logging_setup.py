"""Who may read the log."""

from __future__ import annotations

import os
from pathlib import Path

from protocol.storage.folders import open_private


def test_log_is_for_its_owner_alone(tmp_path: Path) -> None:
    """A new one, and one that an earlier version made for everybody to read."""
    old = os.umask(0)
    try:
        for name in ("new.log", "old.log"):
            path = tmp_path / name
            if name == "old.log":
                path.touch(0o644)
            with open(path, "a", encoding="utf-8", opener=open_private) as file:
                file.write("x")
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(old)

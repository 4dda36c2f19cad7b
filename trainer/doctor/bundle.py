"""Post-mortem bundles: folders that a boot which ends badly leaves for the doctor."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec


class PostmortemReport(msgspec.Struct, kw_only=True):
    """`report.json`, and what the doctor reads first."""

    run: str
    boot: str
    reason: str
    exit_code: int
    error: str | None
    at: int
    """Wall time, microseconds."""
    round: int
    epoch: int
    """Epochs finished in the round."""
    sick_env: int | None = None
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    """Parts that could not be gathered, and why."""


def list_bundles(folder: Path) -> list[Path]:
    """The bundles in a run's `postmortem` folder, oldest first; none where there is no such folder."""
    with contextlib.suppress(OSError):
        return sorted(
            (p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: p.stat().st_mtime
        )
    return []

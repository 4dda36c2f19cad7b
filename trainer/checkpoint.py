"""Checkpoints: written whole or not at all, the newest few kept, read back without running code."""

from __future__ import annotations

import io
import os
import pickle
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from protocol.errors import EsperError

FORMAT = 2
_NAME = re.compile(r"^round-(\d+)(?:-epoch-(\d+))?(?:-[A-Za-z0-9_.-]+)?\.pt$")


class CheckpointError(EsperError):
    """A checkpoint cannot be read or does not fit; the message names it and what to do."""

    exit_code = 10


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk."""

    path: Path
    bytes: int


def _position(path: Path) -> tuple[int, int]:
    """(round, epoch) that a file's name tells; an episode's end counts as after all its epochs."""
    match = _NAME.match(path.name)
    assert match is not None
    return int(match[1]), int(match[2]) if match[2] else 1_000_000


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint onto the CPU.

    Raises:
        CheckpointError: the file is damaged or of another format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"checkpoint {path} is damaged ({damaged} fails its checksum)")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, zipfile.BadZipFile, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from None
    if state.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {state.get('format')}; this version reads {FORMAT}"
        )
    return state


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: made if it is not there.
        keep: how many of the newest stay; `best.pt` stays beside them.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        folder.mkdir(mode=0o700, exist_ok=True)

    def all(self) -> list[Path]:
        """Oldest first, by position in the run."""
        return sorted((p for p in self.folder.iterdir() if _NAME.match(p.name)), key=_position)

    def save(
        self, state: dict[str, Any], *, round: int, epoch: int | None, tag: str = "", best: bool = False
    ) -> Saved:
        """Write to a temporary file, sync, rename; then drop what is too old.

        Args:
            state: tensors, numbers, texts and containers of them.
            round: the round it belongs to.
            epoch: epochs finished in mid-episode, or None at a round's end.
            tag: part of the name.
            best: also keep it as `best.pt`.

        Raises:
            OSError: the disk refused; the checkpoints before are untouched.
        """
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, **state}, buffer)
        position = "" if epoch is None else f"-epoch-{epoch:05d}"
        path = self.folder / f"round-{round:06d}{position}{f'-{tag}' if tag else ''}.pt"
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        if best:
            link = self.folder / "best.partial"
            link.unlink(missing_ok=True)
            os.link(path, link)
            link.replace(self.folder / "best.pt")
        self._sync_folder()
        for old in self.all()[: -self.keep]:
            if old != path:
                old.unlink(missing_ok=True)
        return Saved(path=path, bytes=buffer.getbuffer().nbytes)

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def latest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint and its state, or None where there is none.

        Raises:
            CheckpointError: the newest is damaged; the message names the one before it.
        """
        paths = self.all()
        if not paths:
            return None
        try:
            return paths[-1], load(paths[-1])
        except CheckpointError as error:
            before = (
                f"; move it away and --resume goes on from {paths[-2].name}"
                if len(paths) > 1
                else "; there is no other"
            )
            raise CheckpointError(str(error) + before) from None

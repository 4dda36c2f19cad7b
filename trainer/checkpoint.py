"""Checkpoints: written completely or not at all, the newest few kept, read back without running code."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from esper_overwatch.protocol.errors import first_line
from esper_overwatch.protocol.storage.folders import replace_file, sync_folder

from .checkpoint_files import (
    BEST_FILE,
    CheckpointEntry,
    CheckpointError,
    best_checkpoint,
    file_name,
    list_checkpoints,
    read_index_to_change,
    write_index,
)

FORMAT = 2
_SEAL = b"sha256:"
"""Begins the archive's comment; behind it the SHA-256, in hexadecimal, of all before the comment's length."""
_SEAL_BYTES = len(_SEAL) + 64
_LENGTH_BYTES = 2
_BLOCK_BYTES = 1024 * 1024


_ABANDONED = (
    "the others were abandoned when the run went back to an earlier one; "
    "start --resume NAME --checkpoint WHICH goes on from one of them"
)


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint on disk."""

    path: Path
    bytes: int


def snapshot(state: Any) -> Any:
    """A copy on the CPU of tensors, numbers, texts and containers of them, which training does not change."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: snapshot(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(snapshot, state))
    return state


def seal(archive: io.BytesIO) -> None:
    """Put a checksum of the whole into the comment of a zip archive, which its readers pass over."""
    content = archive.getbuffer()[:-_LENGTH_BYTES]
    checksum = hashlib.sha256(content).hexdigest().encode()
    content.release()
    archive.seek(-_LENGTH_BYTES, io.SEEK_END)
    archive.write(_SEAL_BYTES.to_bytes(_LENGTH_BYTES, "little") + _SEAL + checksum)


def _is_whole(path: Path) -> bool:
    """Check an archive against the checksum in its seal; one without a seal is damaged, or of 0.1.0."""
    with path.open("rb") as file:
        left = file.seek(0, io.SEEK_END) - _SEAL_BYTES - _LENGTH_BYTES
        file.seek(max(0, left))
        seal = file.read()[_LENGTH_BYTES:]
        if left < 0 or not seal.startswith(_SEAL):
            return False
        file.seek(0)
        digest = hashlib.sha256()
        while left and (block := file.read(min(left, _BLOCK_BYTES))):
            digest.update(block)
            left -= len(block)
        return digest.hexdigest().encode() == seal[len(_SEAL) :]


def to_archive(state: dict[str, Any]) -> io.BytesIO:
    """Tensors, numbers, texts and containers of them as bytes that have a checksum of the whole."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    seal(buffer)
    return buffer


def _check_entries(path: Path) -> None:
    """Refuse entries that are not stored as they are, by which a small file could take any memory.

    Raises:
        ValueError: there is such an entry.
        zipfile.BadZipFile: it is no archive.
    """
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                raise ValueError(f"its entry {entry.filename!r} is compressed")
        if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
            raise ValueError("its entries declare more bytes than it has")


class _Copier:
    """Copies what `snapshot` makes, and nothing that is more than the file it came from.

    A tensor may show a few stored bytes as any number of values, and a list may hold itself.

    Args:
        num_bytes: of the file: for each value one, for a tensor as many as it fills.
    """

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def copy(self, value: Any) -> Any:
        """Copy a value and all in it.

        Raises:
            ValueError: it is larger than the file, or of a kind that no checkpoint has.
        """
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor and (value.layout != torch.strided or value.device.type != "cpu"):
            raise ValueError("it holds a tensor without values in memory")
        self._left -= value.nbytes if is_tensor else 1
        if self._left < 0:
            raise ValueError("what it holds is larger than the file")
        if is_tensor:
            return value.detach().clone()
        if isinstance(value, dict):
            return {self.copy(key): self.copy(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self.copy, value))
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise ValueError(f"it holds a {type(value).__name__}")


def read_archive(path: Path, noun: str) -> dict[str, Any]:
    """Read what `to_archive` made onto the CPU, without running code.

    It is mapped, so that no tensor goes beyond the file, and then copied, which holds it once in memory.

    Args:
        noun: what the file is called in the error.

    Raises:
        CheckpointError: the file is damaged, or something else.
    """
    try:
        if not _is_whole(path):
            raise CheckpointError(f"{noun} {path} fails its checksum: it is damaged, or was made by 0.1.0")
        _check_entries(path)
        with warnings.catch_warnings(action="ignore"):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        state = _Copier(path.stat().st_size).copy(state)
    except OSError as error:
        raise CheckpointError(f"{noun} {path} cannot be read: {error.strerror or error}") from None
    except CheckpointError:
        raise
    except Exception as error:  # a stranger's bytes lead torch's reader to errors of all kinds
        reason = first_line(error) or type(error).__name__
        raise CheckpointError(f"{noun} {path} cannot be read: {reason}") from error
    return state if isinstance(state, dict) else {}


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint onto the CPU.

    Raises:
        CheckpointError: the file is damaged or of another format.
    """
    state = read_archive(path, "checkpoint")
    found = state.get("format")
    if type(found) is not int or found != FORMAT:
        told = f"format {found}" if type(found) is int else "no format"
        raise CheckpointError(f"checkpoint {path} has {told}; this version reads {FORMAT}")
    return state


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: made where it is missing.
        keep: how many of the newest stay; those with a tag and `best.pt` stay beside them.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self._left: set[str] = set()
        folder.mkdir(mode=0o700, exist_ok=True)

    def all(self) -> list[Path]:
        """The oldest first, as they were written; before them those that were abandoned."""
        return [file.path for file in list_checkpoints(self.folder)]

    def go_on_from(self, path: Path) -> None:
        """Tell which one the run goes on from: its next save abandons those that were written after it."""
        files, best = list_checkpoints(self.folder), best_checkpoint(self.folder)
        same = [file for file in (*files, *([best] if best else [])) if file.path.samefile(path)]
        self._left = {file.path.name for file in files if not same or file.written > same[0].written}

    def save(
        self,
        state: dict[str, Any],
        *,
        round: int,
        epoch: int | None,
        tag: str = "",
        best: bool = False,
        accuracy: float | None = None,
    ) -> SavedCheckpoint:
        """Write to a temporary file, sync, rename; drop what a killed daemon left and what is too old.

        Args:
            state: tensors, numbers, texts and containers of them.
            round: the round it belongs to.
            epoch: epochs finished in mid-episode, or None at a round's end.
            tag: part of the name; with one it stays until it is deleted.
            best: also keep it as `best.pt`.
            accuracy: for the listing.

        Raises:
            OSError: the disk refused. The checkpoints before are untouched, except that an older one of the
                same round, epoch and tag may be replaced already.
        """
        for abandoned in self.folder.glob(".round-*"):  # by a daemon that was killed while it wrote
            abandoned.unlink(missing_ok=True)
        self._abandon()
        buffer = to_archive({"format": FORMAT, **state})
        path = self.folder / file_name(round, epoch, tag)
        index = self._write(path, buffer.getbuffer(), accuracy)
        if best:
            link = self.folder / "best.partial"
            link.unlink(missing_ok=True)
            os.link(path, link)
            link.replace(self.folder / BEST_FILE)
            write_index(self.folder, {**index, BEST_FILE: index[path.name]})
        sync_folder(self.folder)
        for old in [file for file in list_checkpoints(self.folder) if not file.tag][: -self.keep]:
            if old.path != path:
                old.path.unlink(missing_ok=True)
        return SavedCheckpoint(path=path, bytes=buffer.getbuffer().nbytes)

    def _abandon(self) -> None:
        """Mark what the run has gone back behind, before there is anything that it would be taken for."""
        if not self._left:
            return
        index = read_index_to_change(self.folder)
        for name in self._left:
            index[name] = replace(index.get(name, CheckpointEntry(number=0)), abandoned=True)
        write_index(self.folder, index)
        self._left = set()

    def _write(self, path: Path, content: memoryview, accuracy: float | None) -> dict[str, CheckpointEntry]:
        """Write a file and enter it into the index, in that order of the two which a fault in between allows.

        Without its entry a new file would count as the oldest. One of the same name may be of a past that the
        run went back behind: with the newest number before its new content it would be what a resume takes.
        """
        if not path.exists():
            index = self._enter(path.name, accuracy)
            replace_file(path, content)
            return index
        replace_file(path, content)
        sync_folder(self.folder)
        return self._enter(path.name, accuracy)

    def _enter(self, name: str, accuracy: float | None) -> dict[str, CheckpointEntry]:
        """Enter a file into the index as the newest; what is not there any more goes."""
        index = read_index_to_change(self.folder)
        number = 1 + max((entry.number for entry in index.values()), default=0)
        index = {each: entry for each, entry in index.items() if (self.folder / each).exists()}
        index[name] = CheckpointEntry(number=number, accuracy=accuracy)
        write_index(self.folder, index)
        return index

    def latest(
        self, *, on_damaged: Callable[[CheckpointError], None] | None = None
    ) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that was not abandoned and its state; None where there is no file at all.

        Args:
            on_damaged: called for each that cannot be read, before the one before it is tried; without it
                that is raised.

        Raises:
            CheckpointError: the newest is damaged, or there is none but abandoned ones; the message says
                what to do.
        """
        files = list_checkpoints(self.folder)
        paths = [file.path for file in files if not file.abandoned]
        if not paths:
            if files:
                raise CheckpointError(f"no checkpoint in {self.folder} to go on from; {_ABANDONED}")
            return None
        no_other = "there is no other" if len(paths) == len(files) else _ABANDONED
        for i, path in reversed(list(enumerate(paths))):
            try:
                return path, load(path)
            except CheckpointError as error:
                if on_damaged is not None and i > 0:
                    on_damaged(error)
                    continue
                before = (
                    f"; move it away, or use start NAME --or-resume, to go on from {paths[i - 1].name}"
                    if i > 0
                    else f"; {no_other}"
                )
                raise CheckpointError(str(error) + before) from None
        raise AssertionError

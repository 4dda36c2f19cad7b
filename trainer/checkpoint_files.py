"""The files in a run's folder of checkpoints: their names, their index, which are kept. Needs no torch.

`index.json` says of each file when in the run it was written, which a name cannot say where a run was resumed
from an earlier round, and what the listing shows. Files without an entry count as older.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from esper_overwatch.protocol.errors import EsperError, WireError
from esper_overwatch.protocol.storage.folders import replace_file
from esper_overwatch.protocol.storage.records import read_record

BEST_FILE, INDEX_FILE = "best.pt", "index.json"
_NAME = re.compile(r"^round-(\d+)(?:-epoch-(\d+))?(?:-([A-Za-z0-9_.-]+))?\.pt$")


class CheckpointError(EsperError):
    """A checkpoint cannot be read or does not fit; the message names it and what to do."""

    exit_code = 10


class CheckpointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the index: one checkpoint file."""

    number: int
    """Counts the checkpoints of the run as they were written, from 1."""
    accuracy: float | None = None
    """Mean validation accuracy of the hosts after the newest epoch; None before the first."""
    abandoned: bool = False
    """The run went back to a checkpoint before this one, and on from there."""


@dataclass(frozen=True)
class CheckpointFile:
    """A checkpoint as it is listed."""

    path: Path
    round: int | None
    epoch: int | None
    """Epochs finished in mid-episode; None at a round's end."""
    tag: str
    accuracy: float | None
    bytes: int
    number: int
    abandoned: bool = False

    @property
    def written(self) -> tuple[int, int, int]:
        """Time at which it was written, else its place in the run."""
        return self.number, self.round or 0, 1_000_000 if self.epoch is None else self.epoch

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sort key: the time of writing, behind all that were abandoned."""
        return int(not self.abandoned), *self.written


def file_name(round_: int, epoch: int | None, tag: str) -> str:
    """Name of a checkpoint's file."""
    position = "" if epoch is None else f"-epoch-{epoch:05d}"
    return f"round-{round_:06d}{position}{f'-{tag}' if tag else ''}.pt"


def read_index(folder: Path) -> dict[str, CheckpointEntry]:
    """Read the entries by file name; empty where none can be read."""
    try:
        return read_index_to_change(folder)
    except OSError:
        return {}


def read_index_to_change(folder: Path) -> dict[str, CheckpointEntry]:
    """Read the entries by file name; empty where there is no index, or a damaged one.

    Raises:
        OSError: the disk refuses; with an empty index in its place, abandoned files would count again.
    """
    try:
        return read_record(folder / INDEX_FILE, dict[str, CheckpointEntry])
    except (FileNotFoundError, WireError):
        return {}


def write_index(folder: Path, index: dict[str, CheckpointEntry]) -> None:
    """Raises OSError where the disk refuses."""
    replace_file(folder / INDEX_FILE, msgspec.json.encode(index))


def list_checkpoints(folder: Path) -> list[CheckpointFile]:
    """All but the best: abandoned ones, then the others, each the oldest first."""
    index, found = read_index(folder), []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.match(path.name)
        if match is None:
            continue
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            continue  # a live daemon has just deleted it
        entry = index.get(path.name, CheckpointEntry(number=0))
        epoch = int(match[2]) if match[2] else None
        found.append(
            CheckpointFile(
                path=path,
                round=int(match[1]),
                epoch=epoch,
                tag=match[3] or "",
                accuracy=entry.accuracy,
                bytes=size,
                number=entry.number,
                abandoned=entry.abandoned,
            )
        )
    return sorted(found, key=lambda file: file.order)


def best_checkpoint(folder: Path) -> CheckpointFile | None:
    """The one with the best mean return, which stays beside the others."""
    path = folder / BEST_FILE
    if not path.exists():
        return None
    entry = read_index(folder).get(BEST_FILE, CheckpointEntry(number=0))
    same = [file for file in list_checkpoints(folder) if _is_same_file(file.path, path)]
    round_ = same[0].round if same else None
    return CheckpointFile(path, round_, None, "best", entry.accuracy, path.stat().st_size, entry.number)


def _is_same_file(path: Path, other: Path) -> bool:
    """True if two paths are one file; False where a live daemon has just deleted `path`."""
    try:
        return path.samefile(other)
    except FileNotFoundError:
        return False


def find_checkpoint(folder: Path, wanted: str) -> Path:
    """A checkpoint by `best`, its tag (the newest with it) or its file.

    Raises:
        CheckpointError: there is none; the message names those there are.
    """
    files = list_checkpoints(folder)
    best = best_checkpoint(folder)
    if wanted in ("best", BEST_FILE) and best is not None:
        return best.path
    tagged = [file.path for file in files if file.tag == wanted or file.path.name == wanted]
    if tagged:
        return tagged[-1]
    path = Path(wanted).expanduser()
    if path.suffix == ".pt" and path.is_file():
        return path.absolute()
    there = [file.tag or file.path.name for file in files] + (["best"] if best else [])
    listed = f"there are {', '.join(there)}" if there else "there is none"
    raise CheckpointError(f"no checkpoint {wanted} in {folder}; {listed}")

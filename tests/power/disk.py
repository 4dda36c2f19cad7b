"""What a disk would hold that lost its power, from the record of what a process did to its files.

POSIX promises little, and this disk keeps no more of it: what was written to a file is there if an fsync of
the file that began afterwards has ended well; a name that was made, moved or removed, if an fsync of its
folder has. Of what came later a beginning may be there as well, as far as chance has it: of the names in
their order, of each file's bytes in theirs, or its size without its bytes. (A disk that keeps a later byte
and not an earlier one of the same file is not imitated.)
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("recorder.c")
MAKE, WRITE, CUT, RENAME, REMOVE, FOLDER, LINK, SYNC, SYNCED = range(1, 10)
_HEAD = struct.Struct("<5Q")
_NAMING = frozenset({MAKE, RENAME, REMOVE, FOLDER, LINK})


def compiler() -> str | None:
    """The C compiler's path; None where there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build_recorder(folder: Path) -> Path:
    """The library to preload, built into a folder."""
    library = folder / "recorder.so"
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC")
    subprocess.run([str(compiler()), *flags, str(SOURCE), "-o", library, "-ldl", "-pthread"], check=True)
    return library


def recording(library: Path, root: Path, record: Path, sync_ms: int = 0) -> dict[str, str]:
    """Variables of the environment with which a process records what it does under `root`.

    Args:
        sync_ms: milliseconds that an fdatasync takes longer; an fsync a tenth.
    """
    names = {"LD_PRELOAD": str(library), "DISK_ROOT": str(root), "DISK_RECORD": str(record)}
    return names | {"DISK_SYNC_MS": str(sync_ms)}


@dataclass(frozen=True)
class Step:
    """One thing that was done: of these kinds, those above."""

    kind: int
    file: int
    at: int
    """Offset, size, or of a sync the thread that asked for it."""
    data: bytes
    ns: int

    @property
    def paths(self) -> list[str]:
        return self.data.decode().split("\0")[:-1]


def read_steps(record: Path) -> list[Step]:
    """All whole steps of a record."""
    content, at, steps = record.read_bytes(), 0, []
    while at + _HEAD.size <= len(content):
        kind, file, offset, length, ns = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        if at + length > len(content):
            break
        steps.append(Step(kind, file, offset, content[at : at + length], ns))
        at += length
    return steps


@dataclass
class _File:
    content: bytes = b""
    """At the beginning, all of it on the disk."""
    steps: list[Step] = field(default_factory=list)
    num_synced: int = 0
    asked: dict[int, int] = field(default_factory=dict)
    """By thread that syncs: how many steps there were when it began."""

    def read(self, count: int) -> bytearray:
        """The content after so many steps."""
        content = bytearray(self.content)
        for step in self.steps[:count]:
            _do(content, step)
        return content


def _do(content: bytearray, step: Step) -> None:
    end = step.at if step.kind == CUT else step.at + len(step.data)
    content.extend(bytes(max(0, end - len(content))))
    if step.kind == CUT:
        del content[step.at :]
    else:
        content[step.at : end] = step.data


class ForgetfulDisk:
    """The files under a folder; `base` is taken when it is made, and counts as on the disk.

    Args:
        root: the folder, of which nobody records anything yet.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[int, _File] = {}
        """By a number of our own: the system gives that of a removed file to another."""
        self._numbers: dict[int, int] = {}
        """Ours, by the system's."""
        self._names: dict[str, int] = {}
        """Files by path; a folder has 0."""
        self._inodes: dict[int, str] = {root.stat().st_ino: str(root)}
        """Paths of folders."""
        self._pending: list[tuple[Step, int]] = []
        """Changes of names that no sync has brought to the disk, and the files' numbers."""
        self._now: dict[str, int] = {}
        self._done: list[tuple[Step, int]] = []
        for path in sorted(root.rglob("*")):
            number = path.stat().st_ino
            if path.is_dir():
                self._inodes[number], self._names[str(path)] = str(path), 0
            elif path.is_file():
                if number not in self._numbers:
                    self._add(number).content = path.read_bytes()
                self._names[str(path)] = self._numbers[number]
        self._now = dict(self._names)

    def _add(self, inode: int) -> _File:
        number = self._numbers[inode] = len(self._files) + 1
        self._files[number] = _File()
        return self._files[number]

    def copy(self) -> ForgetfulDisk:
        """The same, to go on from more than once."""
        return copy.deepcopy(self)

    def take(self, steps: list[Step]) -> None:
        """Go on by these steps."""
        for step in steps:
            if step.kind in _NAMING:
                self._rename(step)
            elif step.kind in (SYNC, SYNCED) and step.file in self._inodes:
                if step.kind == SYNCED:
                    self._sync_folder(self._inodes[step.file])
            else:
                file = self._files[self._numbers[step.file]]
                if step.kind == SYNC:
                    file.asked[step.at] = len(file.steps)
                elif step.kind == SYNCED:
                    file.num_synced = max(file.num_synced, file.asked.pop(step.at))
                else:
                    file.steps.append(step)

    def _rename(self, step: Step) -> None:
        number = 0
        if step.kind == MAKE:
            self._add(step.file)
            number = self._numbers[step.file]
        elif step.kind == FOLDER:
            self._inodes[step.file] = step.paths[0]
        else:
            number = self._now.get(step.paths[0], 0)
        _name(self._now, step, number)
        self._pending.append((step, number))

    def _sync_folder(self, path: str) -> None:
        """What was done in a folder is on the disk, and what was done before in others that it moved from."""
        folders, kept = {path}, []
        for step, number in reversed(self._pending):
            touched = {os.path.dirname(each) for each in step.paths}
            if touched & folders:
                folders |= touched
                self._done.append((step, number))
            else:
                kept.append((step, number))
        self._pending = kept[::-1]

    def written(self) -> Iterator[tuple[str, bytes]]:
        """All files as a process sees them that lives: (path, content)."""
        for path, number in self._now.items():
            if number:
                yield path, bytes(self._files[number].read(len(self._files[number].steps)))

    def lose_power(self, rng: random.Random | None) -> None:
        """Make the folder what the disk would hold.

        Args:
            rng: decides what of that which was not synced is there; None = nothing of it.
        """
        ever = {id(step) for step, _ in self._done}
        ever |= {id(step) for step, _ in self._pending[: _some(len(self._pending), rng)]}
        names = dict(self._names)
        order = sorted([*self._done, *self._pending], key=lambda pair: pair[0].ns)
        for step, number in order:
            if id(step) in ever:
                _name(names, step, number)
        contents = {number: self._left_of(file, rng) for number, file in self._files.items()}
        for child in self.root.iterdir():
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
        for path, number in sorted(names.items()):
            if not Path(path).parent.is_dir():
                continue  # its folder is not on the disk
            if number == 0:
                os.mkdir(path, 0o700)
            else:
                with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                    file.write(contents[number])

    @staticmethod
    def _left_of(file: _File, rng: random.Random | None) -> bytes:
        count = file.num_synced + _some(len(file.steps) - file.num_synced, rng)
        content = file.read(count)
        if rng and count < len(file.steps) and file.steps[count].kind == WRITE:  # a part of the next write
            step = file.steps[count]
            part = step.data[: rng.randint(0, len(step.data))]
            if rng.random() < 0.3:
                part = bytes(len(part))  # its size, and not its bytes
            _do(content, Step(WRITE, step.file, step.at, part, step.ns))
        return bytes(content)


def _some(most: int, rng: random.Random | None) -> int:
    return rng.choice((0, rng.randint(0, most), most)) if rng else 0


def _name(names: dict[str, int], step: Step, number: int) -> None:
    """Change names as a step did."""
    first, *second = step.paths
    if step.kind == REMOVE:
        names.pop(first, None)
    elif step.kind == RENAME:
        below = {path: each for path, each in names.items() if path == first or path.startswith(first + "/")}
        for path, each in below.items():
            del names[path]
            names[second[0] + path[len(first) :]] = each
    else:
        names[second[0] if step.kind == LINK else first] = number

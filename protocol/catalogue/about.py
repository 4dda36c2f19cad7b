"""What users write about a run: `about.json` in its folder, beside what the run says of itself."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from esper_overwatch.protocol.codec.text import is_utf8
from esper_overwatch.protocol.errors import EsperError, FolderError, WireError
from esper_overwatch.protocol.runs import IDENTITY_FILE
from esper_overwatch.protocol.storage.folders import write_atomically
from esper_overwatch.protocol.storage.records import read_record

ABOUT_FILE = "about.json"
MAX_TAG_CHARACTERS = 64


class BadTag(EsperError):
    """Not a text that can be a tag, a note or a project."""

    exit_code = 2


class RunAbout(Struct, frozen=True, kw_only=True):
    """`about.json`: changes to what the run says of itself, so that a later boot's own tags count, too."""

    added: tuple[str, ...] = ()
    """Tags, in the order in which they were given."""
    removed: tuple[str, ...] = ()
    """Tags of the run's own that it is not to have."""
    notes: str | None = None
    """In place of the run's own; None = those."""
    project: str = ""
    parent: str = ""
    """Name of the sweep or comparison that it is a part of."""

    def tags(self, own: Iterable[str]) -> list[str]:
        """All tags, each once: those of the run's own that are left, then those that were added."""
        return [tag for tag in dict.fromkeys([*own, *self.added]) if tag not in self.removed]

    def tagged(self, add: Iterable[str], remove: Iterable[str]) -> RunAbout:
        """With more tags, and without others.

        Raises:
            BadTag: a text cannot be a tag.
        """
        add, remove = [_check_tag(tag) for tag in add], [_check_tag(tag) for tag in remove]
        added = [tag for tag in dict.fromkeys([*self.added, *add]) if tag not in remove]
        removed = [tag for tag in dict.fromkeys([*self.removed, *remove]) if tag not in add]
        return msgspec.structs.replace(self, added=tuple(added), removed=tuple(removed))


def _check_tag(tag: str) -> str:
    if not 0 < len(tag) <= MAX_TAG_CHARACTERS or not tag.isprintable():
        raise BadTag(f"{tag!r} is not a tag: 1 to {MAX_TAG_CHARACTERS} characters, none a control character")
    return tag


def read_about(folder: Path) -> RunAbout:
    """What users have written about the run in `folder`; nothing where the file is missing or damaged."""
    try:
        return read_record(folder / ABOUT_FILE, RunAbout)
    except (OSError, WireError):
        return RunAbout()


def edit_about(folder: Path, change: Callable[[RunAbout], RunAbout]) -> RunAbout:
    """Change what is written about a run, live or not; two at a time wait for one another.

    Args:
        folder: of the run.
        change: gives the new text for the old.

    Raises:
        BadTag: a text is not UTF-8.
        FolderError: the folder cannot be written; what was there is untouched.
    """
    with _one_at_a_time(folder):
        before = read_about(folder)
        about = change(before)
        texts = (*about.added, *about.removed, about.notes or "", about.project, about.parent)
        if not all(map(is_utf8, texts)):
            raise BadTag("what is written about a run must be UTF-8")
        if about != before:
            write_atomically(folder / ABOUT_FILE, msgspec.json.encode(about))
    return about


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold the file of the run's identity, which is never replaced; the run's own lock is the daemon's."""
    path = folder / IDENTITY_FILE
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)
    except OSError as error:
        raise FolderError(f"cannot write about the run in {folder}: {error.strerror}") from None

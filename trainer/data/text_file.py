"""A text file as pieces of characters, so that one of any size needs little memory."""

from __future__ import annotations

import codecs
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from .dataset import DataError
from .files import blocks

_BOM = codecs.BOM_UTF8


@dataclass(frozen=True)
class TextSize:
    """Sizes of a text that are needed before it is divided."""

    characters: int
    sha256: str
    """SHA-256 of the unpacked bytes."""


class TextFile:
    """UTF-8, gzip or not, with any line ends, which become newlines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def measure(self) -> TextSize:
        """Read it once.

        Raises:
            DataError: it is missing, unreadable, empty or not UTF-8.
        """
        digest, count, blank = hashlib.sha256(), 0, True
        for piece in self._decoded(digest.update):
            count += len(piece)
            blank = blank and not piece.strip()
        if blank:
            raise DataError(f"{self.path}: is empty; name a file that has text in it")
        return TextSize(count, digest.hexdigest())

    def pieces(self) -> Iterator[str]:
        """About a million characters at a time, that end with a line or at least with a word.

        Raises:
            DataError: as `measure`.
        """
        rest = ""
        for piece in self._decoded():
            rest += piece
            cut = rest.rfind("\n") + 1 or rest.rfind(" ") + 1
            if cut:
                yield rest[:cut]
                rest = rest[cut:]
        if rest:
            yield rest

    def _decoded(self, watch: Callable[[bytes], None] | None = None) -> Iterator[str]:
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
        seen = 0
        try:
            for number, block in enumerate(blocks(self.path)):
                if watch is not None:
                    watch(block)
                mark = len(_BOM) if number == 0 and block.startswith(_BOM) else 0
                seen += len(block)
                yield decoder.decode(block[mark:])
            yield decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            at = seen - len(error.object) + error.start
            raise DataError(
                f"{self.path}: is not UTF-8 text: byte {error.object[error.start]:#04x} at position {at}; "
                "convert it, or save arrays as .npz"
            ) from None


def split_pieces(pieces: Iterable[str], sizes: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """Pieces of a text with the number of the part that they are of.

    Args:
        sizes: characters of each part, in the order of the text.
    """
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    at = 0
    for piece in pieces:
        for part, (start, stop) in enumerate(pairwise(edges)):
            inside = piece[max(0, start - at) : max(0, stop - at)]
            if inside:
                yield part, inside
        at += len(piece)

"""Texts as files of tokens: encoded once, then mapped into memory.

A text's tokens lie in `$ESPER_HOME/datasets/tokens`, in a folder named for its content and its tokenizer. So
the same text is not encoded twice, and another is not taken for it. The folder can be deleted at any time.
`tokenizer.json` in it is that of Hugging Face's `tokenizers`.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.storage.folders import esper_home, make_private
from esper_overwatch.protocol.storage.lock import Lock, LockHeld

from .text_file import TextFile, split_pieces
from .tokenizer import BpeTokenizer, CharacterTokenizer, Tokenizer, alphabet_of

_VERSION = 1
_PARTS = ("train", "val", "test")
_MAX_INT16 = 2**15 - 1
MAX_LEARNT = 100_000_000
"""Characters of the training part that byte pairs are learnt on, where it has more."""
LONG_TEXT = 50_000_000
"""Characters from which encoding them is worth a word."""

_PAUSE = 0.1
"""Seconds between two looks at whether another process has encoded the text."""

logger = logging.getLogger(__name__)


class _Contents(msgspec.Struct, frozen=True):
    """`contents.json`."""

    version: int
    tokens: tuple[int, int, int]
    """Tokens of each part."""
    alphabet: str
    """Characters of the training part."""


class EncodedText(msgspec.Struct, frozen=True):
    """Tokens of a text and what is known of them."""

    parts: tuple[Tensor, Tensor, Tensor]
    """Integers [M] to train on, to validate on and to test on."""
    counts: Tensor
    """int64 [V], how often each token is in the training part."""
    alphabet: str
    """Characters of the training part, sorted."""


def encode(pieces: Iterable[tuple[int, str]], tokenizer: Tokenizer, alphabet: str) -> EncodedText:
    """Encode a text in memory.

    Args:
        pieces: with the number of their part.
        alphabet: of its training part.
    """
    parts: list[list[NDArray[np.int64]]] = [[np.empty(0, dtype=np.int64)] for _ in _PARTS]
    for part, piece in pieces:
        parts[part].append(tokenizer.encode(piece))
    train, val, test = (torch.from_numpy(np.concatenate(part).astype(np.int32)) for part in parts)
    return EncodedText((train, val, test), torch.bincount(train, minlength=tokenizer.size), alphabet)


def encode_file(
    file: TextFile, sha256: str, sizes: tuple[int, int, int], vocabulary: int | None
) -> EncodedText:
    """Encode a file, or take what was encoded before.

    Args:
        sha256: of its content.
        sizes: characters of its parts.
        vocabulary: tokens of a byte-pair encoding; None: characters are tokens.

    Raises:
        DataError: the file cannot be read, or the encoding needs a library that is not there.
        FolderError: the tokens cannot be written.
    """
    name = f"{sha256[:32]}-{'characters' if vocabulary is None else f'bpe-{vocabulary}'}"
    home = esper_home() / "datasets" / "tokens"
    if (found := _read(home / name)) is not None:
        return found
    if sum(sizes) >= LONG_TEXT:
        logger.warning(
            "%s: %d million characters are encoded once, which takes minutes; kept in %s",
            file.path,
            sum(sizes) / 1e6,
            home / name,
        )
    make_private(home, advice="set ESPER_HOME to a folder of yours", readable=True)
    try:
        with _claimed(home / f"{name}.lock"):
            if (found := _read(home / name)) is not None:  # another process has made it meanwhile
                return found
            with tempfile.TemporaryDirectory(prefix=".", dir=home) as temporary:
                folder = Path(temporary) / name
                folder.mkdir()
                _write(folder, file, sizes, vocabulary)
                shutil.rmtree(home / name, ignore_errors=True)
                os.rename(folder, home / name)
            encoded = _read(home / name)
    except OSError as error:
        raise FolderError(f"{home}: tokens cannot be written: {error.strerror}; make room") from None
    if encoded is None:
        raise FolderError(f"{home / name}: was removed or damaged while it was read; start again")
    return encoded


@contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Keep other processes and threads from encoding the same; waits for one that does."""
    is_told = False
    while True:
        try:
            lock = Lock(path)
            break
        except LockHeld as held:
            if not is_told:
                logger.info("waiting for pid %d, which encodes the same text", held.holder.pid)
                is_told = True
            time.sleep(_PAUSE)
    try:
        yield
    finally:
        lock.release()


def _write(folder: Path, file: TextFile, sizes: tuple[int, int, int], vocabulary: int | None) -> None:
    def train_pieces(limit: int) -> Iterable[str]:
        return (piece for _, piece in split_pieces(file.pieces(), (min(limit, sizes[0]),)))

    alphabet = alphabet_of(train_pieces(sizes[0]))
    tokenizer: Tokenizer = CharacterTokenizer(alphabet)
    if vocabulary is not None:
        tokenizer = bpe = BpeTokenizer.train(train_pieces(MAX_LEARNT), vocabulary)
        (folder / "tokenizer.json").write_text(bpe.dumps(), encoding="utf-8")
    dtype = np.int16 if tokenizer.size <= _MAX_INT16 + 1 else np.int32
    counts = np.zeros(tokenizer.size, dtype=np.int64)
    written = [0, 0, 0]
    files = [(folder / part).open("wb") for part in _PARTS]
    try:
        for part, piece in split_pieces(file.pieces(), sizes):
            tokens = tokenizer.encode(piece)
            files[part].write(tokens.astype(dtype).tobytes())
            written[part] += len(tokens)
            if part == 0:
                counts += np.bincount(tokens, minlength=len(counts))
    finally:
        for opened in files:
            opened.close()
    counts.tofile(folder / "counts")
    contents = _Contents(_VERSION, (written[0], written[1], written[2]), alphabet)
    (folder / "contents.json").write_bytes(msgspec.json.encode(contents))


def _read(folder: Path) -> EncodedText | None:
    """Read a folder; None where it has nothing or not all of it."""
    try:
        contents = msgspec.json.decode((folder / "contents.json").read_bytes(), type=_Contents)
        counts = torch.from_numpy(np.fromfile(folder / "counts", dtype=np.int64))
        sizes = [(folder / part).stat().st_size for part in _PARTS]
    except (OSError, msgspec.DecodeError):
        return None
    dtype = torch.int16 if len(counts) <= _MAX_INT16 + 1 else torch.int32
    if contents.version != _VERSION or sizes != [count * dtype.itemsize for count in contents.tokens]:
        return None
    if int(counts.sum()) != contents.tokens[0]:
        return None
    train, val, test = (
        torch.from_file(str(folder / part), shared=False, size=count, dtype=dtype)
        for part, count in zip(_PARTS, contents.tokens, strict=True)
    )
    return EncodedText((train, val, test), counts, contents.alphabet)

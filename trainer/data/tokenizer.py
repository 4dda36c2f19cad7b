"""Tokenizers: what one token of a text stands for.

`CharacterTokenizer` has a token for each character of the training part and one for all others.
`BpeTokenizer` is byte-pair encoding (Sennrich et al., "Neural machine translation of rare words with subword
units", 2016), over bytes as in GPT-2, made and run by Hugging Face's `tokenizers`: no text is unknown to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HuggingFaceTokenizer

UNKNOWN = 0
"""The token of all characters that the training part does not have."""
END_OF_TEXT = "<|endoftext|>"
"""Divides the documents of a file, as in TinyStories; one token of a byte-pair encoding."""
_NUM_CODEPOINTS = 0x110000
_PIECE_CHARACTERS = 1 << 16
"""Characters that are encoded as one: the library works on several at once."""


class Tokenizer(Protocol):
    """Maps characters to tokens."""

    @property
    def size(self) -> int:
        """Number of tokens that there are."""
        ...

    def encode(self, text: str) -> NDArray[np.int64]:
        """The tokens of a text."""
        ...


class CharacterTokenizer:
    """A character's token is 1 + its place in the alphabet.

    Args:
        alphabet: sorted.
    """

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self._tokens = np.full(_NUM_CODEPOINTS, UNKNOWN)
        self._tokens[_codepoints(alphabet)] = np.arange(len(alphabet)) + UNKNOWN + 1

    @property
    def size(self) -> int:
        """Number of tokens that there are."""
        return len(self.alphabet) + 1

    def encode(self, text: str) -> NDArray[np.int64]:
        """Encode each character as one token."""
        tokens: NDArray[np.int64] = self._tokens[_codepoints(text)]
        return tokens


def alphabet_of(pieces: Iterable[str]) -> str:
    """All characters that occur, sorted."""
    found = np.zeros(_NUM_CODEPOINTS, dtype=bool)
    for piece in pieces:
        found[_codepoints(piece)] = True
    return "".join(map(chr, np.flatnonzero(found)))


def _codepoints(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


class BpeTokenizer:
    """Byte-pair encoding; `train` makes one.

    Args:
        inner: of the tokenizers.
    """

    def __init__(self, inner: HuggingFaceTokenizer) -> None:
        self._inner = inner

    @classmethod
    def train(cls, pieces: Iterable[str], vocabulary: int) -> Self:
        """Learn the most frequent pairs of a text, the same in every run.

        Args:
            vocabulary: most tokens; a short text has fewer pairs.

        Raises:
            ImportError: the library is not installed.
        """
        import tokenizers

        inner = tokenizers.Tokenizer(tokenizers.models.BPE())
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocabulary,
            min_frequency=2,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator((piece.replace(END_OF_TEXT, "") for piece in pieces), trainer)
        return cls(inner)

    def dumps(self) -> str:
        """As JSON."""
        return self._inner.to_str()

    @property
    def size(self) -> int:
        """Number of tokens that there are."""
        return self._inner.get_vocab_size()

    def encode(self, text: str) -> NDArray[np.int64]:
        """The tokens of a text, pieces of which are encoded by several threads."""
        encoded = self._inner.encode_batch_fast(list(_cut(text)))
        parts = [np.asarray(each.ids, dtype=np.int64) for each in encoded]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _cut(text: str) -> Iterator[str]:
    """Pieces that end with a line or at least with a word, where there is one."""
    start = 0
    while start < len(text):
        stop = start + _PIECE_CHARACTERS
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or text.rfind(" ", start, stop) + 1 or stop
        yield text[start:stop]
        start = stop

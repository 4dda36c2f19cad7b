"""A text to continue: each token, a character or several, is predicted from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from esper_overwatch.trainer.compute import rng

from .dataset import DataError
from .task import Part
from .text_file import TextFile, split_pieces
from .token_cache import EncodedText, encode, encode_file
from .tokenizer import UNKNOWN, CharacterTokenizer, alphabet_of

DEFAULT_TEXT_FILE = Path(__file__).with_name("texts") / "alice.txt"
"""Ships with the package; NOTICE beside it names its source."""
DEFAULT_CONTEXT = 32
HELD_OUT_SHARE = 0.1
"""Share of the characters to validate on, and of those to test on."""
MAX_VALIDATION, MAX_TEST = 8192, 65_536
"""Characters at most; validation ones are evaluated in every epoch."""
DEFAULT_VOCABULARY = 8192
MAX_IN_MEMORY = 8_000_000
"""Characters of a text that is encoded at every start, where characters are its tokens."""
Tokens = Literal["characters", "bpe"]


class TextOptions(NamedTuple):
    """Options of a text's tokens."""

    tokens: Tokens = "characters"
    vocabulary: int = DEFAULT_VOCABULARY
    """Tokens at most, where they are a byte-pair encoding."""


__all__ = ["UNKNOWN", "Text", "TextOptions", "Windows", "read_text"]


class Windows:
    """Stretches of a passage, each with the characters that follow its own as labels.

    Args:
        tokens: integers [M].
        context: T, tokens of a window.
        moving: a batch begins its windows anywhere, by its keys; else they stand side by side.
    """

    def __init__(self, tokens: Tensor, context: int, *, moving: bool = False) -> None:
        self._tokens, self._context, self.varies = tokens, context, moving
        self._places = torch.arange(context + 1, device=tokens.device)

    lengths: list[int] | None = None
    absent: Tensor | None = None

    def __len__(self) -> int:
        if self.varies:
            return len(self._tokens) // self._context - 1
        return (len(self._tokens) - 1) // self._context

    @property
    def answers(self) -> int:
        """Labels in all: one per token."""
        return len(self) * self._context

    @property
    def numbers(self) -> int:
        """Tokens of one window."""
        return self._context

    def batch(self, index_nB: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens int64 [B, n, T, 1] and labels [n, B*T] of windows `index_nB[i]` of env i."""
        start_nB = index_nB * self._context
        if self.varies:
            assert keys is not None, "windows that move need keys"
            start_nB = start_nB + rng.bits(keys, index_nB.shape[1]).remainder(self._context)
        window_nBT = self._tokens[start_nB.unsqueeze(-1) + self._places].long()
        return window_nBT[..., :-1].transpose(0, 1).unsqueeze(-1), window_nBT[..., 1:].flatten(1)

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Tokens int64 [B, 1, T, 1] and labels [B*T] from `start` to `stop`, or to the end."""
        index = torch.arange(start, min(stop, len(self)), device=self._tokens.device)
        window_BT = self._tokens[index.unsqueeze(-1) * self._context + self._places].long()
        return window_BT[:, None, :-1, None], window_BT[:, 1:].flatten()


@dataclass(frozen=True)
class Text:
    """The task of a text. Where characters are its tokens, those that it is not trained on share one."""

    name: str
    alphabet: str
    """Characters of the training part, sorted; as a token a character is 1 + its place."""
    context: int
    """T, tokens that a host sees at once."""
    train: Tensor
    """Integers [M], tokens, like `val` and `test`."""
    val: Tensor
    test: Tensor
    counts: Tensor
    """int64 [V], how often each token is in the training part."""
    characters: tuple[int, int, int]
    """Characters of the parts."""
    tokens: Tokens = "characters"
    kind: Literal["text"] = "text"

    @classmethod
    def of(cls, name: str, text: str, context: int = DEFAULT_CONTEXT) -> Text:
        """Divide a text into its beginning to train on, and its end to validate and to test on.

        Raises:
            DataError: it is too short for the context.
        """
        sizes = _sizes(name, len(text), context)
        alphabet = alphabet_of([text[: sizes[0]]])
        pieces = split_pieces([text], sizes)
        return cls._made(name, context, sizes, encode(pieces, CharacterTokenizer(alphabet), alphabet))

    @classmethod
    def of_file(cls, name: str, file: TextFile, context: int, options: TextOptions) -> Text:
        """`of`, for a file.

        Raises:
            DataError: it is missing, unreadable, empty, too short or not UTF-8, or a library is missing.
            FolderError: its tokens cannot be written.
        """
        size = file.measure()
        sizes = _sizes(name, size.characters, context)
        tokens, vocabulary = options
        if tokens == "characters" and size.characters <= MAX_IN_MEMORY:
            return cls.of(name, "".join(file.pieces()), context)
        encoded = encode_file(file, size.sha256, sizes, vocabulary if tokens == "bpe" else None)
        return cls._made(name, context, sizes, encoded, tokens)

    @classmethod
    def _made(
        cls,
        name: str,
        context: int,
        sizes: tuple[int, int, int],
        encoded: EncodedText,
        tokens: Tokens = "characters",
    ) -> Text:
        return cls(name, encoded.alphabet, context, *encoded.parts, encoded.counts, sizes, tokens)

    def with_context(self, context: int) -> Text:
        """View the text through windows of another width.

        Raises:
            DataError: it is too short for them.
        """
        shortest = min(len(self.val), len(self.test))
        if shortest < context + 1:
            unit = "characters" if self.tokens == "characters" else "tokens"
            raise DataError(
                f"{self.name}: its validation or test part has {shortest} {unit}, too few for "
                f"task.context = {context}; lower it below {shortest}, or use a longer text"
            )
        return replace(self, context=context)

    def to(self, device: torch.device | str) -> Text:
        """Move its tokens to a device."""
        return replace(self, train=self.train.to(device), val=self.val.to(device), test=self.test.to(device))

    @property
    def classes(self) -> int:
        """Number of tokens."""
        return len(self.counts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """1, T, 1."""
        return 1, self.context, 1

    @property
    def chance(self) -> float:
        """Accuracy of always predicting the most frequent token."""
        return float(self._frequencies().max())

    @property
    def perplexity(self) -> float:
        """exp of the loss of predicting each token by its frequency alone."""
        share = self._frequencies()
        return float(torch.exp(torch.special.entr(share).sum()))

    @property
    def tokens_per_character(self) -> float:
        """Tokens per character of the validation part. A loss times this is the loss per character, whatever
        the tokens."""
        return len(self.val) / self.characters[1]

    def _frequencies(self) -> Tensor:
        return self.counts.double() / self.counts.sum()

    def examples(self, part: Part, dtype: torch.dtype, augment: Sequence[str] = ()) -> Windows:  # noqa: ARG002
        """Windows of a part; tokens have no dtype but their own."""
        assert not augment, "a text cannot be cropped or mirrored"
        tokens: Tensor = getattr(self, part)
        return Windows(tokens, self.context, moving=part == "train")


def _sizes(name: str, total: int, context: int) -> tuple[int, int, int]:
    """Characters of the three parts.

    Raises:
        DataError: the text is too short for the context.
    """
    held_out = int(HELD_OUT_SHARE * total)
    val, test = min(held_out, MAX_VALIDATION), min(held_out, MAX_TEST)
    if held_out < context + 1:
        raise DataError(
            f"{name}: a text of {total} characters is too short for a context of {context}: "
            f"{round((context + 2) / HELD_OUT_SHARE)} are enough; use a longer text or lower task.context"
        )
    return total - val - test, val, test


def read_text(
    name: str,
    path: Path,
    context: int = DEFAULT_CONTEXT,
    options: TextOptions = TextOptions(),  # noqa: B008
) -> Text:
    """Read a text file; arguments and errors as `Text.of_file`."""
    try:
        return Text.of_file(name, TextFile(path), context, options)
    except DataError as error:
        message = str(error)
        raise DataError(message if str(path) in message else f"{path}: {message}") from None

"""A text to continue: each character is predicted from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from trainer.compute import rng

from .dataset import DataError
from .files import read
from .task import Part

DEFAULT_TEXT_FILE = Path(__file__).with_name("texts") / "alice.txt"
"""Ships with the package; NOTICE beside it names its source."""
DEFAULT_CONTEXT = 32
HELD_OUT_SHARE = 0.1
"""Share of the characters to validate on, and of those to test on."""
MAX_VALIDATION, MAX_TEST = 8192, 65_536
"""Characters at most; validation ones are evaluated in every epoch."""
UNKNOWN = 0
"""Stands for all characters that the training part does not have."""


class Windows:
    """Stretches of a passage, each with the characters that follow its own as labels.

    Args:
        tokens: int32 [M].
        context: T, characters of a window.
        moving: a batch begins its windows anywhere, by its keys; else they stand side by side.
    """

    def __init__(self, tokens: Tensor, context: int, *, moving: bool = False) -> None:
        self._tokens, self._context, self.varies = tokens, context, moving
        self._places = torch.arange(context + 1, device=tokens.device)

    def __len__(self) -> int:
        if self.varies:
            return len(self._tokens) // self._context - 1
        return (len(self._tokens) - 1) // self._context

    @property
    def answers(self) -> int:
        """Labels in all: one per character."""
        return len(self) * self._context

    @property
    def numbers(self) -> int:
        """Characters of one window."""
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
    """The task of a text. Its alphabet is that of the training part; other characters share one token."""

    name: str
    alphabet: str
    """Sorted; a character's token is 1 + its place."""
    context: int
    """T, characters that a host sees at once."""
    train: Tensor
    """int32 [M], tokens, like `val` and `test`."""
    val: Tensor
    test: Tensor
    kind: Literal["text"] = "text"

    @classmethod
    def of(cls, name: str, text: str, context: int = DEFAULT_CONTEXT) -> Text:
        """Divide a text into its beginning to train on, and its end to validate and to test on.

        Raises:
            DataError: it is too short for the context.
        """
        total = len(text)
        held_out = int(HELD_OUT_SHARE * total)
        val, test = min(held_out, MAX_VALIDATION), min(held_out, MAX_TEST)
        if held_out < context + 1:
            raise DataError(
                f"{name}: a text of {total} characters is too short for a context of {context}: "
                f"{round((context + 2) / HELD_OUT_SHARE)} are enough; use a longer text or lower task.context"
            )
        edge = total - val - test
        alphabet = "".join(sorted(set(text[:edge])))
        codes = {char: code for code, char in enumerate(alphabet, UNKNOWN + 1)}
        tokens = torch.tensor([codes.get(char, UNKNOWN) for char in text], dtype=torch.int32)
        return cls(name, alphabet, context, tokens[:edge], tokens[edge : edge + val], tokens[edge + val :])

    def with_context(self, context: int) -> Text:
        """The same text, seen through windows of another width.

        Raises:
            DataError: it is too short for them.
        """
        shortest = min(len(self.val), len(self.test))
        if shortest < context + 1:
            raise DataError(
                f"{self.name}: its validation or test part has {shortest} characters, too few for "
                f"task.context = {context}; lower it below {shortest}, or use a longer text"
            )
        return replace(self, context=context)

    def to(self, device: torch.device | str) -> Text:
        """The same text with its tokens on `device`."""
        return replace(self, train=self.train.to(device), val=self.val.to(device), test=self.test.to(device))

    @property
    def classes(self) -> int:
        """Number of tokens."""
        return len(self.alphabet) + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """1, T, 1."""
        return 1, self.context, 1

    @property
    def chance(self) -> float:
        """Accuracy of always predicting the most frequent character."""
        return float(self._frequencies().max())

    @property
    def perplexity(self) -> float:
        """exp of the loss of predicting each character by its frequency alone."""
        share = self._frequencies()
        return float(torch.exp(torch.special.entr(share).sum()))

    def _frequencies(self) -> Tensor:
        return torch.bincount(self.train, minlength=self.classes).double() / len(self.train)

    def examples(self, part: Part, dtype: torch.dtype, augment: Sequence[str] = ()) -> Windows:  # noqa: ARG002
        """Windows of a part; tokens have no dtype but their own."""
        assert not augment, "a text cannot be cropped or mirrored"
        tokens: Tensor = getattr(self, part)
        return Windows(tokens, self.context, moving=part == "train")


def read_text(name: str, path: Path, context: int = DEFAULT_CONTEXT) -> Text:
    """Read a text file: UTF-8, gzip or not, with any line ends.

    Raises:
        DataError: it is missing, unreadable, empty, too short or not UTF-8.
    """
    content = bytes(read(path))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not UTF-8 text: byte {content[error.start]:#04x} at position {error.start}; "
            "convert it, or name another file"
        ) from None
    if not text.strip():
        raise DataError(f"{path}: is empty; name a file that has text in it")
    try:
        return Text.of(name, text.replace("\r\n", "\n").replace("\r", "\n"), context)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None

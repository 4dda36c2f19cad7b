"""Events of a published training loop: values under names, by step. See docs/how-to/publishing.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from .registry import event


@event("scalar", "metric", keep=200)
@dataclass(kw_only=True)
class Scalars:
    """The numbers of one `log`: many names, one step."""

    step: int
    values: dict[str, float]
    """By name; `/` in a name makes groups (`env/3/loss`)."""


@event("histogram", "metric", keep=1, key=("name",), subjects=256)
@dataclass(kw_only=True)
class Histogram:
    """An array, as counts in bins of equal width from its least to its greatest finite value."""

    step: int
    name: str
    counts: list[int]
    """One per bin; empty where no value is finite."""
    size: int
    """Values in the array."""
    sampled: int
    """Values looked at; less than `size` where the array was larger than the bound."""
    nonfinite: int
    """Of those: NaN and infinities, which are in no bin and in none of the following."""
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    """Standard deviation of the values looked at (divided by their count)."""


@event("text", "log", keep=1, key=("name",), subjects=64)
@dataclass(kw_only=True)
class LoggedText:
    """A text under a name."""

    step: int
    name: str
    text: str


@event("table", "log", keep=1, key=("name",), subjects=32)
@dataclass(kw_only=True)
class LoggedTable:
    """A small table under a name."""

    step: int
    name: str
    columns: list[str]
    rows: list[list[Any]]
    """A number, a text, a bool or null for each column; the first rows of a large one."""
    size: int
    """Rows of the whole table."""


@dataclass(kw_only=True)
class ImagePreview:
    """A small copy of an image, in the 256 colours that terminals have."""

    width: int
    """Of the image itself, pixels."""
    height: int
    columns: int
    """Pixels in a row of the copy."""
    pixels: str
    """Base64 of zlib's data of a byte per pixel, row by row: the number of xterm's colour, 16 to 255."""


@event("artifact", "life", keep=1, key=("name",), subjects=256)
@dataclass(kw_only=True)
class Artifact:
    """A file that the loop has written; it stays where it is."""

    step: int
    name: str
    path: str
    """Absolute, on the machine of the run."""
    kind: str
    """`image` or `file`, or what the loop calls it."""
    bytes: int
    """Its size when it was logged."""
    digest: str | None = None
    """`blake2b:<64 hex digits>` of its content, where the loop asked for it."""
    preview: ImagePreview | None = None
    """Of an image, where the process of the run could read it."""


@dataclass(kw_only=True)
class MetricStatistics:
    """One metric over the run so far."""

    step: int
    """Of the newest value."""
    last: float
    count: int
    nonfinite: int = 0
    """NaN and infinities among the values: they are in none of the following."""
    min: float | None = None
    max: float | None = None
    mean: float | None = None

    def add(self, step: int, value: float) -> None:
        """Take in the next value."""
        self.step, self.last = step, value
        self.count += 1
        if not isfinite(value):
            self.nonfinite += 1
            return
        if self.min is None or self.max is None or self.mean is None:
            self.min = self.max = self.mean = value
            return
        if value < self.min:
            self.min = value
        if value > self.max:
            self.max = value
        self.mean += value / (n := self.count - self.nonfinite) - self.mean / n


@event("summary", "metric", keep=1)
@dataclass(kw_only=True)
class Summary:
    """The run so far, for who comes late: sent now and then, and as the last event of the stream."""

    step: int
    metrics: dict[str, MetricStatistics]
    """By name, of every number logged."""
    numbers: dict[str, float] = field(default_factory=dict)
    """Set by hand."""
    texts: dict[str, str] = field(default_factory=dict)
    """Set by hand."""

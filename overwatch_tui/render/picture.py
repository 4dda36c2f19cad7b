"""The preview of an image as lines: two pixels to a cell, one above the other, in 256 colours."""

from __future__ import annotations

import base64
import zlib
from functools import lru_cache

from .lines import Line, fit

MAX_PIXELS = 65_536
"""Of a preview; those of this version have 3,840."""
_LEVELS = (0, 95, 135, 175, 215, 255)
_FIRST, _FIRST_GREY = 16, 232


@lru_cache(maxsize=8)
def picture_lines(pixels: str, columns: int, width: int, height: int) -> tuple[Line, ...]:
    """Lines of a preview: as large as fits, and enlarged by whole numbers only.

    Args:
        pixels: of an `ImagePreview`.
        columns: its pixels in a row.
        width: cells that there is room for.
        height: lines that there is room for.

    Returns:
        No lines where the preview is damaged.
    """
    rows = _unpack(pixels, columns)
    if not rows or width < 1 or height < 1:
        return ()
    scale = min(width / columns, 2 * height / len(rows))
    scale = int(scale) if scale > 1 else scale
    shown = _resize(rows, max(1, int(columns * scale)), max(1, int(len(rows) * scale)))
    shown += [[_FIRST] * len(shown[0])] * (len(shown) % 2)
    return tuple(_line(top, bottom) for top, bottom in zip(shown[::2], shown[1::2], strict=True))


def _line(top: list[int], bottom: list[int]) -> Line:
    cells = zip(top, bottom, strict=True)
    return fit(tuple(("▀" if a != b else " ", f"pixels:{a}:{b}") for a, b in cells), len(top))


def _unpack(pixels: str, columns: int) -> list[list[int]]:
    """Numbers of colours, row by row; of what somebody else has published, too."""
    try:
        numbers = zlib.decompressobj().decompress(base64.b64decode(pixels), MAX_PIXELS)
    except (ValueError, zlib.error):
        return []
    if columns < 1 or min(numbers, default=0) < _FIRST:
        return []
    return [list(numbers[i : i + columns]) for i in range(0, len(numbers) - columns + 1, columns)]


def _resize(rows: list[list[int]], width: int, height: int) -> list[list[int]]:
    """Each pixel the mean of those that it stands for."""
    if (len(rows[0]), len(rows)) == (width, height):
        return rows
    bands = [[rows[i] for i in _span(y, height, len(rows))] for y in range(height)]
    spans = [_span(x, width, len(rows[0])) for x in range(width)]
    return [[_mean([row[x] for row in band for x in across]) for across in spans] for band in bands]


def _mean(numbers: list[int]) -> int:
    """The colour between others."""
    if numbers.count(numbers[0]) == len(numbers):
        return numbers[0]
    reds, greens, blues = zip(*map(_rgb, numbers), strict=True)
    return _nearest(*(sum(parts) // len(numbers) for parts in (reds, greens, blues)))


def _span(at: int, count: int, of: int) -> range:
    """Of so many pixels those that one of `count` stands for; at least one."""
    begin = at * of // count
    return range(begin, max(begin + 1, (at + 1) * of // count))


@lru_cache(maxsize=256)
def _rgb(number: int) -> tuple[int, int, int]:
    if number >= _FIRST_GREY:
        grey = 8 + 10 * (number - _FIRST_GREY)
        return grey, grey, grey
    number -= _FIRST
    return _LEVELS[number // 36], _LEVELS[number // 6 % 6], _LEVELS[number % 6]


@lru_cache(maxsize=4096)
def _nearest(red: int, green: int, blue: int) -> int:
    """The number of the colour that is nearest."""
    grey = min(23, max(0, (red + green + blue - 24 + 15) // 30))
    steps = [0 if part < 48 else 1 if part < 115 else (part - 35) // 40 for part in (red, green, blue)]
    cube = _FIRST + 36 * steps[0] + 6 * steps[1] + steps[2]

    def distance(number: int) -> int:
        return sum((a - b) ** 2 for a, b in zip(_rgb(number), (red, green, blue), strict=True))

    return min(cube, _FIRST_GREY + grey, key=distance)

"""Text from outside, made fit for a terminal: nothing in it steers the terminal or forges a line.

Names of clients, marks, reasons and messages are what somebody else has sent. Whoever prints them, prints
what these functions make of them: C0, C1 and DEL, bidirectional controls, line breaks and lone surrogates are
not printable in the sense of `str.isprintable`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_NARROW = re.compile("[ -~\u2500-\u259f\u2800-\u28ff]*")
"""Characters of one column: ASCII, lines and blocks, braille; most of a screen."""


def is_utf8(text: str) -> bool:
    """True if a text from the system can be written as UTF-8, that is, if its bytes were UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean_text(text: str) -> str:
    r"""Put text in one line and escape unprintable characters, for example as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def clean_lines(text: str, indent: str = "    ") -> str:
    """Clean each line and indent those after the first, so that none passes for a new record."""
    return f"\n{indent}".join(map(clean_text, text.split("\n")))


@lru_cache(maxsize=2048)
def clean_cells(text: str) -> str:
    """Replace by `?` what does not take one column: unprintable, combining and double-width characters."""
    if _NARROW.fullmatch(text):
        return text
    return "".join(c if _is_narrow(c) else "?" for c in text)


def _is_narrow(character: str) -> bool:
    return (
        character.isprintable()
        and not unicodedata.combining(character)
        and unicodedata.east_asian_width(character) not in "WF"
    )


def escape_json(document: str) -> str:
    r"""Escape unprintable characters in the strings of a JSON document, for example as `\u009b`.

    Line breaks are left: inside a string JSON has them as escapes already.
    """
    if document.isprintable():
        return document
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in document)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

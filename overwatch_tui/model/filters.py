"""Filters of lists: a small language over the fields of their rows.

    acc<60 st:roll drift>0.5 r0c1:conv -log stall

Every term has to hold. `FIELD<VALUE`, `<=`, `>`, `>=`, `=` compare numbers; `FIELD:TEXT` asks whether the
field contains the text, case aside, `*` standing for anything; a bare word may be in any field; `-` in front
of a term turns it round. A number that was not measured passes no comparison, and no turned one either.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from fnmatch import translate
from functools import lru_cache
from math import isnan
from typing import NamedTuple

from esper_overwatch.protocol.errors import EsperError

FieldValue = str | float | None
Fields = Mapping[str, FieldValue]

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
_TERM = re.compile(r"(?P<turned>-?)(?:(?P<field>[A-Za-z_][\w./]*)(?P<sign><=|>=|<|>|=|:))?(?P<value>.*)")


class FilterError(EsperError):
    """A filter that cannot be understood."""


class Term(NamedTuple):
    """One condition."""

    field: str
    """Empty = any."""
    sign: str
    """A comparison, or `:` for text."""
    value: str
    is_turned: bool

    def holds(self, row: Fields) -> bool:
        if self.sign == ":":
            return self._is_in_text(row) is not self.is_turned
        value = row.get(self.field)
        if not isinstance(value, float | int) or isnan(value):
            return False
        return _COMPARISONS[self.sign](value, float(self.value)) is not self.is_turned

    def _is_in_text(self, row: Fields) -> bool:
        wanted = _pattern(self.value)
        texts = row.values() if not self.field else [row.get(self.field)]
        return any(wanted.match(_text(value)) is not None for value in texts)


class Filter(NamedTuple):
    """Conditions, and how they were written."""

    text: str
    terms: tuple[Term, ...]

    def passes(self, row: Fields) -> bool:
        return all(term.holds(row) for term in self.terms)


def parse_filter(text: str, fields: Collection[str]) -> Filter | None:
    """Understand a filter; None where the text is empty.

    Raises:
        FilterError: a field does not exist, or a number is missing.
    """
    terms = tuple(_term(word, fields) for word in text.split())
    return Filter(" ".join(text.split()), terms) if terms else None


def _term(word: str, fields: Collection[str]) -> Term:
    found = _TERM.fullmatch(word)
    assert found is not None
    field, sign, value = found["field"] or "", found["sign"] or ":", found["value"]
    if field and field not in fields:
        raise FilterError(f"{field} is not a field here; there are {' '.join(fields)}")
    if not value:
        raise FilterError(f"{word}: a {'text' if sign == ':' else 'number'} is missing")
    if sign != ":":
        try:
            float(value)
        except ValueError:
            raise FilterError(f"{word}: {value} is not a number; {field}:{value} asks for text") from None
    return Term(field, sign, value, bool(found["turned"]))


@lru_cache(maxsize=64)
def _pattern(value: str) -> re.Pattern[str]:
    escaped = re.sub(r"[?\[\]]", lambda m: f"[{m[0]}]", value)
    return re.compile(translate(f"*{escaped}*"), re.IGNORECASE)


def _text(value: FieldValue) -> str:
    if value is None:
        return "--"
    return value if isinstance(value, str) else f"{value:g}"

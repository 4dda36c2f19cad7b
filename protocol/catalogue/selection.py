"""SQL over the catalogue: `config.lr < 0.01 AND summary.loss < 1 AND 'baseline' IN tags`.

The columns are those of `COLUMNS`. An option or a last value is `config.NAME` or `summary.NAME`, nested ones
as `config.ppo.clip`, and names that are no words in quotes: `summary."train/loss"`. Times are texts in UTC,
so that `created > '2026-11-01'` is meant as it reads.
"""

from __future__ import annotations

import difflib
import functools
import re
import sqlite3
from collections.abc import Sequence
from math import inf
from typing import Any

import msgspec
from msgspec import Struct

from esper_overwatch.protocol.errors import EsperError

COLUMNS = {
    "name": "TEXT",
    "id": "TEXT",
    "kind": "TEXT",
    "live": "BOOLEAN",
    "pid": "INTEGER",
    "state": "TEXT",
    "stopped_by": "TEXT",
    "created": "TIME",
    "ended": "TIME",
    "tags": "JSON",
    "notes": "TEXT",
    "project": "TEXT",
    "parent": "TEXT",
    "config": "JSON",
    "summary": "JSON",
    "commit": "TEXT",
    "dirty": "BOOLEAN",
    "bytes": "INTEGER",
    "damage": "TEXT",
}
"""Columns of `runs`, and what each holds; JSON ones are a list or an object of names and values."""
_WORDS = {"NaN": None, "Infinity": inf, "-Infinity": -inf}
"""Numbers that JSON lacks, as SQL has them."""
_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*')
    |(?P<tags>\bIN\s+tags\b)
    |\b(?P<section>config|summary)(?P<path>(?:\.(?:[A-Za-z_]\w*|"(?:[^"]|"")*"))+)
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<word>[A-Za-z_]\w*)""",
    re.VERBOSE | re.IGNORECASE,
)
_PART = re.compile(r'\.(?:(\w+)|"((?:[^"]|"")*)")')
_SORT = re.compile(r"(?P<column>.*?)(?:\s+(?P<order>ASC|DESC))?", re.IGNORECASE | re.DOTALL)
_TIME = "strftime('%Y-%m-%d %H:%M:%S', {0} / 1000000, 'unixepoch')"


class BadSelection(EsperError):
    """What was asked of the catalogue is no SQL, or names what there is not."""

    exit_code = 2


class Selection(Struct, frozen=True, kw_only=True):
    """What to show of which runs; everything is SQL as the module describes it."""

    columns: tuple[str, ...] = ("name",)
    where: str = ""
    """Empty = all runs."""
    sort: str = ""
    """A column, and DESC where the largest goes first; runs that lack it go last. Empty: the newest first."""

    def values(self) -> list[str]:
        """Options and last values that `where` and `sort` name, as they are written there."""
        found = [match for text in (self.where, self.sort) for match in _TOKEN.finditer(text)]
        return list(dict.fromkeys(match[0] for match in found if match["section"]))


class SelectedRuns(Struct, frozen=True):
    """The answer: columns and rows of Python's values."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


class _Translator:
    """Makes SQLite's SQL of what users write, and collects which values are named in it."""

    def __init__(self) -> None:
        self.named: set[tuple[str, str]] = set()

    def translate(self, text: str, function: str = "value_of") -> str:
        return _TOKEN.sub(functools.partial(self._token, function), text)

    def _token(self, function: str, match: re.Match[str]) -> str:
        if match["tags"]:
            return "IN (SELECT value FROM json_each(runs.tags))"
        if match["section"]:
            section, key = match["section"].lower(), _key(match["path"])
            self.named.add((section, key))
            return f"{function}({section}, {_literal(key)})"
        word = match["word"]
        return f'"{word.lower()}"' if word and word.lower() in COLUMNS else match[0]


def _key(path: str) -> str:
    return ".".join(word or quoted.replace('""', '"') for word, quoted in _PART.findall(path))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def select(connection: sqlite3.Connection, selection: Selection) -> SelectedRuns:
    """Ask the table `kept`, whose columns are named as in `COLUMNS`.

    Raises:
        BadSelection: it is no SQL, or names what there is not.
        sqlite3.DatabaseError: the file is damaged or cannot be used.
    """
    connection.create_function("value_of", 2, _value_of, deterministic=True)
    connection.create_function("json_of", 2, _json_of, deterministic=True)
    translator = _Translator()
    shown = [translator.translate(column, "json_of") for column in selection.columns]
    sort = _SORT.fullmatch(selection.sort.strip())
    assert sort is not None
    order = (
        f"({translator.translate(sort['column'])}) {sort['order'] or 'ASC'} NULLS LAST, "
        if sort["column"]
        else ""
    )
    where = f"WHERE (\n{translator.translate(selection.where)}\n)" if selection.where.strip() else ""
    own = ", ".join(
        (_TIME if kind == "TIME" else "{0}").format(f'"{name}"') + f' AS "{name}"'
        for name, kind in COLUMNS.items()
    )
    sql = f"""WITH runs AS (SELECT {own}, created AS created_ FROM kept)
        SELECT {", ".join(shown)} FROM runs {where} ORDER BY {order}created_ DESC"""
    try:
        _check_named(connection, translator.named)
        rows = connection.execute(sql).fetchall()
    except (sqlite3.Warning, sqlite3.ProgrammingError):
        raise BadSelection("give one condition, without a semicolon") from None
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_INTERRUPT):
            raise
        raise BadSelection(_explain(str(error))) from None
    return SelectedRuns(list(selection.columns), [_plain_row(selection.columns, row) for row in rows])


def _check_named(connection: sqlite3.Connection, named: set[tuple[str, str]]) -> None:
    """Refuse a name that no run has: it is mistyped.

    Raises:
        BadSelection: says what is like it.
    """
    known: dict[str, set[str]] = {}
    for section, key in sorted(named):
        if section not in known:
            rows = connection.execute(f"SELECT {section} FROM kept").fetchall()
            known[section] = {name for (text,) in rows for name in _decode(text)}
            if not rows:
                return
        if key not in known[section]:
            like = difflib.get_close_matches(key, known[section], 3) or sorted(known[section])[:8]
            names = ", ".join(f"{section}.{name}" for name in like)
            raise BadSelection(f"no run has {section}.{key}" + (f"; there are: {names}" if names else ""))


def _explain(message: str) -> str:
    if message.startswith("no such column"):
        name = message.rpartition(": ")[2]
        return f"no column {name}; there are: {', '.join(COLUMNS)}, config.OPTION, summary.NAME"
    if message == "interrupted":
        return "the condition takes too long; ask for less"
    return f"not a condition in SQL: {message}"


@functools.lru_cache(maxsize=256)
def _decode(text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _value_of(section: str, key: str) -> Any:
    """A value as SQL compares it: flags are 0 and 1, lists JSON, and NaN is NULL."""
    value = _decode(section).get(key)
    if isinstance(value, str):
        return _WORDS.get(value, value)
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value


def _json_of(section: str, key: str) -> str:
    return msgspec.json.encode(_decode(section).get(key)).decode()


def _plain_row(columns: Sequence[str], row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_plain(column.strip(), value) for column, value in zip(columns, row, strict=True))


def _plain(column: str, value: Any) -> Any:
    """A cell as Python has it, where the column is one of `COLUMNS` or a value."""
    match, kind = _TOKEN.fullmatch(column), COLUMNS.get(column.strip('"').lower())
    if value is not None and (kind == "JSON" or (match is not None and match["section"])):
        return msgspec.json.decode(value)
    return bool(value) if kind == "BOOLEAN" and value is not None else value

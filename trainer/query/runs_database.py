"""All runs of a home folder as tables in DuckDB: those of their journals, with a column `run`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from msgspec import json

from esper_overwatch.protocol.catalogue.catalogue import Catalogue
from esper_overwatch.protocol.catalogue.entry import RunEntry
from esper_overwatch.protocol.catalogue.selection import COLUMNS
from esper_overwatch.protocol.journal.damage import DamageReport
from esper_overwatch.protocol.runs import was_trained
from esper_overwatch.protocol.storage.folders import EVENTS_FILE, StrPath

from .database import QueryLimits, Result, SqlViews, report_damage
from .views import DESCRIPTIONS

try:
    import pyarrow

    from .event_views import NAMES, Boots
    from .part_cache import JournalTables, read_tables
    from .views import views
except ImportError:
    pass  # `SqlViews` says what is missing

_PER_RUN = ("scalars", "rounds", "seeds", "anomalies")
_NEEDS = {"seeds": ("slots", "seeds")}
"""Views that one is made of, itself the last."""
_TABLE = re.compile(r'\bevents\.(?:"(?P<quoted>[^"]+)"|(?P<bare>\w+))')
_TYPES = {"BOOLEAN": "bool", "INTEGER": "int64", "TIME": "timestamp[us]", "TEXT": "string", "JSON": "string"}
"""Arrow's type of each kind of column of the catalogue."""


class RunsDatabase(SqlViews):
    """The tables of all runs; journals are read when SQL first names a view of them.

    Args:
        home: instead of `$ESPER_HOME`.
        limits: None where whoever asks may wait.

    Attributes:
        damage: parts that could not be read, by the runs' names.

    Raises:
        MissingExtra: DuckDB or Arrow is not installed.
    """

    descriptions = MappingProxyType(
        {
            "runs": "each run: state, tags, configuration, last values, as `esper-daemon runs` has them",
            **{name: DESCRIPTIONS[name] for name in _PER_RUN},
        }
    )

    def __init__(self, home: StrPath | None = None, limits: QueryLimits | None = None) -> None:
        super().__init__(limits)
        self.damage: dict[str, DamageReport] = {}
        catalogue = Catalogue(home)
        self._entries = catalogue.entries()
        self._folders = [catalogue.folder(entry) for entry in self._entries if was_trained(entry.name, home)]
        self._read: list[tuple[JournalTables, Boots]] | None = None
        self._made = set[str]()
        self._create_runs()
        self._close_off()

    def ask(self, sql: str, max_rows: int | None = None) -> Result:
        words = {word.lower() for word in re.findall(r"\w+", sql)}
        for name in _PER_RUN:
            if name in words and name not in self._made:
                self._create(name)
        return super().ask(sql, max_rows)

    def _create_runs(self) -> None:
        types = {name: pyarrow.type_for_alias(_TYPES[kind]) for name, kind in COLUMNS.items()}
        types["tags"] = pyarrow.list_(pyarrow.string())
        schema = pyarrow.schema(types)
        self._connection.register("_runs", pyarrow.Table.from_pylist(list(map(_row, self._entries)), schema))
        self._connection.execute(
            "CREATE VIEW runs AS SELECT name AS run, * EXCLUDE (name) "
            "REPLACE (config::JSON AS config, summary::JSON AS summary) FROM _runs"
        )

    def _create(self, name: str) -> None:
        """Make a view of the runs' own ones, one after the other."""
        parts = []
        for i, (tables, boots) in enumerate(self._journals()):
            for needed in _NEEDS.get(name, (name,)):
                self._create_of_run(i, needed, tables, boots)
            run = self._folders[i].name if self._folders else ""
            parts.append(f"SELECT '{run}' AS run, * FROM run_{i}.{name}")
        self._connection.execute(f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(parts)}")
        self._made.add(name)

    def _journals(self) -> list[tuple[JournalTables, Boots]]:
        """What is read of each journal; an empty one where there is no run."""
        if self._read is None:
            self._read = []
            for folder in self._folders:
                tables = read_tables(folder / EVENTS_FILE, self._in_time)
                self.damage[folder.name] = report_damage(folder / EVENTS_FILE, tables)
                self._read.append((tables, Boots(tables.summaries)))
            self._read = self._read or [(JournalTables(), Boots([]))]
            for i, (_, boots) in enumerate(self._read):
                self._connection.execute(f"CREATE SCHEMA run_{i}")
                self._connection.execute(f"CREATE SCHEMA events_{i}")
                names = pyarrow.Table.from_pylist(boots.names(), schema=NAMES)
                self._connection.register(f"boots_{i}", names)
        return self._read

    def _create_of_run(self, i: int, name: str, tables: JournalTables, boots: Boots) -> None:
        """Make a view of one run, in a schema of its own, and the tables of events that it is made of."""
        told = 0
        if name == "seeds":
            self._create_table(i, "seed.ended", tables, boots)
            newest = f'SELECT coalesce(max(ctx_round), 0) FROM events_{i}."seed.ended"'
            ((told,),) = self._connection.sql(newest).fetchall()
        sql = views([], told)[name]
        for match in _TABLE.finditer(sql):
            self._create_table(i, match["quoted"] or match["bare"], tables, boots)
        sql = re.sub(r"\bevents\.", f"events_{i}.", sql)
        sql = re.sub(r"\bboots_\b", f"boots_{i}", sql)
        sql = re.sub(r"\b(FROM|JOIN) slots\b", rf"\1 run_{i}.slots", sql)
        self._connection.execute(f"CREATE VIEW run_{i}.{name} AS {sql}")

    def _create_table(self, i: int, table: str, tables: JournalTables, boots: Boots) -> None:
        rows = f"rows_{i}_{table}"
        if rows not in self._made:
            self._made.add(rows)
            self._connection.register(rows, tables.dataset(table))
            self._connection.execute(boots.view(table, schema=f"events_{i}", rows=rows))


def _row(entry: RunEntry) -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in COLUMNS}
    row |= {name: json.encode(row[name]).decode() for name in ("config", "summary")}
    for name in ("created", "ended"):
        row[name] = row[name] and datetime.fromtimestamp(row[name] / 1e6, tz=UTC).replace(tzinfo=None)
    return row

"""`esper-daemon query`: SQL over a run's journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from esper_overwatch.protocol.runs import find_run
from esper_overwatch.protocol.storage.folders import EVENTS_FILE

from .options import JSON, RUN
from .output import exit_on_damage, print_json, print_lines
from .run_argument import CommandAfterRun, RunArgument
from .tables import csv_lines, plain_value, table_lines

if TYPE_CHECKING:
    from esper_overwatch.trainer.query.database import Database
    from esper_overwatch.trainer.query.runs_database import RunsDatabase


class _QueryCommand(CommandAfterRun):
    """With `--all` there is no RUN before the SQL."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        return super().parse_args(ctx, ["", *args] if given.get("everything") else args)


@click.command(cls=_QueryCommand)
@RUN
@click.argument("sql", required=False)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Query all runs at once, without RUN: runs, scalars, rounds, seeds, anomalies, with a column run.",
)
@click.option("--views", "--tables", "tables", is_flag=True, help="List the views and their columns.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@JSON
def query(
    run: RunArgument, sql: str | None, everything: bool, tables: bool, as_csv: bool, as_json: bool
) -> None:
    """Query the journal of RUN, live or ended, in SQL (DuckDB); with --all, those of all runs."""
    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    run.run_remotely_if_addressed()
    if tables != (sql is None) or not (tables or everything or run.address):
        raise click.UsageError('give RUN and "SQL", or --views')
    database = _open(None if everything else run.address, everything=everything)
    if sql is not None:
        result = database.ask(sql)
        columns, rows = result.columns, result.rows
    else:
        columns = ["view", "column", "type", "a row for"]
        rows = [
            (view, name, kind, "" if i else database.descriptions[view])
            for view, of in database.columns.items()
            for i, (name, kind) in enumerate(of.items())
        ]
    if as_json and sql is None:
        print_json(database.columns)
    elif as_json:
        print_json([dict(zip(columns, map(plain_value, row), strict=True)) for row in rows])
    else:
        print_lines(csv_lines(columns, rows) if as_csv else table_lines(columns, rows))
    exit_on_damage(database.damage)


def _open(run: str | None, *, everything: bool) -> Database | RunsDatabase:
    if everything:
        from esper_overwatch.trainer.query.runs_database import RunsDatabase

        return RunsDatabase()
    from esper_overwatch.trainer.query.database import Database

    return Database(find_run(run).path / EVENTS_FILE)

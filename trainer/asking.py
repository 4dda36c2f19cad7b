"""What the subcommands that ask a live run share: arguments, the connection, how answers are shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from protocol import connect
from protocol.client import Client
from protocol.version import __version__

from .addressing import run_argument

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
RUN = run_argument
WAIT = click.option("--wait/--no-wait", default=True, help="Wait for the effect, or only for the answer.")


def show(value: dict[str, Any], as_json: bool) -> None:
    """A result, as one line of JSON or as a key and a value a line."""
    if as_json:
        click.echo(json.dumps(value, sort_keys=True))
        return
    for key, item in value.items():
        click.echo(f"{key:<16} {json.dumps(item) if isinstance(item, dict | list) else item}")


def ask(call: Callable[[Client], dict[str, Any]], run: str | None, as_json: bool) -> None:
    """Connect, call, show what came."""
    with connect(run, client=f"esper-daemon/{__version__}") as client:
        show(call(client), as_json)


def table(rows: list[dict[str, Any]], columns: dict[str, int], as_json: bool) -> None:
    """Rows of a list, as JSON or in columns.

    Args:
        columns: which fields, and how wide each is.
    """
    if as_json:
        click.echo(json.dumps(rows, sort_keys=True))
        return
    for row in ({name: name for name in columns}, *rows):
        words = ("--" if row[name] is None else str(row[name]) for name in columns)
        click.echo("  ".join(f"{word:<{width}}" for word, width in zip(words, columns.values(), strict=True)))

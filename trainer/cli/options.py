"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from .run_argument import required_run_argument, run_argument

_F = TypeVar("_F", bound=Callable[..., Any])

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
RUN = run_argument
REQUIRED_RUN = required_run_argument
WAIT = click.option("--wait/--no-wait", default=True, help="Wait for the effect, or only for the answer.")

TYPES = click.option("--type", "types", multiple=True, help="Only these event types.")


def config_options(command: _F) -> _F:
    """`--preset`, `--config` and `--set`: the sources of a configuration."""
    for decorate in (
        click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set one option; `options` lists them."
        ),
        click.option("--config", "file", type=click.Path(path_type=Path), help="Options from a TOML file."),
        click.option("--preset", metavar="NAME", help="Options from a preset; `presets` lists them."),
    ):
        command = decorate(command)
    return command

"""`esper-daemon data`: the registered datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from .options import JSON
from .output import print_json, print_lines, print_result

Row = dict[str, Any]


@click.command()
@click.argument("name", required=False)
@click.option(
    "--from", "folder", type=click.Path(path_type=Path), help="Register this text, .npz or folder as NAME."
)
@JSON
def data(name: str | None, folder: Path | None, as_json: bool) -> None:
    """List the datasets; with NAME, read that one and print its contents.

    With --from, its files are IDX (as MNIST's), the batches of CIFAR-10 or CIFAR-100, binary or Python, one
    .npz of numpy with x_train, y_train[, x_test, y_test], or any text in UTF-8.
    """
    if name is None and folder is not None:
        raise click.UsageError("--from needs a NAME for the dataset")
    if name is None:
        rows = list_datasets()
        if as_json:
            print_json(rows)
        else:
            print_lines(_as_lines(rows))
        return
    print_result(check_dataset(name) if folder is None else register_dataset(name, folder), as_json)


def list_datasets() -> list[Row]:
    """Every dataset that has a name."""
    from esper_overwatch.trainer.data import registry

    return [msgspec.to_builtins(entry) for entry in registry.list_datasets()]


def check_dataset(name: str) -> Row:
    """Read a dataset; returns its contents."""
    from esper_overwatch.trainer.data.registrations import DatasetContents
    from esper_overwatch.trainer.data.registry import load

    return _row(name, DatasetContents.of(load(name)))


def register_dataset(name: str, folder: Path) -> Row:
    """Register a folder's files; returns their contents."""
    from esper_overwatch.trainer.data.registry import register

    return _row(name, register(name, folder).holds)


def _as_lines(rows: list[Row]) -> list[str]:
    """One line per dataset."""
    from esper_overwatch.trainer.data.reduced import REDUCED_DATASETS
    from esper_overwatch.trainer.data.registrations import DatasetContents

    lines = []
    for row in rows:
        place = row["folder"] or ""
        if not row["ready"]:
            missing = f"{place} is gone" if place else "not here"
            source = REDUCED_DATASETS.get(row["name"], row["name"])
            place = f"{missing}; esper-daemon data {source} --from FOLDER"
        holds = str(msgspec.convert(row["holds"], DatasetContents)) if row["holds"] else ""
        lines.append(f"{row['name']:<16} {row['format']:<9} {place}  {holds}".rstrip())
    return lines


def _row(name: str, holds: Any) -> Row:
    from esper_overwatch.trainer.data import registry

    entry = next(entry for entry in registry.list_datasets() if entry.name == name)
    return {"name": name, "format": entry.format, "folder": entry.folder, **msgspec.to_builtins(holds)}

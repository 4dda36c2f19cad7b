"""Every field of the configuration has a reader."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from esper_overwatch.trainer.config import schema as config
from esper_overwatch.trainer.config.load import OPTIONS

TRAINER = Path(config.__file__).parents[1]


@cache
def attributes() -> list[tuple[set[str], set[str]]]:
    """For each module but those of the tree: words that it uses, and attributes that it reads."""
    found = []
    for path in sorted(TRAINER.rglob("*.py")):
        if path.parent.name == "config":
            continue
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        read = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
        found.append(({n.id for n in nodes if isinstance(n, ast.Name)} | read, read))
    return found


def is_read(key: str) -> bool:
    """Some module reads the last part of a key, and has its section in hand."""
    *sections, field = key.split(".")
    owners: set[str] = set()
    for section in sections:
        owners |= {section, f"{section.title()}Config", f"{section.upper()}Config"}
    return any(field in read and (not owners or not owners.isdisjoint(words)) for words, read in attributes())


@pytest.mark.parametrize("key", sorted(key for key in OPTIONS if not key.startswith("anomalies.")))
def test_each_field_is_read(key: str) -> None:
    """Those of `anomalies` are read together; `test_limits_of_each_check_are_an_option` moves each."""
    assert is_read(key)


def test_a_field_that_nobody_reads_would_be_found() -> None:
    assert not is_read("telemetry.shininess")
    assert not is_read("telemetry.momentum"), "read, but of another section"

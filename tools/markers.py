"""Which tests hold what, by their markers: for the pages made of them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def holders(marker: str) -> dict[Any, list[str]]:
    """Tests by the arguments of `@pytest.mark.<marker>(...)` on them, as `path::name`."""
    found: dict[Any, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for argument in _arguments(marker, node):
                    found[argument].append(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def _arguments(marker: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Any]:
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(attr=attr), args=arguments) if attr == marker:
                yield from (a.value for a in arguments if isinstance(a, ast.Constant))


def rows(words: Mapping[Any, str], held: Mapping[Any, list[str]]) -> list[str]:
    """A table's rows: name, words, tests; `**none**` where no test holds it."""
    return [
        f"| {name} | {what} | {'<br>'.join(f'`{test}`' for test in held.get(name, ())) or '**none**'} |"
        for name, what in words.items()
    ]

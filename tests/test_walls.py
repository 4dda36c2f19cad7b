"""Who may import whom: three packages with walls between them, and no circles inside one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "protocol": {"torch", "numpy", "textual", "trainer", "overwatch_tui"},
    "trainer": {"textual", "overwatch_tui"},
    "overwatch_tui": {"torch", "trainer"},
}


def modules(package: str) -> dict[str, Path]:
    """Dotted names of a package's modules."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, *, at_load: bool) -> Iterator[str]:
    """Absolute names that a module imports; `at_load` leaves out those inside functions and TYPE_CHECKING."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if at_load and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (above, node.module or "") if part)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        nodes.extend(ast.iter_child_nodes(node))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_walls(package: str) -> None:
    crossings = [
        f"{name} imports {target}"
        for name, path in modules(package).items()
        for target in imports(name, path, at_load=False)
        if target.split(".")[0] in FORBIDDEN[package]
    ]
    assert not crossings


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_circles(package: str) -> None:
    known = modules(package)
    graph = {
        name: {target for target in imports(name, path, at_load=True) if target in known and target != name}
        for name, path in known.items()
    }
    # A package's __init__ is loaded before its modules and may import them.
    for name in graph:
        graph[name] -= {parent for parent in known if name.startswith(parent + ".")}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"circle: {' -> '.join(error.args[1])}")

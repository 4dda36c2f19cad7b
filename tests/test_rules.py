"""Rules that the whole of the source keeps."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [p for folder in ("protocol", "trainer", "overwatch_tui") for p in (ROOT / folder).rglob("*.py")]
PRIVATE_TORCH = ROOT / "trainer/compute/torch_private.py"
"""The only module that may use what has no public name in torch."""


def test_the_linter_looks_for_unused_arguments_and_broad_exceptions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lint = project["tool"]["ruff"]["lint"]
    assert {"ARG", "BLE", "F"} <= set(lint["select"])
    assert not {"ARG", "BLE"} & {rule[:3] for rule in lint["ignore"]}
    for path in SOURCES:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "noqa: BLE" not in line, f"{path}: {line}"


def test_one_module_uses_private_torch_and_its_version_is_pinned() -> None:
    private = re.compile(r"\btorch(?:\.\w+)*\._(?!_version__)\w+|from torch[\w.]* import .*\b_\w+")
    assert private.search("from torch.utils import _pytree")
    assert private.search("from torch.utils._pytree import tree_leaves")
    assert not private.search("torch.__version__")
    for path in SOURCES:
        used = private.findall(path.read_text(encoding="utf-8"))
        assert bool(used) == (path == PRIVATE_TORCH), f"{path}: {used}"
    assert re.search(r"^torch==2\.\d+\.\d+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)


def test_no_gradient_goes_through_hooks() -> None:
    """With stacked tensors there are some thirty gradients for all hosts: nothing to be won by hooks."""
    for path in (ROOT / "trainer").rglob("*.py"):
        assert not re.search(r"\.register_\w*hook\(", path.read_text(encoding="utf-8")), path


def defined(tree: ast.Module) -> Iterator[str]:
    """Functions, classes and constants of a module; without those that a decorator hands to somebody."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.decorator_list or isinstance(node, ast.ClassDef):
                yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def used(tree: ast.Module) -> Iterator[str]:
    """Names that a module reads, and the words of its texts: types are found by name, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


@pytest.mark.slow
def test_each_name_of_a_module_is_used_somewhere() -> None:
    """Those in `protocol/integrations` are used by other people's loops, those of events by the wire."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
    read = {name for tree in trees.values() for name in used(tree)}
    door = ast.parse((ROOT / "esper_overwatch/__init__.py").read_text(encoding="utf-8"))
    doors = [door, *(tree for path, tree in trees.items() if path.name == "__init__.py")]
    read |= {name for tree in doors for name in imported(tree)}
    own = {path: tree for path, tree in trees.items() if path.parent.name not in ("integrations", "events")}
    unused = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in own.items()
        for name in defined(tree)
        if name not in read and not name.startswith("__")
    ]
    assert unused == []


def imported(tree: ast.Module) -> Iterator[str]:
    """Names that a package's door offers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)

"""Names and sizes that the whole of the source keeps; CONTRIBUTING.md gives the reasons."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocol", "trainer", "overwatch_tui")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_CONSTRUCTOR_PARAMETERS = 8
MAX_TEST_NAME_WORDS = 10
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
SHARED_CLASS_NAMES: dict[str, str] = {}
"""Public class names that two modules have, and why."""


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@functools.cache
def definitions(folder: str) -> dict[str, list[Definition]]:
    """Classes and functions by file, those inside others too; their bodies are dropped."""
    found = {}
    for path, text in sources(folder):
        found[path] = [node for node in ast.walk(ast.parse(text)) if isinstance(node, Definition)]
        for node in found[path]:
            node.body = []
    return found


def functions(*folders: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for folder in folders:
        for path, nodes in definitions(folder).items():
            yield from ((path, node) for node in nodes if not isinstance(node, ast.ClassDef))


def test_public_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path, nodes in definitions(package).items():
            for node in nodes:
                if isinstance(node, ast.ClassDef) and not node.col_offset and not node.name.startswith("_"):
                    homes[node.name].append(path)
    twice = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert twice.keys() == SHARED_CLASS_NAMES.keys(), twice


def test_files_and_functions_stay_short() -> None:
    everything = (*PACKAGES, "tools", "benchmarks", "tests")
    long = [path for path, text in sources(*everything) if text.count("\n") > MAX_FILE_LINES]
    long += [
        f"{path}:{function.name}"
        for path, function in functions(*everything)
        if function.end_lineno is not None and function.end_lineno - function.lineno >= MAX_FUNCTION_LINES
    ]
    assert not long


def test_constructors_take_few_parameters() -> None:
    many = [
        f"{path}:{function.lineno}"
        for path, function in functions(*PACKAGES)
        if function.name == "__init__"
        and len([*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]) - 1
        > MAX_CONSTRUCTOR_PARAMETERS
    ]
    assert not many


def test_test_names_are_short_enough_to_read() -> None:
    long = [
        f"{path}:{function.name}"
        for path, function in functions("tests")
        if function.name.startswith("test_") and function.name.count("_") > MAX_TEST_NAME_WORDS
    ]
    assert not long

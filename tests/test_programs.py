"""Programs that tests start from text: what they import is there, so that a move does not pass them by."""

from __future__ import annotations

import ast
import contextlib
import functools
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {"esper_overwatch", "tests", "tools", "benchmarks"}
Import = ast.Import | ast.ImportFrom


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Every string of a source with its line; what an f-string puts in is a 0."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
            yield node.lineno, "".join(parts)


def imports_of(text: str) -> list[Import]:
    """The imports of our packages in a text that is a program, or has lines of one."""
    if "import" not in text:
        return []
    programs: list[ast.Module] = []
    with contextlib.suppress(SyntaxError):
        programs = [ast.parse(textwrap.dedent(text))]
    for line in () if programs else text.splitlines():
        with contextlib.suppress(SyntaxError):
            programs.append(ast.parse(line.strip()))
    nodes = (node for program in programs for node in ast.walk(program))
    return [node for node in nodes if isinstance(node, Import) and modules_of(node)]


def modules_of(node: Import) -> list[str]:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
    return [name for name in names if name.partition(".")[0] in PACKAGES]


def file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()), None)


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """What a module binds, at its top or under a condition there."""
    found: set[str] = set()
    open_ = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while open_:
        node = open_.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, Import):
            found |= {one.asname or one.name.partition(".")[0] for one in node.names}
        else:
            found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            open_ += [child for child in ast.walk(node) if isinstance(child, ast.stmt) and child is not node]
    return frozenset(found)


def missing(node: Import) -> list[str]:
    """What an import names and is not there."""
    absent = [module for module in modules_of(node) if file_of(module) is None]
    if absent or isinstance(node, ast.Import):
        return absent
    module = node.module or ""
    path = file_of(module)
    assert path is not None
    names = [one.name for one in node.names if one.name != "*"]
    return [f"{module}.{n}" for n in names if n not in names_in(path) and file_of(f"{module}.{n}") is None]


def test_programs_in_strings_import_what_exists() -> None:
    seen, wrong = 0, []
    for path in sorted({*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}):
        for line, text in texts(path.read_text(encoding="utf-8")):
            for node in imports_of(text):
                seen += 1
                wrong += [f"{path.relative_to(ROOT)}:{line}: {name}" for name in missing(node)]
    assert not wrong, wrong
    assert seen > 20, "the programs of the tests were found"


def test_a_moved_name_in_a_program_is_found() -> None:
    gone = "from esper_overwatch.protocol.runs import RunFolder, NoSuchName\n"
    gone += "import esper_overwatch.protocol.no_such\n"
    assert [missing(node) for node in imports_of(gone)] == [
        ["esper_overwatch.protocol.runs.NoSuchName"],
        ["esper_overwatch.protocol.no_such"],
    ]
    half = "from esper_overwatch.protocol.gone import x\n{body} is no program\n"
    assert [missing(node) for node in imports_of(half)] == [["esper_overwatch.protocol.gone"]]
    assert not [name for node in imports_of("from tests.protocol import harness") for name in missing(node)]
    assert not imports_of("what comes from trainer is an import to the list")

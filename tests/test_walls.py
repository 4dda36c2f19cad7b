"""Who may import whom: between the three packages, and from room to room inside each.

Every import counts: at load, inside a function, under `TYPE_CHECKING`. docs/architecture.md has the picture.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PREFIX = "esper_overwatch."
FRAMEWORKS = {
    "protocol.integrations.pytorch": {"torch"},
    "protocol.integrations.keras": {"keras"},
    "protocol.integrations.lightning": {"lightning"},
    "protocol.integrations.hugging_face": {"transformers", "accelerate"},
    "protocol.integrations.stable_baselines3": {"stable_baselines3"},
    "protocol.integrations.torchrl": {"torchrl"},
}
"""Modules for a training framework, and what each may import of the packages of all."""
FORBIDDEN = {
    "protocol": {
        "numpy",
        "textual",
        "trainer",
        "overwatch_tui",
        "tools",
        "tests",
        "gymnasium",
        *(package for packages in FRAMEWORKS.values() for package in packages),
    },
    "trainer": {"textual", "overwatch_tui", "tools", "tests"},
    "overwatch_tui": {"torch", "numpy", "trainer", "tools", "tests"},
}
FLOORS: dict[str, list[set[str]]] = {
    "protocol": [
        {"version", "errors"},
        {"extras", "next_commands"},
        {"messages"},
        {"codec", "machine"},
        {"storage"},
        {"journal"},
        {"runs"},
        {"catalogue"},
        {"server", "client"},
        {"alerts"},
        {"publishing", "gateway"},
        {"integrations"},
    ],
    "trainer": [
        {"config", "plugins", "checkpoint_files"},
        {"compute", "measurements", "episode_table", "checkpoint"},
        {"data", "seeds"},
        {"policy", "reward"},
        {"hosts"},
        {"governor"},
        {"telemetry"},
        {"hooks"},
        {"episodes"},
        {"evaluation"},
        {"loop"},
        {"control"},
        {"ranks"},
        {"queue"},
        {"doctor", "metrics", "query", "sweep"},
        {"compare", "export", "mcp"},
        {"daemon"},
        {"cli"},
        {"__main__"},
    ],
    "overwatch_tui": [
        {"model", "keys", "hangup", "browser", "first_frame"},
        {"source"},
        {"render"},
        {"panels", "session", "start"},
        {"settings"},
        {"screens"},
        {"actions"},
        {"app"},
        {"watch"},
        {"cli"},
        {"__main__"},
    ],
}
"""The rooms of each package, floor by floor: a room may import what lies on the floors below it only."""
TRAINING = {
    "compute",
    "data",
    "seeds",
    "policy",
    "reward",
    "hosts",
    "measurements",
    "governor",
    "episodes",
    "episode_table",
    "evaluation",
    "loop",
}
KNOWN_TO_TRAINING = {
    "protocol.messages.vocabulary",
    "protocol.messages.thresholds",
    "protocol.errors",
    "protocol.machine.cgroup",
    "protocol.storage.folders",
    "protocol.storage.lock",
}
"""What trains knows names, limits, errors and files of the wire; no event, no socket, no journal."""


def modules(package: str) -> dict[str, Path]:
    """Dotted names of a package's modules."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {name: path for package in FLOORS for name, path in modules(package).items()}


@functools.cache
def imports(name: str) -> tuple[str, ...]:
    """Absolute names of what a module imports, anywhere in its source."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[str]:
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix(PREFIX) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(part for part in (above, node.module or "") if part)
            for alias in node.names:
                submodule = f"{base}.{alias.name}".removeprefix(PREFIX)
                yield submodule if submodule in MODULES else base.removeprefix(PREFIX)


def room(module: str) -> str:
    """The part of a package that a module belongs to; the package's own name for its `__init__`."""
    return module.split(".")[1] if "." in module else module


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_keep_their_walls(package: str) -> None:
    crossings = [
        f"{name} imports {target}"
        for name in modules(package)
        for target in imports(name)
        if target.split(".")[0] in FORBIDDEN[package] - FRAMEWORKS.get(name, set())
    ]
    assert not crossings


def test_no_source_imports_a_package_by_its_folder() -> None:
    folders = ("protocol", "trainer", "overwatch_tui", "tests", "tools", "benchmarks", "examples")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    suspects = re.compile(rf"^\s*(from|import.*)\s({'|'.join(FLOORS)})\b", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources
        if suspects.search(path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""] * (node.level == 0)
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if name.split(".")[0] in FLOORS
    ]
    assert len(sources) > 500
    assert not found


def test_importing_protocol_loads_no_framework() -> None:
    program = """
import sys
from esper_overwatch import connect, publish
heavy = {"torch", "numpy", "keras", "lightning", "transformers", "accelerate"}
heavy |= {"stable_baselines3", "gymnasium", "torchrl", "PIL"}
print(sorted(name for name in sys.modules if name.split(".")[0] in heavy or "integrations" in name))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("package", FLOORS)
def test_rooms_import_from_lower_floors_only(package: str) -> None:
    floor_of = {name: floor for floor, rooms in enumerate(FLOORS[package]) for name in rooms}
    inside = [name for name in modules(package) if "." in name]
    assert {room(name) for name in inside} == set(floor_of), "each room has its floor"
    assert len({room(name) for name in inside if MODULES[name].parent == ROOT / package}) <= 10
    climbing = [
        f"{name} imports {target}"
        for name in inside
        for target in imports(name)
        if target in MODULES and target.startswith(package + ".") and room(target) != room(name)
        if floor_of[room(target)] >= floor_of[room(name)]
    ]
    assert not climbing


def test_modules_import_each_other_in_no_circle() -> None:
    graph = {
        name: {
            target
            for target in imports(name)
            # A package's __init__ is loaded before its modules and may import them.
            if target in MODULES and target != name and not name.startswith(target + ".")
        }
        for name in MODULES
    }
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"circle: {' -> '.join(error.args[1])}")


def test_training_knows_no_event_and_no_socket() -> None:
    known = [
        f"{name} imports {target}"
        for name in modules("trainer")
        if room(name) in TRAINING
        for target in imports(name)
        if target.split(".")[0] == "protocol" and target not in KNOWN_TO_TRAINING
    ]
    assert not known


def test_daemon_is_imported_by_the_command_line_only() -> None:
    importers = {
        room(name)
        for name in modules("trainer")
        if room(name) != "daemon" and any(t.startswith("trainer.daemon") for t in imports(name))
    }
    assert importers == {"cli"}


def test_package_says_what_lives_in_it() -> None:
    for name, path in MODULES.items():
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), name

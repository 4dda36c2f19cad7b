"""Rules that the whole of the source keeps."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [p for folder in ("protocol", "trainer", "overwatch_tui") for p in (ROOT / folder).rglob("*.py")]
PRIVATE = {
    "trainer/hosts/optimizer.py": "torch._foreach_copy_",
    "trainer/telemetry/profiler.py": "torch._C._profiler",
    "trainer/telemetry/counters.py": "torch._guards torch._dynamo.utils",
    "trainer/compiled.py": "torch._dynamo.config torch._inductor.config",
    "trainer/ranks.py": "torch._C._distributed_c10d",
}
"""What of torch is used that has no public name; the pin in constraints.txt says which torch has it."""


@pytest.mark.finding("DT-03")
@pytest.mark.finding("EM-02")
def test_the_linter_looks_for_unused_arguments_and_broad_exceptions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lint = project["tool"]["ruff"]["lint"]
    assert {"ARG", "BLE", "F"} <= set(lint["select"])
    assert not {"ARG", "BLE"} & {rule[:3] for rule in lint["ignore"]}
    for path in SOURCES:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "noqa: BLE" not in line, f"{path}: {line}"


@pytest.mark.finding("GC-02")
def test_private_parts_of_torch_are_few_and_known_and_its_version_is_pinned() -> None:
    for path in SOURCES:
        known = PRIVATE.get(path.relative_to(ROOT).as_posix(), "")
        for used in re.findall(r"torch\._[\w.]+", path.read_text(encoding="utf-8")):
            if used != "torch.__version__":
                assert used in known, f"{path}: {used}"
    assert re.search(r"^torch==2\.\d+\.\d+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)


@pytest.mark.finding("AR-9")
def test_no_gradient_goes_through_hooks() -> None:
    """With stacked tensors there are some thirty gradients for all hosts: nothing to be won by hooks."""
    for path in SOURCES:
        assert not re.search(r"\.register_\w*hook\(", path.read_text(encoding="utf-8")), path

"""Builds the compiled modules as an installation does, in a folder of their own."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def build_extension(name: str, folder: Path) -> ModuleType:
    """The module of this name, without its package, compiled anew; skips where there is no compiler."""
    if not shutil.which("c++") and not shutil.which("g++"):
        pytest.skip("no compiler of C++ is installed")
    command = "from setuptools import setup; setup()"
    where = ["--build-lib", str(folder), "--build-temp", str(folder / "temp")]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", command, "-q", "build_ext", *where], cwd=ROOT, check=True
    )
    (path,) = folder.rglob(f"{name}*.so")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

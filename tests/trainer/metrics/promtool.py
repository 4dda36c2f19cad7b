"""Prometheus' own tool, which says whether a file is one that Prometheus takes."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def run_promtool(*arguments: str, text: str = "") -> None:
    """Run `promtool ARGUMENTS` on a text; fails with what it says, skips where it is not installed."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    result = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr

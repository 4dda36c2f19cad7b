"""A training over power cuts, as a command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .disk import compiler


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(60, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)]),
    ],
)
def test_a_training_goes_on_after_power_cuts(cuts: int) -> None:
    if compiler() is None:
        pytest.skip("no C compiler here (Debian: gcc)")
    command = [sys.executable, "-m", "tests.power", "--cuts", str(cuts)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr

"""A training over power cuts, as a command; CI's minute of chaos cuts the power once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .disk import compiler


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_training_goes_on_after_power_cuts() -> None:
    if compiler() is None:
        pytest.skip("no C compiler here (Debian: gcc)")
    command = [sys.executable, "-m", "tests.power", "--cuts", "60"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr

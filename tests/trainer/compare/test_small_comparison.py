"""The small comparison, as its command runs it: PPO learns more than random and no growth earn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATIENCE = 3600


@pytest.mark.nightly
@pytest.mark.timeout(PATIENCE)
def test_small_comparison_holds_its_targets(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.comparison", "--to", str(tmp_path / "cells")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, result
    assert result["held"]
    assert result["figures"]["lead_over_random_low"] > 0.0
    assert result["figures"]["lead_over_no_growth_low"] > 0.0
    assert len(list(tmp_path.glob("cells/train-ppo-*.json"))) == 2, "two seeds"

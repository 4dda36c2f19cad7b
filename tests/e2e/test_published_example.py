"""The example that publishes from PPO in one file: few added lines, and a run like any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from protocol.journal.reader import read
from protocol.messages import events as ev
from protocol.runs import find_run

from .conftest import House

EXAMPLE = Path(__file__).parents[2] / "examples" / "cleanrl_ppo.py"


def test_publishing_takes_under_ten_lines() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    added = [line for line in lines if line.endswith("# publish")]
    assert len(added) < 10
    others = "\n".join(line for line in lines if line not in added)
    assert "run." not in others
    assert "protocol" not in others


@pytest.mark.slow
def test_ppo_learns_and_its_run_says_so(house: House) -> None:
    words = [sys.executable, str(EXAMPLE), "--run-name", "ppo-cartpole", "--total-timesteps", "40960"]
    root = str(EXAMPLE.parents[1])
    subprocess.run(words, env={**house.environment, "PYTHONPATH": root}, check=True, timeout=500)
    run = find_run("ppo-cartpole", home=house.home)
    assert (run.kind, run.state) == ("published", "STOPPED")
    returns = [
        event.data.values["charts/episodic_return"]
        for event in read(run.path / "events.jsonl")
        if isinstance(event.data, ev.Scalars) and "charts/episodic_return" in event.data.values
    ]
    assert sum(returns[-5:]) > 2 * sum(returns[:5])

"""The examples that publish: few added lines, and runs like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import find_run, list_runs

from .conftest import House

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES = {"lightning_digits.py": 2, "sb3_cartpole.py": 2}
"""Of each example those that publish, at most."""


def publish_from(house: House, example: str, *options: str) -> tuple[str, dict[str, list[float]]]:
    """Run an example to its end; the state of its run, and the values of each name."""
    words = [sys.executable, str(EXAMPLES / example), "--run-name", "shown", *options]
    environment = {**house.environment, "PYTHONPATH": str(EXAMPLES.parent)}
    subprocess.run(words, env=environment, check=True, timeout=500, cwd=house.home.parent)
    return state_and_values(house, "shown")


def state_and_values(house: House, name: str) -> tuple[str, dict[str, list[float]]]:
    """Of a published run that has ended."""
    run = find_run(name, home=house.home)
    assert run.kind == "published"
    values: dict[str, list[float]] = {}
    for event in read(run.path / "events.jsonl"):
        if isinstance(event.data, ev.Scalars):
            for name, value in event.data.values.items():
                values.setdefault(name, []).append(value)
    return run.state, values


@pytest.mark.parametrize("example", LINES)
def test_publishing_takes_few_lines(example: str) -> None:
    lines = (EXAMPLES / example).read_text(encoding="utf-8").splitlines()
    added = [line for line in lines if line.endswith("# publish")]
    assert 0 < len(added) <= LINES[example]
    others = "\n".join(line for line in lines if line not in added)
    assert "run." not in others
    assert "protocol" not in others


@pytest.mark.nightly
@pytest.mark.skipif("CLEANRL" not in os.environ, reason="CLEANRL names no checkout; it is in no package")
def test_program_of_cleanrl_needs_one_changed_import(house: House, tmp_path: Path) -> None:
    """Its own file; PYTHONPATH has what that needs (gymnasium 0.29, tyro)."""
    theirs = Path(os.environ["CLEANRL"], "cleanrl/ppo.py").read_text(encoding="utf-8")
    line = "from torch.utils.tensorboard import SummaryWriter\n"
    assert line in theirs
    program = tmp_path / "ppo.py"
    program.write_text(theirs.replace(line, line.replace("torch.utils", "esper_overwatch.compat")), "utf-8")
    paths = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(EXAMPLES.parent)])
    words = [sys.executable, str(program), "--total-timesteps", "40960", "--no-cuda"]
    environment = {**house.environment, "PYTHONPATH": paths}
    subprocess.run(words, env=environment, check=True, timeout=500, cwd=tmp_path)
    (run,) = list_runs(home=house.home)
    state, values = state_and_values(house, run.name)
    returns = values["charts/episodic_return"]
    assert state == "COMPLETED"
    assert sum(returns[-5:]) > 2 * sum(returns[:5])


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="the extra sb3 is not installed")
def test_stable_baselines_learns_and_its_run_says_so(house: House) -> None:
    state, values = publish_from(house, "sb3_cartpole.py", "--total-timesteps", "20480")
    returns = values["rollout/ep_rew_mean"]
    assert state == "COMPLETED"
    assert returns[-1] > 2 * returns[0]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lightning") is None, reason="the extra lightning is not installed")
def test_lightning_learns_and_its_run_says_so(house: House) -> None:
    state, values = publish_from(house, "lightning_digits.py", "--max-epochs", "15")
    assert state == "COMPLETED"
    assert values["validation/accuracy"][-1] > 0.8
    assert values["train/loss"][-1] < values["train/loss"][0] / 2

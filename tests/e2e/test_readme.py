"""What the README tells a newcomer to type works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from esper_overwatch.trainer.cli.main import main

from .conftest import House

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
def test_the_python_example_steers_a_run(house: House) -> None:
    house.spawn("my-run", "--set", "telemetry.escalate_on=off")
    (example,) = (block for block in blocks("python") if "connect(" in block)
    result = subprocess.run(
        [sys.executable, "-c", example], env=house.environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "NORMAL" in result.stdout
    assert len(house.journal("my-run", "layers")) == 5


def test_the_publishing_example_publishes_a_run(house: House) -> None:
    (example,) = (block for block in blocks("python") if "publish(" in block)
    given = "loss = accuracy = 0.5\n"
    result = subprocess.run(
        [sys.executable, "-c", given + example],
        env=house.environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    last = house.journal("my-run", "scalar")[-1]
    assert (last["data"]["step"], last["data"]["values"]) == (999, {"loss": 0.5, "accuracy": 0.5})


def test_every_daemon_command_named_there_exists() -> None:
    text = "\n".join(blocks(""))
    named = {words[1] for line in text.splitlines() if (words := line.split())[:1] == ["esper-daemon"]}
    assert named
    assert named <= set(main.commands)

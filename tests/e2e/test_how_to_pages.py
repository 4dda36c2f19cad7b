"""The pages on switching and on the best run say what a program and a shell really do."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from esper_overwatch import open_run, publish

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
pytestmark = pytest.mark.slow


def page(name: str) -> str:
    return (ROOT / f"docs/how-to/{name}.md").read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)
    return [block for known, block in found if known == language]


def lines(name: str) -> list[str]:
    return [line for block in blocks(name, "") for line in block.splitlines()]


def run_python(name: str, folder: Path) -> str:
    """What the page's program says in an empty folder."""
    (program,) = blocks(name, "python")
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def run_line(line: str, folder: Path) -> str:
    name, *words = shlex.split(line)
    done = subprocess.run([PROGRAMS / name, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_program_for_wandb_publishes_by_another_import(home: Path) -> None:
    assert run_python("from-wandb", home) == ""
    run = open_run("small")
    assert run.config["lr"] == 0.1
    assert [*run.scalars("loss")["loss"].values][-1] == pytest.approx(1 / 20.9)
    (line,) = re.findall(r"`(esper-daemon runs --where [^`]*)`", page("from-wandb"))
    assert "small" in run_line(line, home)
    assert run_line("esper-daemon export small --format wandb --to out", home)


def test_a_program_for_tensorboard_publishes_by_another_import(home: Path) -> None:
    assert run_python("from-tensorboard", home) == ""
    run = open_run("lr-0.1")
    assert run.scalars("train/loss")["train/loss"].values[199] == pytest.approx(1 / 20.9)
    for line in lines("from-tensorboard"):
        run_line(line, home)
    assert [*(home / "logs/lr-0.1").glob("events.out.tfevents.*")]


def test_lines_of_the_page_find_the_best_run(home: Path) -> None:
    for name, lr in (("bad", 0.01), ("good", 0.1)):
        with publish(name, config={"lr": lr}, tags=["baseline"]) as run:
            for step in range(50):
                run.log(step=step, loss=1 / (1 + lr * step), accuracy=1 - 1 / (1 + lr * step))
    said = [run_line(line, home) for line in lines("best-run")]
    for ranked in said[:3]:
        assert ranked.index("good") < ranked.index("bad")
    assert "lr" in said[3]
    assert "0.01" in said[3]
    assert "loss" in said[4]
    assert [*open_run("good").query("SELECT count(*) FROM scalars").rows]
    assert "keep" in run_line("esper-daemon runs", home)

"""scripts/pytest-flaky tells a test that fails once from one that fails always."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ROOT

PLANTED = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", range({flaky}))
def test_flaky(n):
    seen = Path(__file__).with_name(f"seen-{{n}}")
    known = seen.exists()
    seen.touch()
    assert known

def test_steady():
    assert {steady}

def test_good():
    with Path(__file__).with_name("runs").open("a") as file:
        file.write("good ")
"""


def run(folder: Path, *, flaky: int, steady: bool, workers: int = 0) -> tuple[int, str]:
    """Exit code and output of the script, in a folder with such tests."""
    (folder / "test_planted.py").write_text(PLANTED.format(flaky=flaky, steady=steady), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/pytest-flaky", "-q", "-n", str(workers), "-p", "xdist"],
        cwd=folder,
        env=os.environ | {"FLAKY_LIST": str(folder / "list"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def flaky_tests(output: str) -> list[str]:
    """What stands under `== flaky`."""
    return output.partition("== flaky\n")[2].splitlines()


def test_what_passes_alone_is_told_and_forgiven(tmp_path: Path) -> None:
    code, output = run(tmp_path, flaky=1, steady=True, workers=2)
    assert code == 0, output
    assert flaky_tests(output) == ["test_planted.py::test_flaky[0]"]
    assert (tmp_path / "list").read_text() == "test_planted.py::test_flaky[0]\n"
    assert (tmp_path / "runs").read_text() == "good ", "what passed is not run again"


@pytest.mark.slow
def test_steady_failure_fails_the_run_beside_a_flaky_one(tmp_path: Path) -> None:
    code, output = run(tmp_path, flaky=1, steady=False)
    assert code == 1
    assert flaky_tests(output) == ["test_planted.py::test_flaky[0]"]
    assert output.count("assert False") >= 2, "both failures are shown"


def test_more_than_three_failures_are_not_repeated(tmp_path: Path) -> None:
    code, output = run(tmp_path, flaky=4, steady=True)
    assert code == 1
    assert "4 tests failed" in output
    assert not flaky_tests(output)


@pytest.mark.slow
def test_three_are_forgiven_in_all_runs_together(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("before::one\nbefore::two\n", encoding="utf-8")
    assert run(tmp_path, flaky=2, steady=True)[0] == 1
    assert run(tmp_path, flaky=3, steady=True)[0] == 0, "the two have been seen, one is new"

"""The command line's own start: what it needs and what it costs."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "torch"):
            raise ModuleNotFoundError(f"{name} is blocked here")

sys.meta_path.insert(0, Blocked())
sys.argv = ["esper-daemon", *sys.argv[1:]]
from trainer.cli.main import main
main()
"""


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_list_needs_neither_numpy_nor_torch(tmp_path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, "list"],
        env={**os.environ, "ESPER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def test_list_over_ssh_needs_neither_numpy_nor_torch(tmp_path) -> None:
    """A host that cannot be resolved ends in ssh's words, not in an ImportError."""
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, "list", "--ssh", "nobody@host.invalid"],
        env={**os.environ, "ESPER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "is blocked here" not in result.stderr
    assert "Traceback" not in result.stderr


def test_help_costs_under_half_a_second_of_cpu() -> None:
    """The least of so many as it takes: what else the machine does cannot make it less."""
    costs: list[float] = []
    while not costs or (min(costs) >= 0.5 and len(costs) < 20):
        before = cpu_seconds()
        subprocess.run([sys.executable, "-m", "trainer", "--help"], check=True, stdout=subprocess.DEVNULL)
        costs.append(cpu_seconds() - before)
    assert min(costs) < 0.5


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--set", "envs.cuont=4"], 9, ["envs.cuont", "envs.count"]),
        (["--set", "envs.count=-4"], 9, ["envs.count", "-4", "from 1"]),
        (["--rounds", "-1"], 9, ["rounds", "-1", "from 0"]),
        (["--config", "/nowhere/run.toml"], 9, ["/nowhere/run.toml", "cannot be read"]),
        (["--resume", "never-was"], 3, ["never-was"]),
    ],
)
def test_wrong_start_is_one_line_before_torch_is_loaded(
    tmp_path: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT, "start", *arguments],
        env={**os.environ, "ESPER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr.count("\n")) == (code, 1), result.stderr
    assert all(word in result.stderr for word in words)
    assert not list(tmp_path.iterdir())


def test_wrong_name_is_refused_before_torch_is_loaded(tmp_path) -> None:
    for option in ([], ["--or-resume"], ["--detach"]):
        result = subprocess.run(
            [sys.executable, "-c", WITHOUT, "start", "../evil", *option],
            env={**os.environ, "ESPER_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
        assert "'../evil' is not a name for a run" in result.stderr


CLOSED = """
import os, sys
from trainer.cli.output import ErrorGroup
import click

@click.command()
def journal() -> None:
    with open(sys.argv[-1], "w") as file:
        print("of a library")
        os.write(2, b"of another")
        file.write(f"{sys.stdin.read()}{file.fileno() > 2}")

ErrorGroup(commands={"journal": journal})(["journal"])
"""


def test_files_never_get_numbers_of_closed_standard_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLOSED, str(tmp_path / "journal")]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=True)
    assert (tmp_path / "journal").read_text() == "True"


@pytest.mark.parametrize(("word", "code"), [("raise KeyboardInterrupt", 130), ("print_lines(['x'])", 141)])
def test_interrupted_and_unread_have_their_codes(word: str, code: int) -> None:
    program = "import click; from trainer.cli.output import *\n@click.command()\ndef run():\n "
    program += f"{word}\nErrorGroup(commands={{'run': run}})(['run'])"
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert result.returncode == code
    assert result.stderr == ("esper-daemon: interrupted\n" if code == 130 else "")

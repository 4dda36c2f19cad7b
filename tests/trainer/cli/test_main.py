"""The command line's own start: what it needs and what it costs."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from esper_overwatch.trainer.config.load import ConfigError, load
from tests.trainer.command import esper

WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "torch"):
            raise ModuleNotFoundError(f"{name} is blocked here")

sys.meta_path.insert(0, Blocked())
sys.argv = ["esper-daemon", *sys.argv[1:]]
from esper_overwatch.trainer.cli.main import main
main()
"""


def without(*words: str) -> subprocess.CompletedProcess[str]:
    """`esper-daemon` with these words where neither numpy nor torch can be imported."""
    command = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(command, capture_output=True, text=True)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_list_needs_neither_numpy_nor_torch() -> None:
    result = without("list")
    assert result.returncode == 0, result.stderr


def test_list_over_ssh_needs_neither_numpy_nor_torch() -> None:
    """A host that cannot be resolved ends in ssh's words, not in an ImportError."""
    result = without("list", "--ssh", "nobody@host.invalid")
    assert "is blocked here" not in result.stderr
    assert "Traceback" not in result.stderr


def test_help_costs_under_half_a_second_of_cpu() -> None:
    """The least of so many as it takes: what else the machine does cannot make it less."""
    costs: list[float] = []
    while not costs or (min(costs) >= 0.5 and len(costs) < 20):
        before = cpu_seconds()
        subprocess.run(
            [sys.executable, "-m", "esper_overwatch.trainer", "--help"], check=True, stdout=subprocess.DEVNULL
        )
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
        (["--resume", "--detach", "a"], 2, ["--detach is none; write: --resume a --detach"]),
        (["a", "--fork", "--rounds=2"], 2, ["--rounds=2 is none; write: --fork RUN --rounds=2"]),
    ],
)
def test_wrong_start_is_one_line_before_torch_is_loaded(
    home: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    result = without("start", *arguments)
    assert (result.returncode, result.stderr.count("\n")) == (code, 1), result.stderr
    assert all(word in result.stderr for word in words)
    assert not home.exists()


def test_wrong_name_is_refused_before_torch_is_loaded() -> None:
    for option in ([], ["--or-resume"], ["--detach"]):
        result = without("start", "../evil", *option)
        assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
        assert "'../evil' is not a name for a run" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [b"options", b"--toml", b"--set", b"policy.file=a\xff"],
        [b"systemd", b"run", b"--set", b"task.dataset=\xff"],
        [b"query", b"SELECT '\xff'"],
        [b"export", b"--to", b"/tmp/\xff", b"--format", b"parquet"],
    ],
)
def test_argument_that_is_not_utf8_is_one_line(arguments: list[bytes]) -> None:
    for words in (arguments, [b"--nothing", *arguments]):
        result = esper(*map(os.fsdecode, words))
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
        assert "is not UTF-8" in result.stderr
        assert "\\udcff" in result.stderr


def test_environment_that_is_not_utf8_is_one_line() -> None:
    for name, code in (("ESPER_POLICY_FILE", 9), ("ESPER_HOME", 10)):
        command = ["list"] if code == 10 else ["options", "--toml"]
        result = esper(*command, env={name: os.fsdecode(b"/tmp/\xff")})
        assert (result.exit_code, result.stderr.count("\n")) == (code, 1), result.stderr
        assert name in result.stderr


def test_folder_whose_name_is_not_utf8_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "run.toml").write_text("seed = 3\n")
    words = ["systemd", "run", "--config", "run.toml"]
    result = esper(*words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert "is not UTF-8" in result.stderr
    with pytest.raises(ConfigError, match=r"--set: policy.file = .*is not UTF-8"):
        load(sets=[f"policy.file={Path('mine.policy').absolute()}"])  # as `start --policy mine.policy`


def test_gone_working_directory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    for command in ("start", "options", "doctor", "query"):
        result = esper(command)
        assert (result.exit_code, result.stderr.count("\n")) == (10, 1), result.stderr
        assert "the working directory cannot be used" in result.stderr
    assert esper("list").exit_code == 0


def test_help_names_every_exit_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    codes = re.findall(r"^\| (\d+) \|", page, re.MULTILINE)
    told = esper("-h").stdout.partition("Exit codes:")[2]
    assert re.findall(r"(?:^|;)\s+(\d+) ", told) == codes


INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize("program", ["trainer", "overwatch_tui"])
def test_ctrl_c_while_importing_ends_without_a_word(tmp_path: Path, program: str) -> None:
    (tmp_path / "click.py").write_text(INTERRUPTED)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    result = subprocess.run(
        [sys.executable, "-m", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_commands_begin_where_ctrl_c_is_answered() -> None:
    scripts = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {
        "esper-daemon": "esper_overwatch.trainer.__main__:main",
        "esper-tui": "esper_overwatch.overwatch_tui.__main__:main",
    }


CLOSED = """
import os, sys
from esper_overwatch.trainer.cli.output import ErrorGroup
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


@pytest.mark.slow
@pytest.mark.parametrize("words", [["options"], ["list", "--json"]])
def test_full_disk_behind_the_output_is_told_in_a_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "esper_overwatch.trainer", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 10
    assert result.stderr == "esper-daemon: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(("word", "code"), [("raise KeyboardInterrupt", 130), ("print_lines(['x'])", 141)])
def test_interrupted_and_unread_have_their_codes(word: str, code: int) -> None:
    program = (
        "import click; from esper_overwatch.trainer.cli.output import *\n@click.command()\ndef run():\n "
    )
    program += f"{word}\nErrorGroup(commands={{'run': run}})(['run'])"
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert result.returncode == code
    assert result.stderr == ("esper-daemon: interrupted\n" if code == 130 else "")

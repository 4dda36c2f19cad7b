"""`esper-daemon completion`, by a real bash where the words are completed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.command import esper

PROGRAMS = {"esper-daemon": "esper_overwatch.trainer", "esper-tui": "esper_overwatch.overwatch_tui"}


def install(home: Path, *shell: str, **environment: str | None) -> str:
    places: dict[str, str | None] = {"HOME": str(home), "XDG_DATA_HOME": None, "XDG_CONFIG_HOME": None}
    done = esper("completion", *shell, env=places | environment)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("program", "typed", "word"), [("esper-daemon", "esc", "escalate"), ("esper-tui", "--rep", "--replay")]
)
def test_bash_completes_a_word_of_each_program(tmp_path: Path, program: str, typed: str, word: str) -> None:
    install(tmp_path, "bash")
    scripts = tmp_path / "bin"
    scripts.mkdir()
    started = scripts / program
    started.write_text(
        f"#!{sys.executable}\nimport sys\nfrom {PROGRAMS[program]}.__main__ import main\n"
        f"sys.argv[0] = {program!r}\nmain()\n"
    )
    started.chmod(0o755)
    script = tmp_path / ".local/share/bash-completion/completions" / program
    function = f"_{program.replace('-', '_')}_completion"
    lines = (
        f"source {script}; complete -p {program}; COMP_WORDS=({program} {typed}); COMP_CWORD=1; "
        f'{function} {program}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    environment = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--norc", "-c", lines], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"complete -o nosort -F {function} {program}", word], done.stderr


def test_zsh_and_fish_find_files_of_both_programs(tmp_path: Path) -> None:
    note = install(tmp_path, SHELL="/usr/bin/zsh").splitlines()[-1]
    functions = tmp_path / ".local/share/zsh/site-functions"
    assert note.endswith(f"fpath+=({functions})")
    install(tmp_path, "fish", XDG_CONFIG_HOME=str(tmp_path / "config"))
    for program in PROGRAMS:
        assert (functions / f"_{program}").read_text().startswith(f"#compdef {program}\n")
        assert f"--command {program} " in (tmp_path / f"config/fish/completions/{program}.fish").read_text()


def test_an_unknown_shell_must_be_named() -> None:
    done = esper("completion", env={"SHELL": "/bin/csh"})
    assert done.exit_code == 2
    assert "bash, zsh, fish" in done.output

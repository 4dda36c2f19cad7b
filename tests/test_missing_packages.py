"""Every command of both programs where packages of an extra are not installed: one line, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from esper_overwatch.protocol.extras import EXTRAS, install_command
from esper_overwatch.trainer.cli.main import main as daemon

ROOT = Path(__file__).parents[1]
NEED_TRAINER = {
    "start": ["start", "new"],
    "compare": ["compare", "--policy", "fixed", "--to", "results"],
    "data": ["data"],
    "policy show": ["policy", "show", "some.policy"],
    "policy export": ["policy", "export", "some.pt", "some.policy"],
    "sweep run": ["sweep", "--space=space.toml", "--set=rounds=2", "--set=evaluation.rounds=1", "--trials=1"],
    "sweep show": ["sweep", "show", "space"],
    "tensorboard": ["tensorboard", "mine"],
}
"""Commands by what they are called with; these train, or read what torch has written."""
OTHERS = {
    "completion": ["completion", "none"],
    "systemd": ["systemd", "new"],
    "list": ["list"],
    "gateway": ["gateway", "mine", "--listen", "tcp://127.0.0.1:1"],
    "runs": ["runs", "--where", "summary.loss < 1"],
    "tag": ["tag", "mine", "+good"],
    "note": ["note", "mine", "here"],
    "rename": ["rename", "mine", "mine"],
    "rm": ["rm"],
    "archive": ["archive", "theirs"],
    "restore": ["restore"],
    "options": ["options"],
    "presets": ["presets", "--diff"],
    "status": ["status", "mine"],
    "pause": ["pause", "mine"],
    "resume": ["resume", "mine"],
    "checkpoint": ["checkpoint", "mine"],
    "stop": ["stop", "mine"],
    "escalate": ["escalate", "mine"],
    "profile": ["profile", "mine"],
    "param": ["param", "mine", "ppo.learning_rate=1e-3"],
    "call": ["call", "mine", "ops.list"],
    "mark": ["mark", "mine", "here"],
    "seed germinate": ["seed", "germinate", "mine", "--env=0", "--slot=r0c0", "--blueprint=norm"],
    "seed prune": ["seed", "prune", "mine", "--env=0", "--slot=r0c0"],
    "ops": ["ops", "mine"],
    "cancel": ["cancel", "mine", "0123"],
    "clients": ["clients", "mine"],
    "rotate": ["rotate", "mine"],
    "lease acquire": ["lease", "acquire", "mine"],
    "lease release": ["lease", "release", "mine"],
    "alerts list": ["alerts", "mine"],
    "alerts test": ["alerts", "test", "mine"],
    "tail": ["tail", "mine"],
    "replay": ["replay", "mine"],
    "checkpoints": ["checkpoints", "mine"],
    "diff": ["diff", "mine", "mine"],
    "doctor": ["doctor"],
    "export": ["export", "mine", "--to=out", "--format=parquet"],
    "mcp": ["mcp"],
    "query": ["query", "mine", "SELECT count(*) FROM epochs"],
    "stacks": ["stacks", "mine", "--seconds=0"],
    "queue run": ["queue", "run"],
    "queue add": ["queue", "add", "start", "later"],
    "queue list": ["queue", "list"],
    "queue move": ["queue", "move", "later", "1"],
    "queue cancel": ["queue", "cancel", "later"],
    "queue systemd": ["queue", "systemd"],
    "keys new": ["keys", "new", "me", "--role=viewer"],
    "keys authorize": ["keys", "authorize", "me", "--role=viewer", "0" * 40],
    "keys revoke": ["keys", "revoke", "me"],
    "keys list": ["keys", "list"],
    "esper-tui": ["--once", "mine"],
}
CODE = """
import json, os, signal, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent, calls = json.loads(sys.argv[1])
sys.meta_path.insert(0, Absent())
sys.stdin = open(os.devnull)
from click.testing import CliRunner
from esper_overwatch import publish
from esper_overwatch.overwatch_tui.cli import main as tui
from esper_overwatch.trainer.cli.main import main as daemon

with publish("mine") as run:
    run.log(step=1, loss=0.5)
for command, words in calls.items():
    done = CliRunner().invoke(tui if command == "esper-tui" else daemon, words)
    is_told = isinstance(done.exception, SystemExit | None)
    print(json.dumps([command, done.exit_code, done.stderr, is_told and "Traceback" not in done.output]))
"""


def answers(folder: Path, absent: list[str], calls: dict[str, list[str]]) -> dict[str, tuple[int, str, bool]]:
    """Exit code, standard error, and whether it ended in its own words, by command."""
    environment = {**os.environ, "ESPER_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([absent, calls])],
        env={**environment, "XDG_CONFIG_HOME": str(folder)},
        cwd=folder,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    rows: list[Any] = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: (code, stderr, told) for name, code, stderr, told in rows}


def names_of(command: click.Command, path: str = "") -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from names_of(inner, f"{path} {name}".strip())
        if command.invoke_without_command:
            yield f"{path} run"
    else:
        yield path


def test_every_command_says_what_is_missing(tmp_path: Path) -> None:
    assert {*names_of(daemon), "esper-tui"} == {*NEED_TRAINER, *OTHERS}
    (tmp_path / "space.toml").write_text("ppo.learning_rate = {low = 1e-4, high = 1e-2}\n")
    found = answers(tmp_path, ["torch", "numpy", "scipy", "sklearn"], {**NEED_TRAINER, **OTHERS})
    assert {name for name, (_, _, told) in found.items() if not told} == set()
    for name, (code, stderr, _) in found.items():
        if name in NEED_TRAINER:
            package = stderr.removeprefix("esper-daemon: ").partition(" ")[0]
            assert EXTRAS[package] == "trainer", stderr
            line = f"{package} is not installed; install it with: {install_command('trainer')}\n"
            assert (code, stderr) == (9, f"esper-daemon: {line}"), name
        else:
            assert "not installed" not in stderr, (name, stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "more"), [("sklearn", ()), ("prometheus_client", ("--set", "metrics.listen=127.0.0.1:0"))]
)
def test_one_package_alone_is_missed_where_it_is_wanted(
    tmp_path: Path, package: str, more: tuple[str, ...]
) -> None:
    code, stderr, told = answers(tmp_path, [package], {"start": [*NEED_TRAINER["start"], *more]})["start"]
    assert told
    assert code == 9
    assert f"{package} is not installed; install it with: {install_command(EXTRAS[package])}" in stderr


@pytest.mark.parametrize("package", EXTRAS)
def test_each_extra_is_one_that_brings_the_package(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought_by = {"aiohttp": "textual-serve", "sklearn": "scikit-learn", "sqlalchemy": "optuna"}
    wanted = brought_by.get(package, package.replace("_", "-"))
    listed = [
        requirement.replace("_", "-")
        for extra in EXTRAS[package].split(",")
        for requirement in project["optional-dependencies"][extra]
    ]
    assert any(requirement.startswith(f"{wanted}>=") for requirement in listed)


def test_the_advice_of_an_installed_release_names_the_release(tmp_path: Path) -> None:
    """The same module in a site-packages without a checkout around it."""
    package = tmp_path / "esper_overwatch/protocol"
    package.mkdir(parents=True)
    for name in ("extras", "errors"):
        (package / f"{name}.py").write_text((ROOT / f"protocol/{name}.py").read_text())
    code = "from esper_overwatch.protocol.extras import install_command; print(install_command('export'))"
    said = subprocess.check_output(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"], text=True
    )
    assert said == f"{sys.executable} -m pip install 'esper-overwatch[export]'\n"
    assert install_command("export").endswith(f" -e '{ROOT}[export]'")

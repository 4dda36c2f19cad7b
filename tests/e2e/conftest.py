"""Real daemons in folders of the test's own, killed at its end whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .nursery import ForkedProcess, nursery, run_python

EPISODE_EPOCHS = 6
SMALL = (
    "envs.count=4",
    "ppo.minibatches=2",
    f"episode_epochs={EPISODE_EPOCHS}",
    "task.batches_per_epoch=3",
    "host.channels=4,8",
    "envs.group_size=4",
    "envs.convolution=grouped",
)
"""A run whose rounds take well under a second, executed in one way on every machine."""
DAEMON = ("-m", "esper_overwatch.trainer")
TERMINAL = ("-m", "esper_overwatch.overwatch_tui")
Daemon = subprocess.Popen[str] | ForkedProcess


def eventually(what: Callable[[], Any], *, seconds: float = 300.0, every: float = 0.05) -> Any:
    """The first true value of `what()`; fails after a generous time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(every)
    raise AssertionError(f"did not happen in {seconds} s: {what}")


class House:
    """A home, a runtime folder and the processes that a test starts in them."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.runtime = folder / "rt"
        self.runtime.mkdir(mode=0o700)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("ESPER_")},
            "ESPER_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "OMP_NUM_THREADS": "1",
        }
        self.processes: list[Daemon] = []

    def run(
        self, *words: str, timeout: float = 300.0, environment: dict[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these words to its end, `environment` added to the house's."""
        return subprocess.run(
            [sys.executable, *words],
            env=self.environment | (environment or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            **{"stdin": subprocess.DEVNULL} | options,
        )

    def open(
        self, *words: str, environment: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start Python with these words in a child process, which is killed with the house at the latest."""
        env = self.environment | (environment or {})
        process = subprocess.Popen([sys.executable, *words], env=env, text=True, **options)
        self.processes.append(process)
        return process

    def daemon(self, *arguments: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run `esper-daemon ARGUMENTS` to its end."""
        return run_python((*DAEMON, *arguments), self.environment, timeout)

    def execute(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run some lines of Python, which may change the daemon that they run, to their end."""
        return run_python(("-c", code), self.environment)

    def ask(self, *arguments: str) -> Any:
        """Run a command with --json and read its answer."""
        result = self.daemon(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def start(self, name: str, *arguments: str, small: bool = True) -> Daemon:
        """Start a daemon in a child process."""
        resumes = "--resume" in arguments
        sets = [word for item in (SMALL if small and not resumes else ()) for word in ("--set", item)]
        verb = [] if resumes else [name]
        said = self._said(len(self.processes))
        words = [*DAEMON, "start", *verb, *sets, *arguments]
        # A pipe that nobody reads would stop the daemon when it is full.
        with said.open("wb") as stderr, open(os.devnull, "r+b") as quiet:
            if (forks := nursery(self.environment)) is None:
                return self.open(*words, stdin=quiet, stdout=quiet, stderr=stderr)
            process = forks.start(words, self.environment, quiet, quiet, stderr)
        self.processes.append(process)
        return process

    def spawn(self, name: str, *arguments: str, small: bool = True) -> Daemon:
        """Start a daemon in a child process; wait until it answers or has done its rounds."""
        process = self.start(name, *arguments, small=small)

        def answers() -> bool:
            code = process.poll()
            if code is None:
                return (self.run_folder(name) / "connection.json").exists() and (
                    self.daemon("status", name).returncode == 0
                )
            assert code == 0, f"daemon ended with {code}: {self.said(process)}"
            return True  # its rounds were done before it could be asked

        eventually(answers)
        return process

    def said(self, process: Daemon) -> str:
        """What a started daemon has written to its standard error."""
        return self._said(self.processes.index(process)).read_text()

    def _said(self, number: int) -> Path:
        return self.home.with_name(f"said-{number}")

    def serve_tcp(self, name: str, address: str) -> None:
        """Start a gateway in a child process."""
        self.open(*DAEMON, "gateway", name, "--listen", address)

    def run_folder(self, name: str) -> Path:
        return self.home / "runs" / name

    def journal(self, name: str, *types: str) -> list[dict[str, Any]]:
        """The journal's complete lines, of these types."""
        path = self.run_folder(name) / "events.jsonl"
        if not path.exists():
            return []
        named = [f'"type":"{name}"'.encode() for name in types]  # found before a long journal is parsed
        whole = path.read_bytes().split(b"\n")[:-1]
        lines = [json.loads(line) for line in whole if not named or any(name in line for name in named)]
        return [line for line in lines if not types or line["type"] in types]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for connection in self.home.glob("runs/*/connection.json"):
            pid = json.loads(connection.read_bytes())["pid"]
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def stop_in_mid_episode(house: House, start: Callable[[str], Daemon], is_time: Callable[[str], Any]) -> str:
    """Start runs and send them SIGTERM at some time, until one is stopped within an episode; its name.

    On a busy machine a run can be faster than the signal, which then ends the interpreter as it leaves.
    """
    for attempt in range(10):
        process = start(name := f"cut{attempt}")
        eventually(lambda: is_time(name) or process.poll() is not None, every=0.01)  # noqa: B023
        with contextlib.suppress(ProcessLookupError):
            os.kill(house.journal(name, "run.started")[0]["data"]["pid"], signal.SIGTERM)
        code = process.wait(300)
        saved = house.journal(name, "checkpoint.saved")[-1]
        if saved["data"]["reason"] == "stop: SIGTERM" and saved["ctx"]["epoch"] > 0:
            assert code == 0
            return name
        assert code in (0, -signal.SIGTERM)
    raise AssertionError("no run could be stopped within an episode")


@contextlib.contextmanager
def open_house() -> Iterator[House]:
    """A house that is closed at the end. Sockets have short paths only: the folder is not pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="esper-"))
    house = House(folder)
    try:
        yield house
    finally:
        house.close()
        shutil.rmtree(folder)


@pytest.fixture
def house() -> Iterator[House]:
    """A house of the test's own."""
    with open_house() as house:
        yield house

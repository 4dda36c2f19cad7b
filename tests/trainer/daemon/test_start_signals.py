"""No documented signal ends a start or changes how a process ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

STARTING = """
import signal, sys, time
from esper_overwatch.trainer.daemon.signals import answer_start_signals, ignore_signals
answer_start_signals()
print("starting", flush=True)
try:
    sys.stdin.readline()
except BaseException:
    pass  # as some library does while it is imported
ignore_signals()
print("ended", flush=True)
sys.stdin.readline()
"""

OPENED = """
import os, signal
from esper_overwatch.protocol.server.server import Server
start = Server.start
def start_interrupted(server):
    start(server)
    os.kill(os.getpid(), signal.SIGINT)
Server.start = start_interrupted
from esper_overwatch.trainer.__main__ import main
main()
"""


def start() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    return process


def test_start_and_end_outlive_every_documented_signal() -> None:
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGUSR1):
        process.send_signal(number)
    assert "most recent call first" in process.stderr.readline(), "where the start is"
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ended\n"
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    process.communicate("\n")
    assert process.returncode == 0


def test_interrupted_start_ends_whatever_a_library_catches() -> None:
    process = start()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert (process.returncode, told) == (130, "esper-daemon: interrupted before the run was ready\n")


def test_run_that_is_interrupted_as_it_opens_has_an_end(tmp_path: Path) -> None:
    words = ("start", "early", "--rounds", "1", "--set", "envs.count=2", "--set", "episode_epochs=3")
    subprocess.run(
        [sys.executable, "-c", OPENED, *words],
        env={**os.environ, "ESPER_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    lines = (tmp_path / "runs/early/events.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-1])["type"] == "run.stopped"

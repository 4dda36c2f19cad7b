"""No documented signal ends a start or changes how a process ended."""

from __future__ import annotations

import signal
import subprocess
import sys

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

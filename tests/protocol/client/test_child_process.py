"""Programs in the background end with their process, and with nothing less."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from esper_overwatch.protocol.client.child_process import ChildProcess
from tests.protocol.harness import until

OWNER = """
import threading, time
from esper_overwatch.protocol.client.child_process import ChildProcess
made = []
thread = threading.Thread(target=lambda: made.append(ChildProcess(["sleep", "600"])))
thread.start(); thread.join()
print(made[0]._process.pid, flush=True)
time.sleep(600)
"""


def test_child_outlives_the_thread_that_asked_for_it() -> None:
    made: list[ChildProcess] = []
    thread = threading.Thread(target=lambda: made.append(ChildProcess(["sleep", "600"])))
    thread.start()
    thread.join()
    (child,) = made
    with child:
        with pytest.raises(subprocess.TimeoutExpired):
            child._process.wait(0.3)
        assert child.code is None
    assert child.code == -signal.SIGTERM


def test_child_dies_with_a_killed_owner() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        child = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_forked_process_starts_children_of_its_own() -> None:
    with ChildProcess(["true"]) as first:
        until(lambda: first.ended)
    pid = os.fork()
    if pid == 0:
        with ChildProcess(["true"]) as second:
            until(lambda: second.ended)
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_program_that_is_not_there_is_an_oserror() -> None:
    with pytest.raises(FileNotFoundError):
        ChildProcess(["/nowhere/ssh"])

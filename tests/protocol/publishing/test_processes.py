"""Loops in processes of their own: they crash, are killed, fork, end, and leave a readable run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch import publish
from esper_overwatch.protocol.client.event_log import JournalEvents
from esper_overwatch.protocol.journal.reader import read
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import find_run
from tests.protocol.harness import Reader, StartPython, until

Loop = Callable[[str], "subprocess.Popen[str]"]

FOREVER = """
import signal, time
from esper_overwatch import publish
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
run = publish("loop", resume=True)
step = run.step
while True:
    step += 1
    run.log(step=step, loss=1.0 / (step + 1))
    if step == 100:
        print("ready", flush=True)
    time.sleep(0.001)
"""


@pytest.fixture
def loop(python: StartPython) -> Loop:
    return lambda program: python("-c", program, stderr=subprocess.PIPE)


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def events_of(kind: type) -> list[Any]:
    path = find_run("loop").path / "events.jsonl"
    return [event.data for event in read(path) if isinstance(event.data, kind)]


def test_killed_loop_leaves_a_readable_run(loop: Loop, reader: Callable[..., Reader]) -> None:
    process = loop(FOREVER)
    wait_ready(process)
    one = reader("loop")
    one.read(lambda: any(isinstance(e.data, ev.Scalars) and e.data.step > 100 for e in one.events))
    process.kill()
    process.wait()
    assert find_run("loop").state == "DIED"
    steps = [e.step for e in events_of(ev.Scalars)]
    assert steps == list(range(len(steps)))
    seen = max(e.data.step for e in one.events if isinstance(e.data, ev.Scalars))
    assert seen <= steps[-1]
    again = publish("loop", resume=True)
    assert again.step == steps[-1]
    again.log(loss=0.5)
    again.finish()
    summary = events_of(ev.Summary)[-1].metrics["loss"]
    assert (summary.count, summary.last, summary.max) == (len(steps) + 1, 0.5, 1.0)
    boots = {e.boot for e in events_of(ev.RunStarted)}
    assert len(boots) == 2
    numbers = [
        seq
        for stream, seq, _ in JournalEvents(again.path / "events.jsonl").newest_first()
        if stream == "metric"
    ]
    assert numbers == list(range(len(numbers), 0, -1))


ENDS = {
    "with-error": (
        "with publish('loop') as run:\n    run.log(loss=1)\n    raise RuntimeError('boom')",
        11,
        "boom",
    ),
    "error": ("run = publish('loop')\nrun.log(loss=1)\nraise RuntimeError('boom')", 11, "boom"),
    "falls-off": ("run = publish('loop')\nrun.log(loss=1)", 0, None),
    "exit-code": ("with publish('loop') as run:\n    run.log(loss=1)\n    raise SystemExit(3)", 3, "3"),
    "exit-fine": ("with publish('loop') as run:\n    run.log(loss=1)\n    raise SystemExit", 0, None),
}


@pytest.mark.parametrize("name", ENDS)
def test_every_end_of_the_interpreter_is_told(loop: Loop, name: str) -> None:
    program, exit_code, part = ENDS[name]
    process = loop(f"from esper_overwatch import publish\n{program}\n")
    process.communicate(timeout=300)
    (stopped,) = events_of(ev.RunStopped)
    assert stopped.exit_code == exit_code
    assert (stopped.error is None) if part is None else (part in stopped.error)
    assert [e.values for e in events_of(ev.Scalars)] == [{"loss": 1.0}]
    lines = events_of(ev.LogLine)
    assert ("Traceback" in lines[0].traceback) if part else not lines


def test_interrupt_is_told_as_such(loop: Loop) -> None:
    process = loop(FOREVER)
    wait_ready(process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    (stopped,) = events_of(ev.RunStopped)
    assert (stopped.reason, stopped.exit_code) == ("interrupted", 130)


INTERRUPTED_AGAIN = """
import os, signal
from esper_overwatch import publish
signal.signal(signal.SIGINT, signal.default_int_handler)
with publish("loop") as run:
    run.log(loss=1.0)
    def interrupted(method):
        def call(*args):
            os.kill(os.getpid(), signal.SIGINT)
            return method(*args)
        return call
    run._server.flush = interrupted(run._server.flush)
    run._server.close = interrupted(run._server.close)
    run._folder.release = interrupted(run._folder.release)
    raise KeyboardInterrupt
"""


def test_more_interrupts_leave_the_end_in_order(loop: Loop) -> None:
    process = loop(INTERRUPTED_AGAIN)
    process.communicate(timeout=300)
    (stopped,) = events_of(ev.RunStopped)
    assert (stopped.reason, stopped.exit_code) == ("interrupted", 130)
    assert [e.values for e in events_of(ev.Scalars)] == [{"loss": 1.0}]
    assert process.returncode == -signal.SIGINT


NOWHERE_TO_WRITE = """
import tempfile
from esper_overwatch import publish
def refuse():
    raise FileNotFoundError(2, "no usable temporary directory")
tempfile.gettempdir = refuse
publish("loop", home="/proc/esper")
"""


def test_without_any_folder_the_home_is_named(loop: Loop) -> None:
    _, said = loop(NOWHERE_TO_WRITE).communicate(timeout=300)
    assert "FolderError: cannot make the folder /proc/esper" in said.splitlines()[-1]


INTERRUPTED_AT_ITS_START = """
import os, signal
from esper_overwatch import publish
from esper_overwatch.protocol.machine.sampler import SystemSampler
from esper_overwatch.protocol.server.server import Server
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupted(method):
    def call(*args):
        method(*args)
        os.kill(os.getpid(), signal.SIGINT)
    return call
CLASS.start = interrupted(CLASS.start)
try:
    publish("loop")
except KeyboardInterrupt:
    os._exit(0)  # as a loop does whose other threads do not end
"""


@pytest.mark.parametrize("name", ["Server", "SystemSampler"])
def test_interrupt_while_a_run_starts_is_told_as_such(loop: Loop, name: str) -> None:
    loop(INTERRUPTED_AT_ITS_START.replace("CLASS", name)).communicate(timeout=300)
    (stopped,) = events_of(ev.RunStopped)
    assert (stopped.reason, stopped.exit_code) == ("interrupted", 130)


def test_second_process_cannot_take_a_live_name(loop: Loop) -> None:
    first = loop(FOREVER)
    wait_ready(first)
    second = loop(FOREVER)
    _, errors = second.communicate(timeout=300)
    assert second.returncode
    assert f"run loop is held by pid {first.pid}" in errors


FORKING = """
import os, sys
from esper_overwatch import publish
from esper_overwatch.protocol.errors import PublishError
with publish("loop", strict=True) as run:
    run.log(loss=1.0)
    child = os.fork()
    if child == 0:
        for use in (
            lambda: run.log(loss=2.0),
            lambda: run.log(),
            lambda: run.log({}),
            lambda: run.summary.__setitem__("best", 1.0),
        ):
            try:
                use()
            except PublishError as error:
                print(error, flush=True)
        run.finish()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    run.log(loss=3.0)
"""


def test_forked_child_neither_publishes_nor_ends_the_run(loop: Loop) -> None:
    process = loop(FORKING)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert output.count("forked child") == 4
    assert [e.values["loss"] for e in events_of(ev.Scalars)] == [1.0, 3.0]
    (stopped,) = events_of(ev.RunStopped)
    assert stopped.exit_code == 0


FORKED_WHILE_TOLD = """
import os, signal, threading
from esper_overwatch import publish
with publish("loop") as run:
    is_held, is_over = threading.Event(), threading.Event()
    def tell():
        with run._left_out._lock:
            is_held.set()
            is_over.wait()
    threading.Thread(target=tell).start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        run.log(loss=2.0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    is_over.set()
    assert status == 0, status
"""


@pytest.mark.slow
def test_child_forked_beside_a_warning_goes_on(loop: Loop) -> None:
    process = loop(FORKED_WHILE_TOLD)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


CROWDED = """
import os, resource
from esper_overwatch import publish
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
with publish("loop") as run:
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for step in range(200):
        run.log(step=step, loss=step)
    assert run.flush(300)
    for one in held:
        os.close(one)
"""


def test_loop_without_free_file_numbers_loses_nothing(loop: Loop) -> None:
    process = loop(CROWDED)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert [e.step for e in events_of(ev.Scalars)] == list(range(200))


def test_viewers_import_loads_no_publisher() -> None:
    program = (
        "import sys, esper_overwatch as e; e.connect; print([n for n in sys.modules if 'publishing' in n])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_publishing_needs_neither_numpy_nor_torch(loop: Loop) -> None:
    blocked = "import sys\nsys.modules['numpy'] = sys.modules['torch'] = None\n"
    process = loop(
        f"{blocked}from esper_overwatch import publish\n"
        "with publish('loop') as run:\n    run.log(loss=1, weights=[1.0, 2.0], text='x')\n"
    )
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert events_of(ev.Histogram)[0].size == 2


DELETED = """
import shutil
from esper_overwatch import publish
run = publish("loop", strict={strict})
while run.flush(600):
    run.log(loss=1.0)
    shutil.rmtree(run.path, ignore_errors=True)
run.log(loss=2.0)
run.mark("the loop goes on")
print("done")
"""


@pytest.mark.parametrize("strict", [False, True])
def test_deleted_folder_does_not_stop_the_loop(loop: Loop, strict: bool) -> None:
    process = loop(DELETED.format(strict=strict))
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, output) == (0, "done\n"), errors
    (line,) = errors.splitlines()
    assert line.endswith("runs/loop was deleted: its journal and its checkpoints are lost")


def test_full_disk_does_not_stop_the_loop(
    home: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[..., Reader]
) -> None:
    run = publish("loop")
    journal = run._server._journal
    real = os.write

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    for step in range(50):
        run.log(step=step, loss=1.0)
    until(lambda: journal.error is not None)
    monkeypatch.setattr(os, "write", real)
    run.log(step=50, loss=0.0)
    until(lambda: journal.error is None)
    run.finish()
    assert [e.step for e in events_of(ev.Scalars)] == list(range(51))

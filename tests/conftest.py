"""For all tests: hypothesis does not judge how fast the machine is, which others may keep busy.

By default it tries few examples of each property; `make nightly` tries ten times as many.

A shell that runs tests in its background has SIGINT ignored; whatever they start would inherit that.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.protocol.sshd import Machine

_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("daily", _PATIENT, max_examples=25, stateful_step_count=25)
settings.register_profile("nightly", _PATIENT, max_examples=250, stateful_step_count=50)
settings.load_profile("daily")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the slow tests out by file, as each worker's first: what xdist runs at the end is then short."""
    if (workers := getattr(config, "workerinput", {"workercount": 1})["workercount"]) == 1:
        return
    total = len(items)
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    turns = {path: turn % workers for turn, path in enumerate(dict.fromkeys(item.path for item in slow))}
    items.clear()
    for worker in range(workers):
        share = (total - len(items)) // (workers - worker)
        mine = [item for item in slow if turns[item.path] == worker]
        taken = max(0, share - len(mine))
        items += [*mine, *quick[:taken]]
        del quick[:taken]
    items += quick


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and tests that stay until the end."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Have the interpreter free them when it ends: a library in C++ calls what it does not free a leak."""
    gc.unfreeze()


@pytest.fixture
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`$ESPER_HOME`, beside the folders of sockets and keys; the path is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="esper-"))
    (folder / "run").mkdir(mode=0o700)
    monkeypatch.setenv("ESPER_HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    yield folder / "home"
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Give them back: a `start` in the tests' own process ends with all of them ignored."""
    before = {number: signal.getsignal(number) for number in _HANDLED}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The host `box`, reached through a real OpenSSH server, with no run on it."""
    folder = Path(tempfile.mkdtemp(prefix="esper-box-"))
    machine = Machine(folder)
    monkeypatch.setenv("PATH", f"{machine.client}:{os.environ['PATH']}")
    with machine:
        yield machine
    machine.remove()

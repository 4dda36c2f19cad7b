"""What the service manager is told, and the unit that is printed for it."""

from __future__ import annotations

import configparser
import contextlib
import os
import shlex
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.protocol.errors import DISK_EXIT
from esper_overwatch.protocol.messages.headers import TrainerBeat
from esper_overwatch.trainer.daemon import systemd
from esper_overwatch.trainer.daemon.systemd import Notifier, render_unit
from tests.trainer.command import esper


class Manager:
    """The socket that systemd would listen on."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self.socket.settimeout(300)

    def next(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def until(self, word: str, *, is_there: bool = True) -> dict[str, str]:
        """The first one that has a word, or has it not; those before it can have waited here."""
        while (word in (told := self.next())) is not is_there:
            pass
        return told


class Trainer:
    """Whose sign of life is as old as a test says."""

    state = "TRAINING"
    age_ms = 0

    def beat(self) -> TrainerBeat:
        return TrainerBeat(state=self.state, round=3, epoch=7, beat_age_ms=self.age_ms)


@pytest.fixture(params=["file", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Manager]:
    address = f"@esper-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "150000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    manager = Manager(address)
    yield manager
    manager.socket.close()


def test_watchdog_is_fed_only_while_trainer_lives(manager: Manager) -> None:
    trainer = Trainer()
    notifier = Notifier(trainer.beat)
    assert "NOTIFY_SOCKET" not in os.environ, "children are no business of the manager's"
    notifier.ready()
    first = manager.next()
    assert (first["READY"], first["MAINPID"]) == ("1", str(os.getpid()))
    assert first["STATUS"] == "TRAINING, round 3, epoch 7"
    assert [manager.next().get("WATCHDOG") for _ in range(3)] == ["1"] * 3
    trainer.age_ms = 151
    manager.until("WATCHDOG", is_there=False)
    assert [manager.next().get("WATCHDOG") for _ in range(3)] == [None] * 3, "a hung trainer"
    trainer.age_ms = 0
    assert manager.until("WATCHDOG")["WATCHDOG"] == "1"
    notifier.close()


def test_an_end_may_take_its_time_while_it_moves(manager: Manager) -> None:
    trainer = Trainer()
    notifier = Notifier(trainer.beat)
    notifier.ready()
    manager.next()
    trainer.state, trainer.age_ms = "STOPPING", 60_000
    seen = manager.until("STOPPING")
    assert int(seen["EXTEND_TIMEOUT_USEC"]) > 0
    later = manager.next()
    assert (later["WATCHDOG"], int(later["EXTEND_TIMEOUT_USEC"]) > 0) == ("1", True)
    trainer.age_ms = int(systemd.MAX_SILENCE_SECONDS * 1000)
    stuck = manager.until("EXTEND_TIMEOUT_USEC", is_there=False)
    assert "WATCHDOG" not in stuck
    notifier.stopping()
    notifier.close()
    manager.socket.setblocking(False)
    rest = []
    try:
        while True:
            rest.append(manager.next())
    except BlockingIOError:
        pass
    assert not any("STOPPING" in one for one in rest), "said once"


def test_a_reload_is_told(manager: Manager) -> None:
    notifier = Notifier(Trainer().beat)
    notifier.ready()
    notifier.reloaded()
    seen = manager.next()
    while "RELOADING" not in seen:
        seen = manager.next()
    assert int(seen["MONOTONIC_USEC"]) > 0
    assert manager.next() == {"READY": "1"}
    notifier.close()


def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notifier = Notifier(Trainer().beat)
    notifier.ready()
    notifier.reloaded()
    notifier.stopping()
    notifier.close()


def test_a_manager_that_went_away_harms_nobody(manager: Manager) -> None:
    notifier = Notifier(Trainer().beat)
    manager.socket.close()
    notifier.ready()
    notifier.close()


def test_full_queue_of_the_manager_holds_nobody_up(manager: Manager) -> None:
    """systemd that does not read, for it is stopped or its machine swaps; afterwards it hears all."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                other.sendto(b"STATUS=another", manager.socket.getsockname())
    notifier = Notifier(Trainer().beat)

    def live() -> None:
        notifier.ready()
        notifier.reloaded()
        notifier.stopping()

    told = threading.Thread(target=live, daemon=True)
    told.start()
    told.join(60)
    assert not told.is_alive(), "the main thread of a daemon would wait for systemd"
    seen: list[str] = []
    while "STOPPING" not in seen:
        seen += manager.next()
    words = [word for word in seen if word in ("READY", "RELOADING", "STOPPING")]
    assert words == ["READY", "RELOADING", "READY", "STOPPING"]
    notifier.close()


def test_somebody_elses_watchdog_is_not_fed(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_PID", "1")
    monkeypatch.setattr(systemd, "POLL_SECONDS", 0.05)
    notifier = Notifier(Trainer().beat)
    notifier.ready()
    manager.next()
    assert "WATCHDOG" not in manager.next()
    notifier.close()


def words_of(line: str) -> list[str]:
    """What systemd makes of a command line without specifiers: quotes as in C, `%%` and `$$` as one."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def parsed(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


@given(st.lists(st.text(st.characters(max_codepoint=0x2FF).filter(str.isprintable))))
def test_the_units_command_line_is_the_one_that_was_given(arguments: list[str]) -> None:
    line = parsed(render_unit("alpha", arguments))["Service"]["ExecStart"]
    program = [sys.executable, "-P", "-m", "esper_overwatch.trainer"]
    assert words_of(line) == [*program, "start", "alpha", "--or-resume", *arguments]


def test_line_break_does_not_begin_a_unit_line() -> None:
    line = parsed(render_unit("alpha", ["a\nExecStop=/bin/true\x85"]))["Service"]["ExecStart"]
    assert line.endswith('"a\\x0aExecStop=/bin/true\\xc2\\x85"')


def test_queue_has_a_unit_of_its_own() -> None:
    given = ["--jobs", "2", "--device", "cuda:1"]
    service = parsed(esper("queue", "systemd", *given).output)["Service"]
    assert words_of(service["ExecStart"])[4:] == ["queue", "run", "--stay", *given]
    assert service["Type"] == "exec", "nothing tells systemd that it is ready"
    assert service["KillMode"] == "mixed", "what runs is ended by the queue, in order"
    assert esper("queue", "systemd", "--device", "a\nb").exit_code == 9


def test_the_unit_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "a ho$me%"))
    file = tmp_path / "x.toml"
    file.write_text("rounds = 3\n")
    result = esper("systemd", "alpha", "--config", str(file), "--set", "seed=2")
    service = parsed(result.output)["Service"]
    assert (service["Type"], int(service["WatchdogSec"]) > 0) == ("notify", True)
    assert service["Environment"] == f'"ESPER_HOME={tmp_path}/a ho$me%%"', (
        "systemd expands no variables there"
    )
    assert str(DISK_EXIT) not in service["RestartPreventExitStatus"].split(), (
        "a full disk may have room later"
    )
    assert words_of(service["ExecStart"])[7:] == ["--config", str(file), "--set", "seed=2"]
    assert esper("systemd", "alpha", "--set", "sed=2").exit_code == 9
    assert esper("systemd", "../x").exit_code == 2

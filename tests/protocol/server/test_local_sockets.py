"""Socket files that are removed while the daemon lives: noticed, bound again, nobody loses a connection."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from esper_overwatch import connect
from esper_overwatch.protocol import runs
from esper_overwatch.protocol.errors import FolderError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder, find_run
from esper_overwatch.protocol.server import local_sockets
from esper_overwatch.protocol.server.server import Server
from tests.protocol.harness import Reader, until
from tests.protocol.raw import Raw, ipc_path


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_sockets, "CHECK_SECONDS", 0.05)


def paths() -> list[Path]:
    return [ipc_path(endpoint) for endpoint in find_run("alpha").connection.endpoints.values()]  # type: ignore[union-attr]


def check_service(server: Server, reader: Callable[..., Reader]) -> None:
    """A new client gets events and answers."""
    one = reader("alpha")
    one.read(lambda: one.subscriber.state == "live")
    server.emitter.emit(ev.RoundStarted(rounds=7))
    one.read(lambda: any(e.type == "round.started" and e.data.rounds == 7 for e in one.events))
    with connect("alpha") as run:
        assert run.status()["wire"]["sockets_restored"] > 0
        assert run.pause()["state"] == "accepted"


def test_removed_sockets_are_bound_again(
    server: Server, reader: Callable[..., Reader], caplog: pytest.LogCaptureFixture
) -> None:
    early = reader("alpha")
    early.read(lambda: early.subscriber.state == "live")
    for path in paths():
        path.unlink()
    until(lambda: all(path.exists() and path.stat().st_mode & 0o777 == 0o600 for path in paths()))
    check_service(server, reader)
    early.read(lambda: any(e.type == "round.started" for e in early.events))
    assert "were removed; they are bound again in" in caplog.text


@pytest.mark.parametrize("what", ["sockets", "connection file", "foreign file"])
def test_removed_folder_and_replaced_files_are_restored(
    server: Server, reader: Callable[..., Reader], what: str
) -> None:
    if what == "sockets":
        shutil.rmtree(paths()[0].parents[1])
        until(lambda: server._local.rebound >= 3)
    elif what == "connection file":
        server.run.connection.unlink()
        until(server.run.connection.exists)
        server._local.rebound += 1
    else:
        path = paths()[1]
        foreign = path.with_name("foreign")
        foreign.write_text("in the way")
        foreign.replace(path)  # at once: the server looks once a second
        until(lambda: server._local.rebound)
    check_service(server, reader)


def test_sockets_move_where_the_runtime_folder_has_gone(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """logind removes the folder at a user's last logout, for good."""
    runtime, old = paths()[0].parents[2], paths()
    other = runtime.with_name("other")
    other.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    shutil.rmtree(runtime)
    until(lambda: server._local.rebound >= 3 and paths() != old)
    with Raw("alpha") as raw:
        assert raw.ask("qry", "ping")[0]["result"] == {}


def test_copied_run_is_refused_while_the_other_lives(server: Server) -> None:
    # The server may be about to rename a file, whose name begins with a dot until then.
    ignored = shutil.ignore_patterns(".*")
    shutil.copytree(server.run.path, server.run.path.with_name("copy"), ignore=ignored)
    with RunFolder.claim("copy") as copy:
        with pytest.raises(FolderError, match=f"the live run of pid {os.getpid()} have one id, {copy.id}"):
            Server(copy, hello={}).start()
        with Raw("alpha") as raw:
            assert raw.ask("qry", "ping")[0]["result"] == {}
        server.close()
        second = Server(copy, hello={})
        second.start()
        second.close()


def test_moved_folder_is_told_and_gets_its_connection_file_back(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    place, other = server.run.path, server.run.path.with_name("other")
    place.rename(other)
    until(lambda: "was moved to" in str(server.wire_status["failing"]))
    place.mkdir()
    server.set_state("PAUSED")
    checked = server._local._check_at
    until(lambda: server._local._check_at > checked)
    assert not server.run.connection.exists()
    place.rmdir()
    other.rename(place)
    until(lambda: not server.wire_status["failing"] and find_run("alpha").connection.state == "PAUSED")  # type: ignore[union-attr]
    assert f"was moved to {other}: move it back" in caplog.text
    assert "is back" in caplog.text


@pytest.mark.parametrize("parts", [("lock", "run.json"), ("",)], ids=["files", "folder"])
def test_deleted_run_is_told_once(
    server: Server, caplog: pytest.LogCaptureFixture, parts: tuple[str, ...]
) -> None:
    """`rm -r` leaves the folder where the server makes a file in it meanwhile."""
    told: list[str] = []
    server.on_deleted = lambda: told.append(caplog.text)
    command = ["rm", "-rf", *(str(server.run.path / part) for part in parts)]
    until(lambda: subprocess.run(command, check=False).returncode == 0)
    until(lambda: told)
    assert "was deleted: its journal and its checkpoints are lost" in told[0]
    assert "was deleted" in str(server.wire_status["failing"])
    checked = server._next_heartbeat
    until(lambda: server._next_heartbeat > checked + 1)
    assert len(told) == 1


def test_paused_run_reads_paused_whatever_its_journal_holds(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "last_words", partial(runs.last_words, limit=2000))
    server.set_state("PAUSED")
    for i in range(50):
        server.emitter.emit(ev.Mark(text=f"mark {i}", client="somebody"))
    until(lambda: "mark 49" in server.run.events.read_text())
    until(lambda: find_run("alpha").state == "PAUSED")
    server.set_state("TRAINING")
    until(lambda: find_run("alpha").state == "TRAINING")

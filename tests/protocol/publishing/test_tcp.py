"""A published run over TCP: the keys, roles and repairs of every other run."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from esper_overwatch import connect, publish
from esper_overwatch.protocol.codec.addresses import with_key
from esper_overwatch.protocol.errors import FolderError, KeysUnusable, RequestError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import was_trained
from esper_overwatch.protocol.storage.keys import make_client
from tests.protocol.harness import Reader, until
from tests.protocol.sshd import free_ports

from .conftest import Publish


def test_keys_and_roles_hold_for_a_loops_commands(
    start_run: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[..., Reader]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for role in ("viewer", "operator"):
        make_client(role, server=None, role=role)  # type: ignore[arg-type]
    address = f"tcp://127.0.0.1:{free_ports(3)}"
    run = start_run("far", listen=address)
    run.command("save")
    run.log(step=5, loss=1.0)
    with connect(address, key="viewer") as viewer, pytest.raises(RequestError) as refusal:
        viewer.command("save")
    assert refusal.value.kind == "forbidden"
    with connect(address, key="operator") as operator:
        operator.command("save")
        until(lambda: run.asked("save"))
    one = reader(with_key(address, "viewer"))
    one.read(lambda: any(isinstance(e.data, ev.Scalars) and e.data.step == 5 for e in one.events))


def test_failed_publish_leaves_no_run_behind(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    address = f"tcp://127.0.0.1:{free_ports(3)}"
    with pytest.raises(KeysUnusable, match="esper-daemon keys new"):
        publish("far", listen=address, strict=True)
    make_client("viewer", server=None, role="viewer")
    port = int(address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port + 1)), pytest.raises(KeysUnusable, match="cannot listen"):
        publish("far", listen=address, strict=True)
    assert not (home / "runs" / "far").exists()
    with publish("far") as run:
        run.log(loss=1.0)
    with socket.create_server(("127.0.0.1", port + 1)), pytest.raises(KeysUnusable, match="cannot listen"):
        publish("far", listen=address, resume=True, strict=True)
    assert was_trained("far"), "what had been published before stays"


def test_loop_that_cannot_listen_is_published_here(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with publish("far", listen=f"tcp://127.0.0.1:{free_ports(3)}") as run:
        run.log(loss=1.0)
    assert was_trained("far")
    assert "the run is published on this machine alone" in caplog.text
    assert home in run.path.parents


def test_loop_without_a_home_is_published_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ESPER_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(FolderError, match="file"):
        publish("lost", strict=True)
    with publish("lost") as run:
        run.log(loss=1.0)
    elsewhere = run.path.parents[1]
    assert elsewhere.parent == tmp_path
    assert f"ESPER_HOME={elsewhere} esper-tui shows it" in caplog.text
    assert (run.path / "events.jsonl").stat().st_size > 0

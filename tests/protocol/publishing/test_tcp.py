"""A published run over TCP: the keys, roles and repairs of every other run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from esper_overwatch import PublishedRun, connect, publish
from esper_overwatch.protocol.codec.addresses import with_key
from esper_overwatch.protocol.errors import FolderError, RequestError
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.storage.keys import make_client
from tests.protocol.harness import Reader, serving, until
from tests.protocol.sshd import free_ports

from .conftest import Publish


def test_keys_and_roles_hold_for_a_loops_commands(
    start_run: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[..., Reader]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for role in ("viewer", "operator"):
        make_client(role, server=None, role=role)  # type: ignore[arg-type]
    address = f"tcp://127.0.0.1:{free_ports(3)}"
    run = start_run("far")
    run.command("save")
    run.log(step=5, loss=1.0)
    with serving(address, "far"):
        _check_roles(run, address, reader)


def _check_roles(run: PublishedRun, address: str, reader: Callable[..., Reader]) -> None:
    with connect(address, key="viewer") as viewer, pytest.raises(RequestError) as refusal:
        viewer.command("save")
    assert refusal.value.kind == "forbidden"
    with connect(address, key="operator") as operator:
        operator.command("save")
        until(lambda: run.asked("save"))
    one = reader(with_key(address, "viewer"))
    one.read(lambda: any(isinstance(e.data, ev.Scalars) and e.data.step == 5 for e in one.events))


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

"""Each check is made to fail for real, and the machine as it is passes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from esper_overwatch.protocol.extras import install_command
from esper_overwatch.protocol.storage.keys import make_client
from esper_overwatch.trainer.doctor import machine
from tests.trainer.command import esper


@pytest.fixture(autouse=True)
def folder(short_home: Path) -> Path:
    return short_home.parent


def doctor(*words: str) -> Result:
    return esper("doctor", *words)


def checks() -> dict[str, Any]:
    """The worst finding per subject."""
    order = {"ok": 0, "warn": 1, "FAIL": 2}
    found = sorted(json.loads(doctor("--json").stdout), key=lambda check: order[check["status"]])
    return {check["what"]: check for check in found}


def test_this_machine_carries_a_run(folder: Path) -> None:
    result = doctor()
    assert result.exit_code == 0, result.stdout
    assert all(line.split()[0] in ("ok", "warn") for line in result.stdout.splitlines())
    assert set(checks()) >= {
        "home",
        "disk",
        "sockets",
        "clock",
        "cores",
        "memory",
        "torch",
        "device",
        "zeromq",
        "extra",
    }
    assert list((folder / "run" / "esper").iterdir()) == []
    assert list((folder / "home").iterdir()) == []


def test_a_home_that_others_may_write_fails(folder: Path) -> None:
    (folder / "home").mkdir()
    (folder / "home").chmod(0o777)
    assert doctor().exit_code == 10
    check = checks()["home"]
    assert check["status"] == "FAIL"
    assert "chmod 700" in check["finding"]


def test_a_home_that_cannot_be_made_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("ESPER_HOME", str(folder / "file" / "home"))
    assert doctor().exit_code == 10
    assert checks()["home"]["status"] == "FAIL"


def test_a_socket_path_that_is_too_long_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = folder / ("x" * 100)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    result = doctor()
    assert result.exit_code == 10
    assert "limit is 107" in checks()["sockets"]["finding"]


def test_a_runtime_folder_open_to_others_fails(folder: Path) -> None:
    (folder / "run").chmod(0o777)
    assert doctor().exit_code == 10
    assert "XDG_RUNTIME_DIR" in checks()["sockets"]["finding"]


def test_a_journal_from_the_future_is_a_warning(folder: Path) -> None:
    journal = folder / "home" / "runs" / "r" / "events.jsonl"
    journal.parent.mkdir(parents=True, mode=0o700)
    (folder / "home").chmod(0o700)
    journal.write_text("")
    os.utime(journal, (time.time() + 3600,) * 2)
    assert doctor().exit_code == 0
    assert checks()["clock"]["status"] == "warn"


def test_a_journal_that_has_just_gone_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.Path, "glob", lambda home, _pattern: iter([home / "removed"]))
    assert next(machine._clock()).status == "ok"


@pytest.mark.parametrize(("free", "status"), [(0, "FAIL"), (machine.GIB, "warn"), (9 * machine.GIB, "ok")])
def test_the_disk(monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    assert checks()["disk"]["status"] == status


def test_a_missing_extra_is_a_warning_that_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(machine.EXTRAS, "no_such_module", ("export", "tests"))
    result = doctor()
    assert result.exit_code == 0
    assert f"no_such_module is not installed, for tests – {install_command('export')}" in result.stdout


def test_a_containers_share_of_the_cores_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_quota", lambda: 0.5)
    check = checks()["cores"]
    assert check["status"] == "warn"
    assert "envs.threads=1" in check["advice"]


def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, str]]:
    """Status, subject and finding of what concerns other machines."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return [(c.status, c.what, c.finding) for c in machine._remote()]


def test_keys_that_others_can_read_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row[:2] for row in keys(monkeypatch, tmp_path)][-1] == ("ok", "keys")
    make_client("laptop", server=None, role="operator")
    assert "laptop (operator)" in keys(monkeypatch, tmp_path)[-1][2]
    (tmp_path / "config/esper/server.key").chmod(0o644)
    (tmp_path / "config/esper/keys/laptop.key").chmod(0o640)
    (tmp_path / "config/esper/authorized_clients.d/broken.pub").write_text("{")
    found = keys(monkeypatch, tmp_path)
    assert [row[0] for row in found if row[1] == "keys"] == ["FAIL", "FAIL", "warn", "ok"]
    assert "chmod 600" in found[1][2]


def test_no_ssh_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert keys(monkeypatch, tmp_path)[0][:2] == ("warn", "ssh")

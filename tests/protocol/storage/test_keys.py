"""Keys on the disk: made private, read only where they are, revoked at once."""

from __future__ import annotations

import json
import os
import stat
from itertools import chain
from pathlib import Path

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esper_overwatch.protocol.errors import BadName, FolderError, KeysUnusable
from esper_overwatch.protocol.messages.roles import ROLES, is_allowed
from esper_overwatch.protocol.storage import keys
from esper_overwatch.protocol.storage.keys import AllowList, client_pair, make_client, new_pair, read_secret
from tests.trainer.command import esper


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "esper"


def test_files_are_private_whatever_the_umask(config: Path) -> None:
    old = os.umask(0)
    try:
        make_client("laptop", server=None, role="operator")
    finally:
        os.umask(old)
    modes = {p.relative_to(config).as_posix(): stat.S_IMODE(p.stat().st_mode) for p in config.rglob("*")}
    assert modes == {
        "server.key": 0o600,
        "keys": 0o700,
        "keys/laptop.key": 0o600,
        "authorized_clients.d": 0o700,
        "authorized_clients.d/laptop.pub": 0o600,
    }
    name, pair = client_pair(None)
    assert (name, pair.server) == ("laptop", keys.server_pair().public)
    (one,) = AllowList().clients.values()
    assert (one.name, one.role, one.public) == ("laptop", "operator", pair.public)


def test_missing_server_key_names_the_command_that_makes_it(config: Path) -> None:
    with pytest.raises(
        KeysUnusable, match=r"server\.key; make it and a client's: esper-daemon keys new NAME"
    ):
        keys.server_pair()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_secret_that_others_can_read_is_refused(config: Path, mode: int) -> None:
    make_client("laptop", server=None, role="viewer")
    path = config / "keys/laptop.key"
    path.chmod(mode)
    with pytest.raises(KeysUnusable, match=f"mode {mode:04o}.*chmod 600"):
        client_pair("laptop")
    (config / "server.key").chmod(mode)
    with pytest.raises(KeysUnusable, match=r"server\.key is open to others"):
        keys.server_pair()


def test_secret_behind_a_link_or_of_another_is_refused(config: Path) -> None:
    make_client("laptop", server=None, role="viewer")
    path = config / "keys/laptop.key"
    (config / "keys/other.key").symlink_to(path)
    with pytest.raises(KeysUnusable, match="a link or a folder"):
        client_pair("other")
    if os.getuid() == 0:
        os.chown(path, 12345, 12345)
        with pytest.raises(KeysUnusable, match="belongs to uid 12345"):
            client_pair("laptop")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_no_content_of_a_file_is_a_crash(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeysUnusable):
        read_secret(path)


def test_halves_that_do_not_belong_together(config: Path) -> None:
    make_client("laptop", server=None, role="viewer")
    path = config / "keys/laptop.key"
    path.write_text(json.dumps({**json.loads(path.read_text()), "public": new_pair().public}))
    with pytest.raises(KeysUnusable, match="do not belong together"):
        client_pair("laptop")


def test_nothing_is_written_over(config: Path) -> None:
    make_client("laptop", server=None, role="viewer")
    before = (config / "keys/laptop.key").read_bytes()
    with pytest.raises(KeysUnusable, match="authorized already"):
        make_client("laptop", server=None, role="admin")
    with pytest.raises(KeysUnusable, match="is there already"):
        make_client("laptop", server=new_pair().public, role=None)
    assert (config / "keys/laptop.key").read_bytes() == before


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "a\n", "x" * 65])
def test_names_that_lead_elsewhere(name: str) -> None:
    with pytest.raises(BadName, match="is not a name for a key"):
        make_client(name, server=None, role="viewer")
    with pytest.raises(BadName):
        AllowList().authorize(name, new_pair().public, "viewer")
    with pytest.raises(BadName):
        AllowList().revoke(name)


def test_a_folder_that_others_may_write_is_refused(config: Path) -> None:
    make_client("laptop", server=None, role="viewer")
    (config / "authorized_clients.d").chmod(0o777)
    with pytest.raises(FolderError, match="open to others"):
        AllowList().authorize("other", new_pair().public, "viewer")


def test_a_wrong_entry_lets_nobody_in_and_harms_no_other(config: Path) -> None:
    make_client("laptop", server=None, role="viewer")
    folder = config / "authorized_clients.d"
    public = new_pair().public
    for name, text in {
        "broken": "{",
        "role": json.dumps({"public": public, "role": "root"}),
        "key": json.dumps({"public": "short", "role": "admin"}),
    }.items():
        (folder / f"{name}.pub").write_text(text)
    (folder / "open.pub").write_text(json.dumps({"public": public, "role": "admin"}))
    (folder / "open.pub").chmod(0o666)
    allowed = AllowList()
    assert [one.name for one in allowed.clients.values()] == ["laptop"]
    assert len(allowed.problems) == 4
    assert any("chmod go-w" in problem for problem in allowed.problems)


def test_changes_are_seen_and_tell_who_lost_access(config: Path) -> None:
    make_client("one", server=None, role="viewer")
    make_client("two", server=None, role="viewer")
    allowed = AllowList()
    assert not allowed.changed
    AllowList().authorize("two", client_pair("two")[1].public, "admin")
    assert allowed.changed
    assert allowed.reload() == []
    AllowList().revoke("one")
    assert allowed.changed
    assert [one.name for one in allowed.reload()] == ["one"]
    AllowList().revoke("two")
    AllowList().authorize("two", new_pair().public, "admin")
    assert [one.name for one in allowed.reload()] == ["two"], "another key under the same name"


def test_roles_contain_each_other() -> None:
    assert [[is_allowed(role, need) for need in ROLES] for role in ROLES] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert not any(is_allowed(None, need) for need in ROLES)


def run(*words: str) -> tuple[int, str]:
    result = esper("keys", *words)
    return result.exit_code, result.output


def test_a_public_key_is_never_taken_for_an_option(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = zmq.curve_keypair()
    while not pair[0].startswith(b"-"):
        pair = zmq.curve_keypair()
    made = chain([pair], iter(zmq.curve_keypair, None))
    monkeypatch.setattr(zmq, "curve_keypair", lambda: next(made))
    listed = json.loads(run("list", "--json")[1])
    assert run("new", "away", "--server", listed["server"] or "x" * 40)[0] == 0
    public = client_pair("away")[1].public
    assert run("authorize", "away", public, "--role", "viewer")[0] == 0


def test_the_command_line(config: Path) -> None:
    assert run("list") == (0, "server key  none yet; keys new NAME --role ROLE makes it\n")
    code, text = run("new", "laptop", "--role", "operator")
    assert code == 0
    assert "laptop is operator here" in text
    listed = json.loads(run("list", "--json")[1])
    assert [(row["name"], row["role"]) for row in listed["authorized"]] == [("laptop", "operator")]
    assert listed["server"] == keys.server_pair().public
    assert "secret" not in json.dumps(listed)
    assert run("authorize", "laptop", "--role", "admin") == (0, "laptop is admin here\n")
    assert run("revoke", "laptop") == (0, "laptop may connect no longer\n")
    code, text = run("revoke", "laptop")
    assert (code, "is not authorized here" in text) == (10, True)
    assert run("authorize", "laptop", "--role", "admin")[0] == 2
    assert run("new", "x")[0] == 2
    code, text = run("new", "away", "--server", listed["server"])
    public = client_pair("away")[1].public
    assert f"keys authorize away '{public}' --role ROLE" in text
    assert run("authorize", "away", public, "--role", "viewer")[0] == 0
    assert run("authorize", "again", public, "--role", "viewer")[0] == 10
    assert run("authorize", "bad", "tooshort", "--role", "viewer")[0] == 10

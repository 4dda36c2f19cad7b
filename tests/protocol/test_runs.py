from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from esper_overwatch import Subscriber, connect, publish
from esper_overwatch.protocol.codec.json_lines import encode_event
from esper_overwatch.protocol.errors import BadName, FolderError, NameTaken, RunNotFound
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.runs import RunFolder, find_run, list_runs
from esper_overwatch.protocol.server.server import Server
from esper_overwatch.protocol.storage.folders import (
    config_folder,
    esper_home,
    socket_folder,
    write_atomically,
)

from .harness import Start

CLAIM = """
import sys
from esper_overwatch.protocol.runs import RunFolder
run = RunFolder.claim(sys.argv[1])
print(run.id, flush=True)
sys.stdin.read()
"""


def claim_elsewhere(name: str) -> subprocess.Popen[str]:
    """Another process that holds a run until it is asked to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_run_has_its_folder_and_keeps_its_id(home: Path) -> None:
    with RunFolder.claim("alpha") as run:
        assert not run.existed
        assert run.path == home / "runs" / "alpha"
        assert run.path.stat().st_mode & 0o777 == 0o700
        assert run.checkpoints.is_dir()
        assert run.traces.is_dir()
        identity = run.id
    with RunFolder.claim("alpha") as run:
        assert run.existed
        assert run.id == identity


def test_a_run_without_a_name_gets_one(home: Path) -> None:
    with RunFolder.claim(prefix="digits") as one, RunFolder.claim(prefix="digits") as two:
        assert one.name != two.name
        assert one.name.startswith("digits-")
        assert len(one.name) == len("digits-7f3a")


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "-x", "x" * 65, "a\n", "é"])
def test_bad_names(name: str) -> None:
    with pytest.raises(BadName, match="is not a name for a run"):
        RunFolder.claim(name)


def test_a_second_process_is_told_who_holds_the_run(home: Path) -> None:
    holder = claim_elsewhere("alpha")
    with pytest.raises(NameTaken, match=rf"run alpha is held by pid {holder.pid} since 20\d\d-.*name") as e:
        RunFolder.claim("alpha")
    assert e.value.exit_code == 8
    (run,) = list_runs()
    assert run.is_live
    assert run.pid == holder.pid
    end(holder)
    assert not list_runs()[0].is_live
    with RunFolder.claim("alpha") as run_again:
        assert run_again.existed


def test_the_lock_is_held_within_a_process_too(home: Path) -> None:
    with RunFolder.claim("alpha"):
        with pytest.raises(NameTaken, match=f"pid {os.getpid()}"):
            RunFolder.claim("alpha")
        list_runs()
        other = subprocess.run(
            [sys.executable, "-c", CLAIM, "alpha"], input="", capture_output=True, text=True, check=False
        )
        assert "NameTaken" in other.stderr, "looking at a lock must not drop it"


def test_runs_are_found_by_the_beginning_of_name_or_id(start: Start) -> None:
    one, two = start("alpha"), start("alps")
    RunFolder.claim("beta").release()
    assert find_run().name == "alps", "the newest live one"
    assert find_run("alpha").name == "alpha"
    assert find_run("alph").name == "alpha"
    assert find_run(one.run.id[:7]).name == "alpha"
    assert find_run("beta").is_live is False
    with pytest.raises(RunNotFound, match="alp may be any of alps, alpha; type more"):
        find_run("alp")
    with pytest.raises(RunNotFound, match="no run gamma; there are: "):
        find_run("gamma")
    with pytest.raises(BadName, match="the name of the run is empty"):
        find_run("")
    with pytest.raises(
        RunNotFound, match=r"beta is not alive \(DIED\); go on: .*resume beta; .*; live: alps, alpha"
    ):
        find_run("bet", live_only=True)
    two.close()
    two.run.release()
    assert find_run().name == "alpha"


def test_an_exact_name_wins_over_a_longer_one() -> None:
    for name in ("a", "ab"):
        RunFolder.claim(name).release()
    assert find_run("a").name == "a"


def test_ended_run_is_told_by_its_exact_name() -> None:
    for name in ("x", "xy", "z1", "z2"):
        RunFolder.claim(name).release()
    with pytest.raises(RunNotFound, match=r"run x is not alive \(DIED\); go on: .*--resume x; .*doctor x;"):
        find_run("x", live_only=True)
    with pytest.raises(RunNotFound, match="z may be any of z2, z1; type more of it"):
        find_run("z", live_only=True)


def test_nothing_there_says_what_to_type() -> None:
    with pytest.raises(RunNotFound, match="no live run found; start one with: esper-daemon start"):
        find_run(live_only=True)


def test_message_about_live_runs_counts_those_that_ended(start: Start) -> None:
    for name in ("beta", "gamma"):
        RunFolder.claim(name).release()
    ended = "ended runs, shown by esper-daemon list --all: 2"
    with pytest.raises(RunNotFound, match=f"no run delta; live: none; {ended}$"):
        find_run("delta", live_only=True)
    with pytest.raises(RunNotFound, match=r"no run delta; there are: gamma, beta$"):
        find_run("delta")
    start("alpha")
    with pytest.raises(RunNotFound, match=f"no run delta; live: alpha; {ended}$"):
        connect("delta")


def test_the_state_of_the_living_and_the_dead(start: Start, home: Path) -> None:
    with RunFolder.claim("young"):
        assert find_run("young").state == "STARTING"
    server = start("alpha")
    server.set_state("PAUSED")
    server.close()
    assert find_run("alpha").state == "STARTING", "sockets closed, lock still held"
    server.run.release()
    assert find_run("alpha").state == "DIED"
    for code, state in ((0, "STOPPED"), (11, "FAILED")):
        line = encode_event(9, 9, ev.Context(), ev.RunStopped(reason="x", exit_code=code, rounds=1))
        with server.run.events.open("ab") as file:
            file.write(line + b"\n")
        assert find_run("alpha").state == state


def test_the_connection_file_tells_how_to_reach_the_daemon(server: Server, home: Path) -> None:
    path = home / "runs" / "alpha" / "connection.json"
    assert path.stat().st_mode & 0o777 == 0o600
    connection = json.loads(path.read_text())
    assert connection["pid"] == os.getpid()
    assert connection["boot"] == server.boot
    assert abs(connection["starttime"] / 1e6 - psutil.Process().create_time()) < 0.1
    assert set(connection["endpoints"]) == {"ev", "qry", "ctl"}
    server.close()
    assert not path.exists()


def test_a_stale_connection_file_is_not_believed(home: Path) -> None:
    """pid reuse: the file of a dead daemon, while another process has just taken the run."""
    holder = claim_elsewhere("alpha")
    stale = {
        "v": 1,
        "run": "x",
        "name": "alpha",
        "boot": "old",
        "pid": 1,
        "starttime": 1,
        "started": 1,
        "endpoints": {},
        "host": "h",
        "version": "0",
    }
    (home / "runs" / "alpha" / "connection.json").write_text(json.dumps(stale))
    assert find_run("alpha").connection is None
    end(holder)


def test_eight_runs_side_by_side(start: Start) -> None:
    servers = [start(None) for _ in range(8)]
    runs = list_runs()
    assert len(runs) == 8
    assert all(run.is_live for run in runs)
    for server in servers:
        assert find_run(server.run.name).connection.boot == server.boot  # type: ignore[union-attr]


def test_the_socket_folder_falls_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> None:
    given = home.parent / "run"
    assert socket_folder("0a1b2c3d") == given / "esper" / "0a1b2c3d"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    monkeypatch.setattr("tempfile.tempdir", str(home.parent))
    folder = socket_folder("0a1b2c3d")
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent in (home.parent / f"esper-{os.getuid()}", Path(f"/run/user/{os.getuid()}/esper"))


def test_relative_folders_of_the_xdg_variables_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relative").mkdir(mode=0o700)
    for variable in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.delenv("ESPER_HOME")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert socket_folder("0a1b2c3d").is_absolute()
    assert config_folder() == tmp_path / "me" / ".config" / "esper"
    assert esper_home() == tmp_path / "me" / ".local" / "share" / "esper"
    assert not list((tmp_path / "relative").iterdir())


def test_home_may_be_text_wherever_one_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for home in (str(tmp_path / "mine"), "mine", "~/mine", Path("~/mine")):
        with publish("loop", home=home, resume=True) as run:
            assert run.path == tmp_path / "mine/runs/loop"
            with connect("loop", home=home) as client:
                assert client.status()["name"] == "loop"
            viewer = Subscriber("loop", home=home)
            assert next(viewer.items(timeout=300.0))
            viewer.close()
            assert [found.name for found in list_runs(home)] == ["loop"]
    with pytest.raises(FolderError, match="not UTF-8; set home to one that is"):
        list_runs("mine\udcff")


def test_relative_home_is_in_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESPER_HOME", "mine")
    assert esper_home() == tmp_path / "mine"


@pytest.mark.parametrize("name", ["~nobody-of-this-name/x", os.fsdecode(b"/tmp/\xff")])
def test_home_that_cannot_be_named_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("ESPER_HOME", name)
    with pytest.raises(FolderError, match="set ESPER_HOME to"):
        list_runs()


def test_a_path_too_long_for_a_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 80)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    length = len(str(deep / "esper" / "0a1b2c3d" / "qry"))
    with pytest.raises(FolderError, match=rf"has {length} bytes and .* limit is 107; set XDG_RUNTIME_DIR"):
        socket_folder("0a1b2c3d")


def make(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o777, 0o701])
def test_a_socket_folder_open_to_others_is_refused(home: Path, mode: int) -> None:
    make(home.parent / "run" / "esper", mode)
    with pytest.raises(FolderError, match=f"open to others .mode 0{mode:o}.; run: chmod 700"):
        socket_folder("0a1b2c3d")


def test_a_link_in_place_of_the_folder_is_refused(home: Path, tmp_path: Path) -> None:
    (home.parent / "run" / "esper").symlink_to(tmp_path)
    with pytest.raises(FolderError, match="a link or a file"):
        socket_folder("0a1b2c3d")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(home: Path) -> None:
    folder = home.parent / "run" / "esper"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)
    with pytest.raises(FolderError, match="belongs to uid 12345, not to you"):
        socket_folder("0a1b2c3d")


def test_a_runtime_folder_that_others_may_write_is_refused(home: Path) -> None:
    (home.parent / "run").chmod(0o777)
    with pytest.raises(FolderError, match="not yours alone to write"):
        socket_folder("0a1b2c3d")


def test_a_home_that_others_may_write_is_refused(home: Path) -> None:
    make(home, 0o777)
    with pytest.raises(FolderError, match="open to others"):
        RunFolder.claim("alpha")
    home.chmod(0o755)
    RunFolder.claim("alpha").release()


def test_a_home_that_cannot_be_made_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_HOME", "/dev/null/esper")
    with pytest.raises(FolderError, match=r"cannot make the folder /dev/null/esper: .*ESPER_HOME") as error:
        RunFolder.claim("alpha")
    assert "\n" not in str(error.value)


def test_an_atomic_write_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    assert path.stat().st_mode & 0o777 == 0o600
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FolderError, match="cannot write"):
        write_atomically(tmp_path / "none" / "file", b"x")

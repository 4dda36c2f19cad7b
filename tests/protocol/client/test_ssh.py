"""Runs on another machine, through a real OpenSSH server."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from esper_overwatch import connect
from esper_overwatch.protocol.client.client import Client
from esper_overwatch.protocol.client.sources import make_target_source, wait_for_target
from esper_overwatch.protocol.client.ssh_command import DAEMON_VARIABLE
from esper_overwatch.protocol.errors import NoReply, RunNotFound, TunnelError
from esper_overwatch.protocol.journal.reader import read
from tests.protocol.harness import Daemon, Reader, until
from tests.protocol.sshd import ABSENT, Machine, ssh_children

needs_sshd = pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))


@needs_sshd
def test_a_run_on_another_machine_is_steered_and_followed(
    box: Machine, over_there: Callable[[str], Daemon], reader: Callable[..., Reader]
) -> None:
    over_there("alpha")
    over_there("beta")
    with connect("ssh://box/al") as run:
        assert (run.run.name, run.status()["state"]) == ("alpha", "TRAINING")
        assert run.checkpoint(tag="x", wait=True)["n"] > 0
        (folder,) = Path(os.environ["XDG_RUNTIME_DIR"]).glob("esper/ssh-*")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {
            "ev": 0o600,
            "qry": 0o600,
            "ctl": 0o600,
        }
        assert ssh_children()
    assert not ssh_children()
    assert not folder.exists()
    mine = reader("ssh://box/beta")
    mine.read(lambda: len(mine.events) > 50)
    assert mine.subscriber.state == "live"
    assert mine.subscriber.run is not None
    assert mine.subscriber.run.name == "beta"
    audit = [e.data for e in read(box.home / "runs/alpha/events.jsonl") if e.type == "command.accepted"]
    assert [(a.method, a.uid, a.client) for a in audit] == [("checkpoint", os.getuid(), "python")]


@needs_sshd
@pytest.mark.slow
def test_a_dead_tunnel_comes_back_and_carries_out_nothing_late(
    box: Machine, over_there: Callable[[str], Daemon], reader: Callable[..., Reader]
) -> None:
    over_there("alpha")
    mine = reader("ssh://box/alpha")
    mine.read(lambda: mine.subscriber.state == "live")
    seen = mine.last("life")
    box.down()
    late = mine.subscriber.request("stop", deadline_s=1.0)
    mine.read(lambda: any(getattr(i, "id", None) == late for i in mine.items))
    (answer,) = (i for i in mine.items if getattr(i, "id", None) == late)
    assert answer.error.kind == "no_reply"
    mine.read(lambda: mine.subscriber.problem)
    assert "box" in mine.subscriber.problem
    assert mine.subscriber.state == "lost"
    box.up()
    mine.read(lambda: mine.subscriber.state == "live", seconds=300)
    mine.read(lambda: mine.last("life") > seen + 500)
    numbers = [e.seq for e in mine.events if e.stream == "life" and e.seq >= seen]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "what was missed has been repaired"
    asked = [e.data.method for e in read(box.home / "runs/alpha/events.jsonl") if hasattr(e.data, "method")]
    assert "stop" not in asked


@needs_sshd
@pytest.mark.slow
def test_a_daemon_that_restarts_over_there_is_followed(
    box: Machine, over_there: Callable[[str], Daemon], reader: Callable[..., Reader]
) -> None:
    first = over_there("alpha")
    mine = reader("ssh://box/alpha")
    mine.read(lambda: mine.subscriber.state == "live")
    boot = mine.subscriber.boot
    first.kill()
    first.wait()
    mine.read(lambda: mine.subscriber.state == "lost")
    over_there("alpha")
    mine.read(lambda: mine.subscriber.state == "live" and mine.subscriber.boot != boot, seconds=300)
    assert [r.split(",")[1].split()[0] for r in mine.resets] == ["boot", "new"]


@pytest.mark.slow
@needs_sshd
def test_what_is_wrong_is_said(box: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunNotFound, match="box: no live run found"):
        connect("ssh://box")
    with pytest.raises(RunNotFound, match="box: no run alpha; there are: none"):
        connect("ssh://box/alpha")
    with monkeypatch.context() as patch:
        patch.setenv(DAEMON_VARIABLE, "esper-daemon-that-is-not-there")
        with pytest.raises(TunnelError, match="box has no esper-daemon-that-is-not-there on its PATH"):
            connect("ssh://box")
    with monkeypatch.context() as patch:
        patch.setenv(DAEMON_VARIABLE, "echo")
        with pytest.raises(TunnelError, match="box: echo list gave no list of runs"):
            connect("ssh://box")
    box.down()
    with pytest.raises(TunnelError, match=r"box cannot be reached: ssh: connect to host .* refused"):
        connect("ssh://box")
    with pytest.raises(TunnelError, match=r"nowhere\.invalid cannot be reached: .*resolve"):
        connect("ssh://nowhere.invalid")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(TunnelError, match="ssh cannot be run here"):
            connect("ssh://box")
    assert not ssh_children()


@pytest.mark.slow
@needs_sshd
def test_a_tunnel_dies_with_its_owner(box: Machine, over_there: Callable[[str], Daemon]) -> None:
    over_there("alpha")
    code = "import esper_overwatch as e, time; print(e.connect('ssh://box').boot, flush=True); time.sleep(99)"
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline()
    children = psutil.Process(owner.pid).children(recursive=True)
    assert children
    owner.kill()
    owner.communicate()
    until(lambda: not any(c.is_running() and c.status() != psutil.STATUS_ZOMBIE for c in children))


@needs_sshd
@pytest.mark.slow
def test_unnamed_run_is_followed_while_it_lives(box: Machine, over_there: Callable[[str], Daemon]) -> None:
    over_there("alpha")
    source = make_target_source("ssh://box")
    try:
        target = wait_for_target(source)
        over_there("beta")
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert source.find() == target
            time.sleep(0.1)
    finally:
        source.close()


@needs_sshd
@pytest.mark.slow
def test_a_server_that_forwards_no_sockets(
    box: Machine, over_there: Callable[[str], Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    over_there("alpha")
    box.down()
    box.configure("AllowStreamLocalForwarding no")
    box.up()
    monkeypatch.setattr("esper_overwatch.protocol.client.client.STARTING_SECONDS", 2.0)
    with pytest.raises(NoReply, match="did not answer hello"):
        connect("ssh://box/alpha")


@needs_sshd
@pytest.mark.slow
def test_a_taken_local_forward_stands_in_nobodys_way(
    box: Machine, over_there: Callable[[str], Daemon]
) -> None:
    over_there("alpha")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        box.configure_client(f"LocalForward {taken.getsockname()[1]} 127.0.0.1:9")
        box.configure_client("RemoteCommand echo hello")
        with connect("ssh://box/alpha") as run:
            assert run.status()["state"] == "TRAINING"
        listed = subprocess.run(
            [sys.executable, "-m", "esper_overwatch.trainer", "list", "--ssh", "box"],
            capture_output=True,
            text=True,
        )
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "alpha" in listed.stdout


@needs_sshd
@pytest.mark.slow
def test_a_tunnel_outlives_the_thread_that_made_it(box: Machine, over_there: Callable[[str], Daemon]) -> None:
    over_there("alpha")
    made: list[Client] = []
    thread = threading.Thread(target=lambda: made.append(connect("ssh://box/alpha")))
    thread.start()
    thread.join()
    (run,) = made
    try:
        before = {child.pid for child in ssh_children()}
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert run.status()["state"] == "TRAINING"
        assert before & {child.pid for child in ssh_children() if child.status() != psutil.STATUS_ZOMBIE}
    finally:
        run.close()
    assert not ssh_children()

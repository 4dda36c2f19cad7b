"""The runs of another machine, live through a real OpenSSH server that freezes, dies and comes back."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest

from esper_overwatch.overwatch_tui.screens.runs import POLL_SECONDS
from esper_overwatch.overwatch_tui.source import run_list
from esper_overwatch.overwatch_tui.source.run_list import SILENT_SECONDS, RemoteMachine, RunList
from esper_overwatch.protocol.codec.addresses import parse_ssh_address
from esper_overwatch.trainer.cli.runs import BEAT_SECONDS
from tests.overwatch_tui.runs import make_run
from tests.protocol.harness import until
from tests.protocol.sshd import ABSENT, Machine

pytestmark = [pytest.mark.slow, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]


def test_machine_that_freezes_or_dies_is_told_and_comes_back(
    box: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BEAT_SECONDS < SILENT_SECONDS < 3.0 - POLL_SECONDS, "who dies is marked within 3 s"
    monkeypatch.setattr(run_list, "SILENT_SECONDS", 10.0)  # a busy machine is not a dead one
    monkeypatch.setattr(run_list, "GIVE_UP_SECONDS", 15.0)
    make_run(box.home, "alpha", exit_code=0)
    there = RemoteMachine(parse_ssh_address("ssh://box"))
    runs = RunList([there])

    def names() -> list[str]:
        runs.poll()
        return sorted(run.name for _, run in runs.entries)

    with closing(runs):
        until(lambda: names() == ["alpha"])
        make_run(box.home, "beta")
        until(lambda: names() == ["alpha", "beta"])
        shutil.rmtree(box.home / "runs" / "alpha")
        until(lambda: names() == ["beta"])

        box.freeze()
        until(lambda: runs.poll() and there.silence is not None)
        assert (names(), there.problem) == (["beta"], ""), "what was known of it stays"
        until(lambda: runs.poll() and there.problem == "box does not answer")
        box.thaw()
        until(lambda: runs.poll() and there.silence is None)

        box.down()
        until(lambda: runs.poll() and there.problem)
        assert there.problem.startswith("box cannot be reached")
        assert there.silence is not None
        box.up()
        until(lambda: runs.poll() and there.silence is None)
        assert (names(), there.problem) == (["beta"], "")


def test_list_that_is_not_shown_keeps_no_connection(box: Machine) -> None:
    make_run(box.home, "alpha", exit_code=0)
    there = RemoteMachine(parse_ssh_address("ssh://box"))
    runs = RunList([there])
    with closing(runs):
        until(lambda: runs.poll() and there.runs)
        until(lambda: box.num_connections == 1)
    until(lambda: box.num_connections == 0)
    assert there.silence is None, "nobody has asked it"
    assert [run.name for _, run in runs.entries] == ["alpha"]


def test_program_that_lists_no_runs_is_told(box: Machine) -> None:
    there = RemoteMachine(parse_ssh_address("ssh://box"), daemon="echo")
    with closing(RunList([there])) as runs:
        until(lambda: runs.poll() and there.problem)
        assert there.problem.startswith("box: esper-daemon list gave no list of runs")

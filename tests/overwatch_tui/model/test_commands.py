"""The life of a command on the screen."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.commands import MAX_COMMANDS, NO_REPLY_MICROSECONDS, Commands
from esper_overwatch.protocol.messages import events as ev


def accepted(id_: str, method: str = "pause", client: str = "esper-tui/0.1") -> ev.CommandAccepted:
    return ev.CommandAccepted(id=id_, method=method, params={}, client=client, uid=1000, pid=1)


def test_sent_answered_running_done() -> None:
    commands = Commands()
    command = commands.add_sent("a", "telemetry.escalate", {"level": "DEBUG", "epochs": 5}, 0)
    assert command.state == "SENT"
    assert command.title == "escalate DEBUG 5"
    commands.add_reply("a", error=None, rtt=0.038)
    assert (command.state, command.rtt) == ("ACK", 0.038)
    commands.fold(accepted("a", "telemetry.escalate"), ts=1)
    assert (command.state, command.by) == ("ACK", "me")
    commands.fold(ev.TelemetryLevel(level="DEBUG", previous="NORMAL", reason="", epochs=5, command="a"), ts=2)
    assert command.state == "RUNNING"
    commands.fold(
        ev.CommandDone(id="a", method="telemetry.escalate", result={"level_after": "NORMAL"}, seconds=1.0),
        ts=3,
    )
    assert (command.state, command.detail, command.ended) == ("DONE", "level after NORMAL", 3)


def test_the_effect_may_come_before_the_answer() -> None:
    commands = Commands()
    command = commands.add_sent("a", "pause", {}, 0)
    commands.fold(ev.CommandDone(id="a", method="pause", result={}, seconds=0.1), ts=1)
    commands.add_reply("a", error=None, rtt=0.1)
    assert command.state == "DONE"


def test_refused_failed_and_unanswered_are_distinguished() -> None:
    commands = Commands()
    refused = commands.add_sent("a", "resume", {}, 0)
    commands.add_reply("a", error="it is not paused", rtt=0.01)
    assert (refused.state, refused.detail) == ("NACK", "it is not paused")
    failed = commands.add_sent("b", "checkpoint", {}, 0)
    commands.fold(accepted("b"), ts=1)
    commands.fold(ev.CommandFailed(id="b", method="checkpoint", kind="internal", message="disk full"), ts=2)
    assert (failed.state, failed.detail) == ("FAILED", "disk full")
    silent = commands.add_sent("c", "pause", {}, 0)
    commands.mark_overdue(NO_REPLY_MICROSECONDS)
    assert silent.state == "SENT"
    commands.mark_overdue(NO_REPLY_MICROSECONDS + 1)
    assert silent.state == "NO REPLY"
    commands.add_reply("c", error=None, rtt=3.0)
    assert (silent.state, silent.detail) == ("ACK", ""), "late, but it came"


def test_a_restart_fails_what_was_open() -> None:
    commands = Commands()
    running = commands.add_sent("a", "profiler.start", {"epochs": 2}, 0)
    commands.fold(ev.ProfilerStarted(epochs=2, command="a"), ts=1)
    done = commands.add_sent("b", "pause", {}, 0)
    commands.fold(ev.CommandDone(id="b", method="pause", result={}, seconds=0.1), ts=1)
    commands.mark_daemon_lost("the daemon restarted")
    assert (running.state, running.detail) == ("FAILED", "the daemon restarted")
    assert done.state == "DONE"


def test_commands_of_others_have_an_author_ours_come_first() -> None:
    commands = Commands()
    mine = commands.add_sent("a", "pause", {}, 0)
    commands.fold(accepted("x", "checkpoint", client="esper-daemon/0.1"), ts=1)
    theirs = next(each for each in commands.newest_first() if each.id == "x")
    assert theirs is not None
    assert theirs.by == "esper-daemon uid1000"
    assert commands.latest is mine
    assert [o.number for o in commands.newest_first()] == [2, 1]


def test_only_so_many_are_kept() -> None:
    commands = Commands()
    for i in range(MAX_COMMANDS + 50):
        commands.add_sent(f"id{i}", "pause", {}, i)
    assert len(commands.newest_first()) == MAX_COMMANDS


def test_progress_is_shown_and_a_cancelled_command_is_over() -> None:
    commands = Commands()
    command = commands.add_sent("a", "telemetry.escalate", {"level": "DEBUG", "epochs": 5}, 0)
    commands.fold(accepted("a", "telemetry.escalate"), ts=1)
    commands.fold(ev.CommandProgress(id="a", method="telemetry.escalate", done=2, total=5), ts=2)
    assert (command.state, command.detail) == ("RUNNING", "2 of 5 epochs")
    commands.fold(
        ev.CommandFailed(id="a", method="telemetry.escalate", kind="cancelled", message="cancelled by bob"),
        ts=3,
    )
    assert (command.state, command.detail) == ("FAILED", "cancelled by bob")
    commands.fold(ev.CommandProgress(id="a", method="telemetry.escalate", done=3, total=5), ts=4)
    assert command.state == "FAILED"


def test_an_escalation_of_a_paused_run_waits() -> None:
    commands = Commands()
    command = commands.add_sent("a", "telemetry.escalate", {"level": "DEBUG", "epochs": 5}, 0)
    raised = ev.TelemetryLevel(level="DEBUG", previous="NORMAL", reason="", epochs=5, command="a")
    for event in (ev.RunStateChanged(state="PAUSED"), accepted("a", "telemetry.escalate"), raised):
        commands.fold(event, ts=1)
    assert (command.state, command.detail) == ("ACK", "waits: the run is paused")
    commands.fold(ev.RunStateChanged(state="TRAINING"), ts=2)
    assert command.state == "RUNNING"


def test_refused_command_accepted_later_counts_as_accepted() -> None:
    commands = Commands()
    refused = ev.CommandRefused(id="x", method="pause", client="c", uid=1, pid=1, code=-32009, message="busy")
    commands.fold(refused, ts=1)
    commands.fold(accepted("x"), ts=2)
    command = next(each for each in commands.newest_first() if each.id == "x")
    assert command is not None
    assert (command.state, command.detail) == ("ACK", "")


def test_title_has_every_number_and_no_switch() -> None:
    commands = Commands()
    assert commands.add_sent("a", "profiler.start", {"epochs": 1, "update": False}, 0).title == (
        "profiler.start 1"
    )
    assert commands.add_sent("b", "telemetry.escalate", {"epochs": 1, "env": 0}, 0).title == "escalate 1 0"

"""The life of a command on the screen."""

from __future__ import annotations

from overwatch_tui.orders import KEEP, NO_REPLY_AFTER, Orders
from protocol import events as ev


def accepted(id_: str, method: str = "pause", client: str = "esper-tui/0.1") -> ev.CommandAccepted:
    return ev.CommandAccepted(id=id_, method=method, params={}, client=client, uid=1000, pid=1)


def test_sent_answered_running_done() -> None:
    orders = Orders()
    order = orders.sent("a", "telemetry.escalate", {"level": "DEBUG", "epochs": 5}, 0)
    assert order.state == "SENT"
    assert order.title == "escalate DEBUG 5"
    orders.replied("a", error=None, rtt=0.038)
    assert (order.state, order.rtt) == ("ACK", 0.038)
    orders.fold(accepted("a", "telemetry.escalate"), ts=1)
    assert (order.state, order.by) == ("ACK", "me")
    orders.fold(ev.TelemetryLevel(level="DEBUG", previous="NORMAL", reason="", epochs=5, command="a"), ts=2)
    assert order.state == "RUNNING"
    orders.fold(
        ev.CommandDone(id="a", method="telemetry.escalate", result={"level": "NORMAL"}, seconds=1.0), ts=3
    )
    assert (order.state, order.detail, order.ended) == ("DONE", "level NORMAL", 3)


def test_the_effect_may_come_before_the_answer() -> None:
    orders = Orders()
    order = orders.sent("a", "pause", {}, 0)
    orders.fold(ev.CommandDone(id="a", method="pause", result={}, seconds=0.1), ts=1)
    orders.replied("a", error=None, rtt=0.1)
    assert order.state == "DONE"


def test_refused_failed_and_unanswered_are_told_apart() -> None:
    orders = Orders()
    refused = orders.sent("a", "resume", {}, 0)
    orders.replied("a", error="it is not paused", rtt=0.01)
    assert (refused.state, refused.detail) == ("NACK", "it is not paused")
    failed = orders.sent("b", "checkpoint", {}, 0)
    orders.fold(accepted("b"), ts=1)
    orders.fold(ev.CommandFailed(id="b", method="checkpoint", kind="internal", message="disk full"), ts=2)
    assert (failed.state, failed.detail) == ("FAILED", "disk full")
    silent = orders.sent("c", "pause", {}, 0)
    orders.tick(NO_REPLY_AFTER)
    assert silent.state == "SENT"
    orders.tick(NO_REPLY_AFTER + 1)
    assert silent.state == "NO REPLY"
    orders.replied("c", error=None, rtt=3.0)
    assert (silent.state, silent.detail) == ("ACK", ""), "late, but it came"


def test_a_restart_fails_what_was_open() -> None:
    orders = Orders()
    running = orders.sent("a", "profiler.start", {"epochs": 2}, 0)
    orders.fold(ev.ProfilerStarted(epochs=2, command="a"), ts=1)
    done = orders.sent("b", "pause", {}, 0)
    orders.fold(ev.CommandDone(id="b", method="pause", result={}, seconds=0.1), ts=1)
    orders.cut_off("the daemon restarted")
    assert (running.state, running.detail) == ("FAILED", "the daemon restarted")
    assert done.state == "DONE"


def test_what_others_do_is_shown_with_who_and_ours_come_first_in_the_footer() -> None:
    orders = Orders()
    mine = orders.sent("a", "pause", {}, 0)
    orders.fold(accepted("x", "checkpoint", client="esper-daemon/0.1"), ts=1)
    theirs = orders.get("x")
    assert theirs is not None
    assert theirs.by == "esper-daemon uid1000"
    assert orders.latest is mine
    assert [o.number for o in orders.newest_first()] == [2, 1]


def test_only_so_many_are_kept() -> None:
    orders = Orders()
    for i in range(KEEP + 50):
        orders.sent(f"id{i}", "pause", {}, i)
    assert len(orders) == KEEP


def test_progress_is_shown_and_a_cancelled_command_is_over() -> None:
    orders = Orders()
    order = orders.sent("a", "telemetry.escalate", {"level": "DEBUG", "epochs": 5}, 0)
    orders.fold(accepted("a", "telemetry.escalate"), ts=1)
    orders.fold(ev.CommandProgress(id="a", method="telemetry.escalate", done=2, total=5), ts=2)
    assert (order.state, order.detail) == ("RUNNING", "2 of 5 epochs")
    orders.fold(
        ev.CommandFailed(id="a", method="telemetry.escalate", kind="cancelled", message="cancelled by bob"),
        ts=3,
    )
    assert (order.state, order.detail) == ("FAILED", "cancelled by bob")
    orders.fold(ev.CommandProgress(id="a", method="telemetry.escalate", done=3, total=5), ts=4)
    assert order.state == "FAILED"

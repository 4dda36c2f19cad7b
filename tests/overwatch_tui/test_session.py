"""Feed and state together: joining, restarts, replies."""

from __future__ import annotations

from overwatch_tui.session import Session
from overwatch_tui.view import View
from protocol.errors import RequestError
from protocol.items import Reply, Reset

from .harness import ListFeed, events, session


def test_a_restart_is_said_and_what_was_open_has_failed() -> None:
    made = session(events(rounds=2))
    feed = made.feed
    assert isinstance(feed, ListFeed)
    order = made.send("pause", {})
    feed.answer({"state": "accepted"})
    made.tick()
    assert order.state == "ACK"
    feed.boot = "b2"
    feed.items = [Reset("run digits-7f3a, new boot b2"), *events(rounds=1)]
    made.tick()
    assert order.state == "FAILED"
    assert "restarted" in made.view.message
    assert any(entry.tag == "VIEW" and "restarted" in entry.text for entry in made.state.log)
    assert made.state.rounds_done == 1, "what is known begins anew"
    assert made.changed


def test_a_resynchronisation_keeps_log_commands_and_acknowledgements() -> None:
    made = session(events())
    made.state.anomalies.ack_all()
    waiting = len(made.state.anomalies.open_records(made.feed.now()))
    length = len(made.state.log)
    assert isinstance(made.feed, ListFeed)
    made.feed.items = [Reset("60000 events behind on metric"), *events()]
    made.tick()
    assert len(made.state.anomalies.open_records(made.feed.now())) == waiting == 0
    assert len(made.state.log) == length + 1
    assert "resynchronised" in made.view.message


def test_another_run_begins_from_nothing() -> None:
    made = session(events())
    assert isinstance(made.feed, ListFeed)
    made.feed.run_id, made.feed.boot = "another", "x1"
    made.feed.items = [Reset("run other, boot x1")]
    made.tick()
    assert made.state.run is None
    assert made.state.histories == {}
    assert len(made.state.log) == 1


def test_a_refusal_and_a_silence_are_shown_as_such() -> None:
    made = session(events(rounds=1))
    assert isinstance(made.feed, ListFeed)
    refused = made.send("resume", {})
    made.feed.answer(error=RequestError("wrong_state", "it is not paused"))
    made.tick()
    assert (refused.state, refused.detail) == ("NACK", "it is not paused")
    silent = made.send("pause", {})
    made.feed.items = [Reply(silent.id, "pause", None, RequestError("no_reply", "no answer in 10 s"), 10.0)]
    made.tick()
    assert (silent.state, silent.detail) == ("NO REPLY", "no answer in 10 s")


def test_why_an_accepted_command_has_to_wait_is_shown() -> None:
    made = session(events(rounds=1))
    assert isinstance(made.feed, ListFeed)
    waits = made.send("profiler.start", {"epochs": 2})
    made.feed.answer({"state": "accepted", "note": "the run is paused"})
    made.tick()
    assert (waits.state, waits.detail) == ("ACK", "the run is paused")
    lease = made.send("lease.acquire", {"note": "sweep"})
    made.feed.answer({"state": "done", "note": "sweep"})
    made.tick()
    assert lease.detail == "", "somebody's words, not a reason"


def test_thresholds_are_the_daemons() -> None:
    feed = ListFeed()
    feed.thresholds["kl"] |= {"warning": 0.5, "critical": 1.0}
    feed.items = [Reset("run digits-7f3a, boot b1")]
    made = Session(feed, View())
    made.tick()
    assert made.state.severity("kl", 0.4) is None
    assert made.state.severity("kl", 0.6) == "warning"


def test_the_selected_env_stays_within_the_run() -> None:
    made = session(events(), View(env=500))
    assert made.view.env == 15

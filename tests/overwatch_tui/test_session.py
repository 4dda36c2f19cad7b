"""Feed and state together: joining, restarts, replies."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.model.time_target import TimeTarget
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import RATE_WINDOW_SECONDS, Session
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed
from esper_overwatch.protocol.client.items import RequestOutcome, Reset
from esper_overwatch.protocol.errors import RequestError

from . import journal
from .harness import ListFeed, after_all, events, session


def test_restart_is_shown_and_open_commands_fail() -> None:
    made = session(events(rounds=2))
    feed = made.feed
    assert isinstance(feed, ListFeed)
    command = made.send("pause", {})
    feed.answer({"state": "accepted"})
    made.tick()
    assert command.state == "ACK"
    feed.boot = "b2"
    feed.items = [Reset("run digits-7f3a, new boot b2"), *map(after_all, events(rounds=1))]
    made.tick()
    assert command.state == "FAILED"
    assert "restarted" in made.view.message
    assert any(entry.tag == "VIEW" and "restarted" in str(entry.data) for entry in made.state.log)
    assert made.state.rounds_done == 1, "what is known begins anew"
    assert made.needs_paint


def test_a_resynchronisation_keeps_log_commands_and_acknowledgements() -> None:
    made = session(events())
    for record in made.state.incidents.waiting():
        made.state.incidents.ack(record.key, made.feed.now())
    assert made.state.incidents.unseen(made.feed.now()) == []
    length = len(made.state.log)
    assert isinstance(made.feed, ListFeed)
    made.feed.items = [Reset("60000 events behind on metric"), *events()]
    made.tick()
    assert len(made.state.incidents.open()) == 5
    assert made.state.incidents.unseen(made.feed.now()) == []
    assert len(made.state.log) == length + 1
    assert "resynchronised" in made.view.message


def test_another_run_begins_from_nothing() -> None:
    made = session(events())
    assert isinstance(made.feed, ListFeed)
    made.feed.run_id, made.feed.boot = "another", "x1"
    made.feed.items = [Reset("run other, boot x1")]
    made.tick()
    assert made.state.run is None
    assert made.state.curves.histories == {}
    assert len(made.state.log) == 1


def test_refusal_and_missing_reply_are_shown() -> None:
    made = session(events(rounds=1))
    assert isinstance(made.feed, ListFeed)
    refused = made.send("resume", {})
    made.feed.answer(error=RequestError("wrong_state", "it is not paused"))
    made.tick()
    assert (refused.state, refused.detail) == ("NACK", "it is not paused")
    silent = made.send("pause", {})
    late = RequestError("no_reply", "no answer in 10 s")
    made.feed.items = [RequestOutcome(silent.id, "pause", None, late, 10.0)]
    made.tick()
    assert (silent.state, silent.detail) == ("NO REPLY", "no answer in 10 s")


def test_accepted_command_shows_why_it_waits() -> None:
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


def test_the_selected_env_stays_within_the_run() -> None:
    made = session(events(), ViewState(env=500))
    assert made.view.env == 15


def test_wait_takes_in_the_whole_snapshot_first() -> None:
    made = Session(ListFeed([Reset("run digits-7f3a, boot b1"), *events()]), ViewState())
    assert isinstance(made.feed, ListFeed)
    made.feed.batch = 30
    assert made.wait(after_round=0) is True
    assert (made.state.ctx.round, made.state.epoch_ctx.epoch) == (6, 24)
    assert made.link.is_current


def test_what_a_snapshot_has_brought_so_far_is_not_current() -> None:
    made = Session(ListFeed([Reset("run digits-7f3a, boot b1"), *events()]), ViewState())
    assert isinstance(made.feed, ListFeed)
    made.feed.batch = 30
    made.tick()
    assert (made.link.state, made.link.is_current) == ("live", False)


def test_wait_without_an_epoch_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper_overwatch.overwatch_tui.session.FIRST_EPOCH_SECONDS", 0.05)
    made = session([event for event in events() if event.type != "epoch"])
    assert made.wait(after_round=0) is False
    assert made.state.epoch is None
    assert session(events()).wait(after_round=0) is True


def test_events_after_the_clock_stepped_back_are_counted() -> None:
    found = events()
    half = len(found) // 2
    made = session(found[:half], events=1)
    feed = made.feed
    assert isinstance(feed, ListFeed)
    later = [replace(one, ts=one.ts - 3600 * SECOND) for one in found[half:]]
    feed.items, feed.clock = list(later), later[-1].ts
    made.tick()
    recent = sum(one.ts >= feed.clock - RATE_WINDOW_SECONDS * SECOND for one in later)
    assert made.link.events_per_second == recent / RATE_WINDOW_SECONDS
    feed.clock += RATE_WINDOW_SECONDS * SECOND + 1
    made.tick()
    assert made.link.events_per_second == 0.0


def test_rewound_recording_counts_what_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = ReplayFeed(journal.write(tmp_path / "events.jsonl"), math.inf)
    made = Session(feed, ViewState())
    while not feed.is_over:
        made.tick()
    made.cursor.go_to(TimeTarget(ts=0))
    while made.cursor.is_seeking:
        made.tick()
    monkeypatch.setattr("esper_overwatch.overwatch_tui.source.replay.time.monotonic", lambda: 100.0)
    feed.is_paused, feed.speed = False, 1.0
    before = feed.clock
    while feed.clock < before + 2 * RATE_WINDOW_SECONDS * SECOND:
        feed.clock += SECOND
        made.tick()
    since = feed.clock - RATE_WINDOW_SECONDS * SECOND
    played = sum(since <= one.ts <= feed.clock for one in events())
    assert made.link.events_per_second == played / RATE_WINDOW_SECONDS

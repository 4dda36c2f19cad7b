"""A recorded run, played."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.render.link_text import link_text
from esper_overwatch.overwatch_tui.source.link_status import LinkStatus
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed, journal_of
from esper_overwatch.protocol.client.items import Reset
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.errors import EsperError
from tests.overwatch_tui import journal


def drained(feed: ReplayFeed) -> list[Any]:
    items: list[Any] = []
    while not feed.is_over:
        items += feed.drain()
    return items


def test_everything_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper_overwatch.overwatch_tui.source.replay.DRAIN_SECONDS", 0.0)
    path = journal.write(tmp_path / "events.jsonl", rounds=2)
    feed, link, labels, items = ReplayFeed(path, math.inf), LinkStatus(), [], []
    while not feed.is_over:
        items += feed.drain()
        feed.update_link(link)
        labels.append(link.label)
    shares = [int(label[len("OPENING ") : -1]) for label in labels[:-1]]
    assert shares == sorted(shares)
    assert (min(shares) < 5, max(shares) > 90, labels[-1]) == (True, True, "ENDED")
    assert isinstance(items[0], Reset)
    assert [i for i in items if isinstance(i, Event)] == journal.events(rounds=2)
    assert feed.boot == "b1"
    assert (link.state, link.label, link_text(link)) == ("ended", "ENDED", "the recording is over")


def test_at_its_own_pace_times_the_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("esper_overwatch.overwatch_tui.source.replay.time.monotonic", lambda: clock[0])
    path = journal.write(tmp_path / "events.jsonl", rounds=1)
    feed = ReplayFeed(path, 10.0)
    begin = feed.now()
    first = [i for i in feed.drain() if isinstance(i, Event)]
    assert {e.type for e in first} <= {"run.started", "run.state", "round.started"}
    clock[0] += 0.5
    items = [i for i in feed.drain() if isinstance(i, Event)]
    assert feed.now() - begin == 5_000_000
    epochs = [e.ctx.epoch for e in items if e.type == "epoch"]
    assert epochs == [1, 2, 3, 4, 5, 6, 7, 8]
    link = LinkStatus()
    feed.update_link(link)
    assert (link.state, link.replay_speed, link.is_replay) == ("replay", 10.0, True)


def test_long_silences_are_jumped_over(tmp_path: Path) -> None:
    run = journal.Run(rounds=0)
    run.make()
    run.ts += 3600 * 1_000_000
    run.emit(run.started())
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in run.lines))
    feed = ReplayFeed(path, 1.0)
    items = feed.drain() + feed.drain()
    assert [i.type for i in items if isinstance(i, Event)] == ["run.started", "run.state", "run.started"]


def test_a_second_boot_resets(tmp_path: Path) -> None:
    first = journal.Run(rounds=1)
    second = journal.Run(rounds=1, boot="b2", begin=first.begin + 10**9)
    lines = first.make()
    second.seq = dict(first.seq)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines + second.make()))
    items = drained(ReplayFeed(path, math.inf))
    assert [i.reason for i in items if isinstance(i, Reset)] == [
        "run digits-7f3a, boot b1",
        "run digits-7f3a, boot b2",
    ]


def test_damaged_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = journal.write(tmp_path / "events.jsonl", rounds=1)
    lines = path.read_bytes().split(b"\n")
    lines[3:3] = [b"\xff\x00 not an event", b'{"seq":1}']
    path.write_bytes(b"\n".join(lines))
    feed = ReplayFeed(path, math.inf)
    events = [i for i in drained(feed) if isinstance(i, Event)]
    assert events == journal.events(rounds=1)
    link = LinkStatus()
    feed.update_link(link)
    assert link.bad == 2
    assert "line 5" in link.last_bad


def test_unreadable_recording_is_a_one_line_error(tmp_path: Path) -> None:
    empty = tmp_path / "events.jsonl"
    empty.write_bytes(b"")
    with pytest.raises(EsperError, match="no event in it"):
        ReplayFeed(empty, 1.0)
    with pytest.raises(EsperError, match="no-such"):
        journal_of("no-such")
    assert journal_of(str(tmp_path)) == empty
    assert journal_of(str(empty)) == empty

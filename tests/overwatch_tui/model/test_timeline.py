"""The state at a moment equals the one folded from the beginning up to there."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper_overwatch.overwatch_tui.model import timeline as timeline_module
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.model.time_target import TimeTarget, parse_target
from esper_overwatch.overwatch_tui.model.timeline import MINUTE, RunTimeline, SeekTarget, is_trouble
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.layout import compose_screen
from esper_overwatch.overwatch_tui.render.panel import PanelInputs
from esper_overwatch.overwatch_tui.render.view_state import WINDOWS, ViewState
from esper_overwatch.overwatch_tui.source.cursor import Seek
from esper_overwatch.overwatch_tui.source.link_status import LinkStatus
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed
from esper_overwatch.protocol.codec.json_lines import Event
from tests.overwatch_tui import journal

WINDOW = WINDOWS.index(3600 * SECOND)


@cache
def events() -> tuple[Event, ...]:
    """Envs, some of which are in trouble, long enough for a few minutes."""
    return tuple(journal.events(envs=16, rounds=12, slots=1))


@cache
def walked() -> RunTimeline:
    """A timeline over all of them, with keyframes closer than a terminal has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_module, "KEYFRAME_EVENTS", 50)
        return noted()


def noted() -> RunTimeline:
    timeline, state = RunTimeline(), State()
    for event in events():
        timeline.fold(state, event)
    return timeline


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return journal.write(tmp_path_factory.mktemp("run") / "events.jsonl", envs=16, rounds=12, slots=1)


def numbers(position: int) -> dict[str, int]:
    """The newest number of each stream after so many events."""
    return {event.stream: event.seq for event in events()[:position]}


def scratch(position: int) -> State:
    made = State()
    for event in events()[:position]:
        made.fold(event)
    return made


def sought(path: Path, target: SeekTarget) -> State:
    timeline = walked()
    keyframe = timeline.keyframe_before(target)
    assert keyframe is not None
    state = timeline.start(keyframe)
    reader = ReplayFeed(path, math.inf)
    reader.rewind(state)
    seek = Seek(timeline, state, reader, target)
    assert seek.step(math.inf)
    told = [entry for entry in seek.state.log if entry.stream != "view"]  # without that a boot begins
    seek.state.log.clear()
    seek.state.log.extend(told)
    return seek.state


def drawn(state: State, name: str) -> str:
    view = ViewState(window=WINDOW)
    PANELS.show(view, name)
    inputs = PanelInputs(state, view, LinkStatus(state="live"), state.ts)
    text = compose_screen(PANELS, inputs, inputs, 120, 40).text(120, 40)
    # Of a curve that was cut the time of its last value is that of its bucket.
    return re.sub(r"\s+\S+ ago\s+", " ago ", text)


@settings(max_examples=6)
@given(st.data())
def test_moment_equals_state_folded_from_scratch(path: Path, data: st.DataObject) -> None:
    position = data.draw(st.integers(1, len(events())))
    found, wanted = sought(path, SeekTarget(numbers(position))), scratch(position)
    assert len(walked().keyframes) > 2
    for each in fields(State):
        if each.name in ("anomalies", "curves", "log", "incidents", "commands", "seed_counts", "stories"):
            continue
        assert getattr(found, each.name) == getattr(wanted, each.name), each.name
    assert found.seed_counts.by_blueprint() == wanted.seed_counts.by_blueprint()
    assert found.stories.ended() == wanted.stories.ended()
    assert repr(found.anomalies) == repr(wanted.anomalies)
    assert repr(found.incidents) == repr(wanted.incidents)
    assert repr(list(found.log)[-100:]) == repr(list(wanted.log)[-100:])
    for panel in PANELS.views:
        assert drawn(found, panel.name) == drawn(wanted, panel.name), panel.name


@pytest.mark.slow
@given(st.integers(0, 100))
def test_time_leads_to_the_moment_before_the_first_later_event(path: Path, share: int) -> None:
    first, last = events()[0].ts, events()[-1].ts
    ts = first + (last - first) * share // 100
    position = next((i for i, event in enumerate(events()) if event.ts > ts), len(events()))
    assert sought(path, SeekTarget(ts=ts)).position == position


def test_marks_lie_right_after_their_events() -> None:
    timeline = walked()
    for marks, type_ in ((timeline.epochs, "epoch"), (timeline.incidents, "incident")):
        found = [
            (e.stream, e.seq) for e in events() if e.type == type_ and (type_ == "epoch" or is_trouble(e))
        ]
        assert [(marks.stream, number) for number in marks.numbers] == found
    epochs = timeline.epochs
    middle = epochs.numbers[50]
    assert epochs.neighbour(middle, -1) == SeekTarget({"metric": epochs.numbers[49]})
    assert epochs.neighbour(middle, 1) == SeekTarget({"metric": epochs.numbers[51]})
    assert epochs.neighbour(middle - 1, 1) == SeekTarget({"metric": middle})
    assert epochs.neighbour(epochs.numbers[0], -1) is None
    assert epochs.find(3, 5) == SeekTarget({"metric": epochs.numbers[2 * 24 + 4]})


def test_keyframes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "KEYFRAME_EVENTS", 5)
    monkeypatch.setattr(timeline_module, "MAX_KEYFRAMES", 2)
    timeline = noted()
    positions = [each.state.position for each in timeline.keyframes]
    assert len(positions) == 2
    assert positions[0] == 0
    assert all(each.curves_until % MINUTE == 0 for each in timeline.keyframes[1:])


def test_marks_are_bounded_and_keep_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "MAX_MARKS", 40)
    timeline = noted()
    marks = timeline.epochs
    assert 30 <= len(marks) <= 40
    assert len(marks._rounds) == len(marks._epochs) == len(marks.times) == len(marks)
    assert marks.clock(-1) == (12, 24)
    newest = walked().epochs
    assert list(marks.numbers) == list(newest.numbers)[-len(marks) :]
    assert marks.find(12, 5) == newest.find(12, 5)
    assert marks.find(3, 5) is None
    assert marks.neighbour(marks.numbers[0], -1) is None


def test_keyframe_brings_its_newest_log_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "KEYFRAME_EVENTS", 50)
    timeline = noted()
    for keyframe in timeline.keyframes[1:]:
        kept = timeline.start(keyframe).log
        wanted = list(scratch(keyframe.state.position).log)[-timeline_module.KEYFRAME_LOG_ENTRIES :]
        assert repr(list(kept)) == repr(wanted)
        assert kept.maxlen == State().log.maxlen


NOW = journal.START


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("-10m", TimeTarget(ts=NOW - 600 * SECOND)),
        ("+1h30m", TimeTarget(ts=NOW + 5400 * SECOND)),
        ("-2d", TimeTarget(ts=NOW - 172_800 * SECOND)),
        ("r17", TimeTarget(clock=(17, 1))),
        ("R17E4", TimeTarget(clock=(17, 4))),
        (" end ", TimeTarget(is_end=True)),
        ("start", TimeTarget(ts=0)),
        ("08:53", TimeTarget(ts=NOW - 20 * SECOND)),
        ("08:53:21", TimeTarget(ts=NOW + SECOND - 86_400 * SECOND)),
        ("2025-10-09 08:00", TimeTarget(ts=NOW - 3200 * SECOND)),
    ],
)
def test_what_is_typed_is_a_moment(text: str, wanted: TimeTarget) -> None:
    assert parse_target(text, NOW, nearest=False) == wanted


def test_time_of_day_in_a_recording_is_the_nearest() -> None:
    assert parse_target("08:53:21", NOW, nearest=True) == TimeTarget(ts=NOW + SECOND)


@pytest.mark.parametrize("text", ["", "soon", "25:00", "-10", "r", "14:5", "2025-13-40 10:00", "٣:05"])
def test_what_is_not_a_moment_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a (moment|time of day)") as refused:
        parse_target(text, NOW, nearest=False)
    assert "\n" not in str(refused.value)

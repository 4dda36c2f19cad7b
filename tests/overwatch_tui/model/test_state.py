"""Events folded into what the screen needs."""

from __future__ import annotations

import copy
import dataclasses
import types
import typing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overwatch_tui.compose import compose
from overwatch_tui.envrows import row_of, rows
from overwatch_tui.state import LOG_ROWS, State
from overwatch_tui.theme import ASCII, UNICODE
from overwatch_tui.view import FACETS, MODES, SORTS, VIEWS, View
from protocol import events as ev
from protocol.events import EVENTS, Context
from protocol.wire import Event, Unknown, decode_line

from . import journal
from .harness import draw, events, folded, frame, state


def event(data: Any, *, ts: int = journal.START, seq: int = 1, **ctx: Any) -> Event:
    name = next((name for name, spec in EVENTS.items() if spec.cls is type(data)), "unknown")
    stream = EVENTS[name].stream if name in EVENTS else "life"
    return Event(seq=seq, ts=ts, type=name, stream=stream, tv=1, ctx=Context(**ctx), data=data)


def test_a_recorded_run_is_known_in_full() -> None:
    known = state()
    assert known.run is not None
    assert (known.run.name, known.run_state, known.rounds_done, known.ctx.round) == (
        "digits-7f3a",
        "TRAINING",
        6,
        6,
    )
    assert known.envs == 16
    assert known.slots == ["r0c0", "r0c1", "r0c2"]
    assert len(known.rounds) == 6
    assert known.drift_of("env07") == pytest.approx(0.05 + 0.06 * 24)
    assert known.drift_of("policy.blueprint") == 0.86, "told by another event than the envs' drift"
    assert known.level_left == 2
    assert known.system is not None


def test_drift_that_is_not_told_of_any_more_is_forgotten() -> None:
    known = State()

    def drift(*source: str) -> ev.Drift:
        column: list[float | None] = [0.4] * len(source)
        return ev.Drift(
            source=list(source), norm=column, norm_ema=column, norm_drift=column, health=column,
            health_ema=column, health_drift=column,
        )  # fmt: skip

    known.fold(event(drift("policy", "critic")))
    known.fold(event(drift("env00", "env00.r0c1"), ts=journal.START + 1))
    known.fold(event(drift("env00"), ts=journal.START + 2))
    assert set(known.drift) == {"policy", "critic", "env00"}


def test_rows_say_who_is_in_trouble_and_why() -> None:
    made = frame(state())
    by_env = {row.env: row for row in rows(made)}
    assert {env: row.status for env, row in by_env.items() if row.flagged} == {
        2: "STAL", 5: "WARN", 7: "CRIT", 13: "ROLL",
    }  # fmt: skip
    assert by_env[7].drift_severity == "critical"
    assert by_env[13].gradient is None
    assert by_env[13].trouble == "rollback nan"
    assert by_env[0].severity is None


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_keeps_every_env_and_reverses(sort: str) -> None:
    forward = [r.env for r in rows(frame(state(), View(sort=sort)))]
    backward = [r.env for r in rows(frame(state(), View(sort=sort, reverse=True)))]
    assert sorted(forward) == list(range(16))
    assert backward == forward[::-1]
    if sort == "drift":
        assert forward[0] == 7
    if sort == "status":
        assert set(forward[:4]) == {2, 5, 7, 13}


def test_the_change_of_accuracy_needs_an_epoch_before_in_the_same_round() -> None:
    run = journal.Run(rounds=2)
    run.make()
    known = State()
    changes = []
    for line in run.lines:
        found = decode_line(line)
        known.fold(found)
        if isinstance(found.data, ev.EpochFinished):
            changes.append((found.ctx.epoch, row_of(known, 0, found.ts, UNICODE).change))
    assert all((change is None) == (epoch == 1) for epoch, change in changes)


def test_the_env_in_full_says_what_its_seeds_are_worth() -> None:
    known = copy.copy(state())
    view = View(env=1, detail=True)
    view.show("envs")
    view.detail = True
    assert "Shapley" not in draw(frame(known, view), 120, 40)
    worth = ev.ShapleyComputed(
        value=[[None, None, None], [0.365, None, -0.0125]],
        half_width=[[None, None, None], [0.0, None, 0.004]],
        coalitions=[0, 64],
    )
    known.fold(event(worth, round=5, ts=known.ts + 1))
    assert "Shapley (round 5)   r0c0 +36.5  r0c2 -1.2 ±0.4" in draw(frame(known, view), 120, 40)
    view.env = 0
    assert "Shapley" not in draw(frame(known, view), 120, 40)


def test_an_escalation_counts_down_and_is_over() -> None:
    known = State()
    known.fold(event(dataclasses.replace(events()[0].data, episode_epochs=10)))
    known.fold(
        event(ev.TelemetryLevel(level="DEBUG", previous="NORMAL", reason="", epochs=5), round=1, epoch=8)
    )
    assert known.level_left == 5
    known.fold(event(ev.RoundStarted(rounds=0), ts=journal.START + 1, round=2, epoch=1))
    assert known.level_left == 2
    known.fold(
        event(
            ev.TelemetryLevel(level="NORMAL", previous="DEBUG", reason=""),
            ts=journal.START + 2,
            round=2,
            epoch=3,
        )
    )
    assert known.level_left is None


def test_the_log_is_bounded_and_a_snapshot_does_not_repeat_it() -> None:
    known = folded(events())
    length = len(known.log)
    again = known.renewed("resynchronised", now=known.ts)
    for found in events():
        again.fold(found)
    assert len(again.log) == length + 1, "only the note that says so is new"
    assert again.history("accuracy/0") is known.history("accuracy/0"), "curves go on"
    for seq in range(LOG_ROWS + 500):
        again.fold(event(ev.LogLine(level="INFO", logger="x", message=str(seq)), seq=seq + 1))
    assert len(again.log) == LOG_ROWS


def test_unknown_types_are_counted_and_change_nothing() -> None:
    known = folded(events())
    before = len(known.log)
    known.fold(event(Unknown(type="seed.exploded", raw=b"{}"), ts=known.ts + 1))
    assert (known.unknown, len(known.log)) == (1, before)


def test_the_other_ranks_epochs_stand_beside_the_first() -> None:
    known = folded(events())
    for rank, seconds in ((1, 0.34), (2, 0.36), (1, 0.35)):
        known.fold(event(ev.RankEpoch(seconds=seconds, phases={}), ts=known.ts + 1, rank=rank))
    view = View()
    view.show("policy")
    assert "rank 1 350 ms  rank 2 360 ms" in draw(frame(known, view), 120, 40)


def test_a_frozen_state_does_not_move() -> None:
    known = folded(events(rounds=3))
    still = known.frozen()
    made = frame(still)
    before = compose(made, made, 120, 40).lines
    for found in events()[len(events(rounds=3)) :]:
        known.fold(found)
    assert compose(made, made, 120, 40).lines == before
    assert known.rounds_done == 6


def test_every_event_type_has_words_or_a_place() -> None:
    """Whatever the daemon can say changes something that is shown."""
    from overwatch_tui.describe import words
    from overwatch_tui.state import _HANDLERS

    for spec in EVENTS.values():
        handled = spec.cls in _HANDLERS
        hints = typing.get_type_hints(spec.cls)
        sample = spec.cls(**{f.name: _sample(hints[f.name]) for f in dataclasses.fields(spec.cls)})
        assert handled or words(sample) is not None, spec.type


def _sample(hint: Any) -> Any:
    """Some value of a type."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return typing.get_args(hint)[0]
    if origin in (typing.Union, types.UnionType):
        return _sample(typing.get_args(hint)[0])
    return {str: "x", int: 1, float: 1.0, bool: False, list: [], dict: {}}[origin or hint]


# --- any order of any events -----------------------------------------------------------------------


def _strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, columns of any length among them."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return st.one_of(st.none(), st.integers(0, 9), st.text(max_size=4))
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(st.none() if a is type(None) else _strategy(a) for a in args))
    if origin is list:
        return st.lists(_strategy(args[0]), max_size=5)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), _strategy(args[1]), max_size=3)
    return {
        str: st.sampled_from(["", "env01", "env01.r0c1", "policy", "\x1b[2J", "漢", "norm_drift", "WAIT"]),
        int: st.integers(-2, 2**40),
        float: st.floats(),
        bool: st.booleans(),
    }[hint]  # fmt: skip


def _any_data() -> st.SearchStrategy[Any]:
    made = []
    for spec in EVENTS.values():
        hints = typing.get_type_hints(spec.cls)
        fields = {f.name: _strategy(hints[f.name]) for f in dataclasses.fields(spec.cls)}
        made.append(st.builds(spec.cls, **fields))
    return st.one_of(made)


ANY_EVENT = st.builds(
    lambda data, ts, seq, env, round, epoch: event(data, ts=ts, seq=seq, env=env, round=round, epoch=epoch),
    _any_data(),
    st.integers(journal.START - 10**9, journal.START + 10**9),
    st.integers(1, 50),
    st.one_of(st.none(), st.integers(0, 70)),
    st.integers(0, 9),
    st.integers(0, 30),
)
ANY_VIEW = st.builds(
    View,
    name=st.sampled_from(VIEWS),
    env=st.integers(0, 20),
    sort=st.sampled_from(SORTS),
    mode=st.sampled_from((None, *MODES)),
    facet=st.sampled_from(FACETS),
    detail=st.booleans(),
    glyphs=st.sampled_from((UNICODE, ASCII)),
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(ANY_EVENT, max_size=8),
    st.sampled_from([0, 1, 40]),
    ANY_VIEW,
    st.sampled_from([(80, 24), (120, 40), (200, 60), (60, 8)]),
)
def test_whatever_comes_in_whatever_order_there_is_a_picture(
    found: list[Event], began: int, view: View, size: tuple[int, int]
) -> None:
    view.focus = view.name
    made = frame(folded([*events(rounds=2)[:began], *found]), view)
    width, height = size
    picture = compose(made, made, width, height)
    for box in picture.boxes:
        lines = picture.lines[box.name]
        assert all(sum(len(text) for text, _ in line) == box.width for line in lines), box.name
    assert len(picture.text(width, height).split("\n")) == height


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_a_run_in_disorder_is_taken(random: Any) -> None:
    shuffled = list(events(envs=16, rounds=2))
    random.shuffle(shuffled)
    known = folded(shuffled)
    assert known.run is not None
    made = frame(known)
    assert compose(made, made, 120, 40).boxes

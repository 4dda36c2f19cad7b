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

from esper_overwatch.overwatch_tui.model.state import MAX_LOG_ENTRIES, State, fold_late
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.env_rows import env_row, sorted_rows
from esper_overwatch.overwatch_tui.render.layout import compose_screen
from esper_overwatch.overwatch_tui.render.theme import ASCII, UNICODE
from esper_overwatch.overwatch_tui.render.view_state import SORTS, ViewState
from esper_overwatch.protocol.codec.json_lines import Event, Unknown, decode_line
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import EVENTS, Context
from esper_overwatch.protocol.messages.vocabulary import STREAMS
from tests.overwatch_tui import journal
from tests.overwatch_tui.harness import (
    VIEWS,
    after_all,
    draw,
    events,
    folded,
    panel_inputs,
    snapshot_of,
    state,
)


def event(data: Any, *, ts: int = journal.START, seq: int | None = None, **ctx: Any) -> Event:
    """One that comes after all others, where it is given no number."""
    name = next((name for name, spec in EVENTS.items() if spec.cls is type(data)), "unknown")
    stream = EVENTS[name].stream if name in EVENTS else "life"
    made = Event(seq=seq or 0, ts=ts, type=name, stream=stream, tv=1, ctx=Context(**ctx), data=data)
    return made if seq is not None else after_all(made)


def test_state_of_a_recorded_run() -> None:
    known = state()
    assert known.run is not None
    assert (known.run.name, known.run_state, known.rounds_done, known.ctx.round) == (
        "digits-7f3a",
        "TRAINING",
        6,
        6,
    )
    assert known.num_envs == 16
    assert known.slots == ["r0c0", "r0c1", "r0c2"]
    assert known.drift_of("env07") == pytest.approx(0.05 + 0.06 * 24)
    assert known.drift_of("policy.blueprint") == 0.86, "told by another event than the envs' drift"
    assert known.escalation_left() == 2
    assert known.system is not None


def test_drift_no_longer_measured_is_dropped() -> None:
    known = State()

    def drift(*source: str) -> ev.Drift:
        column: list[float | None] = [0.4] * len(source)
        return ev.Drift(
            source=list(source),
            norm=column,
            norm_ema=column,
            norm_drift=column,
            health=column,
            health_ema=column,
            health_drift=column,
        )

    known.fold(event(drift("policy", "critic")))
    known.fold(event(drift("env00", "env00.r0c1"), ts=journal.START + 1))
    known.fold(event(drift("env00"), ts=journal.START + 2))
    assert set(known.drift) == {"policy", "critic", "env00"}


def stepped_back(found: typing.Sequence[Event]) -> list[Event]:
    """The same events of a machine whose clock was set back by an hour half-way."""
    half = len(found) // 2
    return [*found[:half], *(dataclasses.replace(one, ts=one.ts - 3600 * SECOND) for one in found[half:])]


def newest(known: State) -> list[Any]:
    """What only the newest events say."""
    lasts = {name: history.last for name, history in known.curves.histories.items()}
    drift = {source: found.norm_drift for source, found in known.drift.items()}
    return [known.epoch, known.epoch_ctx, known.ctx, known.best_accuracy, drift, lasts]


def test_clock_that_steps_back_hides_nothing_new() -> None:
    known = folded(stepped_back(events()))
    assert newest(known) == newest(state())
    assert known.epoch_ts == next(e.ts for e in reversed(events()) if e.type == "epoch") - 3600 * SECOND


def test_older_events_that_come_late_change_nothing_newest() -> None:
    known = folded(one for one in events() if one.ctx.round > 2)
    before = newest(known)
    fold_late(known, [one for one in events() if one.ctx.round <= 2])
    after = newest(known)
    assert after[:5] == before[:5]
    assert after[5] == newest(state())[5]
    fold_late(known, [one for one in events() if one.ctx.round == 2])
    assert newest(known)[5] == newest(state())[5]


def test_resumed_boot_goes_back_to_an_earlier_round() -> None:
    seq = {stream: max((e.seq for e in events() if e.stream == stream), default=0) for stream in STREAMS}
    again = [dataclasses.replace(e, seq=seq[e.stream] + e.seq) for e in events() if e.ctx.round <= 2]
    known = folded([*events(), *again])
    assert (known.ctx.round, known.ctx.epoch) == (known.epoch_ctx.round, known.epoch_ctx.epoch) == (2, 24)


def test_env_rows_name_trouble_and_cause() -> None:
    made = panel_inputs(state())
    by_env = {row.env: row for row in sorted_rows(made)}
    assert {env: row.status for env, row in by_env.items() if row.is_flagged} == {
        2: "stalled",
        7: "warning",
        13: "warning",
    }
    assert (by_env[7].drift_severity, by_env[5].drift_severity) == ("info", "info")
    assert by_env[13].gradient is None
    assert by_env[13].trouble == "loss not finite"
    assert by_env[0].severity is None


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_keeps_every_env_and_reverses(sort: str) -> None:
    forward = [r.env for r in sorted_rows(panel_inputs(state(), ViewState(sort=sort)))]
    backward = [r.env for r in sorted_rows(panel_inputs(state(), ViewState(sort=sort, is_reversed=True)))]
    assert sorted(forward) == list(range(16))
    assert backward == forward[::-1]
    if sort == "drift":
        assert forward[0] == 7
    if sort == "status":
        assert set(forward[:4]) == {2, 5, 7, 13}


def test_accuracy_change_needs_previous_epoch_of_the_round() -> None:
    run = journal.Run(rounds=2)
    run.make()
    known = State()
    changes = []
    for line in run.lines:
        found = decode_line(line)
        known.fold(found)
        if isinstance(found.data, ev.EpochFinished):
            changes.append((found.ctx.epoch, env_row(known, 0, UNICODE).change))
    assert all((change is None) == (epoch == 1) for epoch, change in changes)


def test_env_detail_shows_shapley_values() -> None:
    known = copy.copy(state())
    view = ViewState(env=1, detail=True)
    view.show_view("run")
    view.detail = True
    assert "Shapley" not in draw(panel_inputs(known, view), 120, 40)
    worth = ev.ShapleyComputed(
        value=[[None, None, None], [0.365, None, -0.0125]],
        half_width=[[None, None, None], [0.0, None, 0.004]],
        coalitions=[0, 64],
        interaction=[[[None] * 3] * 3, [[None, None, -0.021], [None] * 3, [-0.021, None, None]]],
    )
    known.fold(event(worth, round=5, ts=known.ts + 1))
    shown = draw(panel_inputs(known, view), 120, 40)
    assert "Shapley (round 5)   r0c0 +36.5  r0c2 -1.2 ±0.4" in shown
    assert "interactions   r0c0 r0c2 -2.1" in shown
    view.env = 0
    assert "Shapley" not in draw(panel_inputs(known, view), 120, 40)


def test_an_escalation_counts_down_and_is_over() -> None:
    known = State()
    known.fold(event(dataclasses.replace(events()[0].data, episode_epochs=10)))
    known.fold(
        event(ev.TelemetryLevel(level="DEBUG", previous="NORMAL", reason="", epochs=5), round=1, epoch=8)
    )
    assert known.escalation_left() == 5
    known.fold(event(ev.RoundStarted(rounds=0), ts=journal.START + 1, round=2, epoch=1))
    assert known.escalation_left() == 2
    known.fold(
        event(
            ev.TelemetryLevel(level="NORMAL", previous="DEBUG", reason=""),
            ts=journal.START + 2,
            round=2,
            epoch=3,
        )
    )
    assert known.escalation_left() is None


def level(epochs: int | None, seq: int, **fields: Any) -> Event:
    """An escalation for so many epochs, or the end of one, in the epoch of its number."""
    data = ev.TelemetryLevel(level="DEBUG", previous="DEBUG", epochs=epochs, **{"reason": "", **fields})
    return event(data, ts=journal.START + seq, seq=seq, round=1, epoch=seq)


def test_overlapping_escalations_end_each_on_its_own() -> None:
    known = State()
    known.fold(level(100, 1, reason="by an operator", command="c1"))
    known.fold(level(10, 2, reason="by another", command="c2"))
    known.fold(level(2, 3, reason="loss_nonfinite of env00", env=0))
    known.fold(level(3, 4, reason="norm_drift of env00", env=0))
    assert (known.escalation_left(), known.escalation_left("c2"), known.escalation_left("c3")) == (
        97,
        8,
        None,
    )
    known.fold(level(None, 5, reason="its epochs are over", env=0))
    assert (known.escalation_left(), known.escalation_left("c2")) == (96, 7)
    known.fold(level(None, 6, reason="cancelled", command="c1"))
    assert known.escalation_left() == 6
    known.fold(level(None, 7, reason="cancelled", command="c2"))
    assert known.escalation_left() is None, "those by anomalies were over at epoch 7"
    known.fold(level(50, 8, command="c4"))
    known.fold(event(dataclasses.replace(events()[0].data, boot="b2"), ts=known.ts + 1, seq=9))
    assert known.escalation_left() is None, "of the boot before"


def test_log_is_bounded_and_not_repeated_by_a_snapshot() -> None:
    known = folded(events())
    length = len(known.log)
    known.rejoin("resynchronised", now=known.ts)
    for found in events():
        known.fold(found)
    assert len(known.log) == length + 1, "only the note that says so is new"
    for seq in range(MAX_LOG_ENTRIES + 500):
        known.fold(event(ev.LogLine(level="INFO", logger="x", message=str(seq)), seq=seq + 1))
    assert len(known.log) == MAX_LOG_ENTRIES


def totals(known: State) -> dict[str, list[tuple[object, ...]]]:
    """Buckets of all curves, and how many values each holds."""
    return {
        name: [(ring.index, ring.low, ring.high, ring.total, ring.count) for ring in each.copy()._rings]
        for name, each in known.curves.histories.items()
    }


def test_what_snapshots_repeat_is_drawn_once() -> None:
    known = folded(events(envs=4, rounds=3))
    drawn = totals(known)
    points = {story.seed: known.stories.get(story.seed) for story in known.stories.ended()}
    assert len(snapshot_of(events(envs=4, rounds=3))) > 100
    for _ in range(4):
        known.rejoin("resynchronised", now=known.ts)
        for found in snapshot_of(events(envs=4, rounds=3)):
            known.fold(found)
    assert totals(known) == drawn
    assert {story.seed: known.stories.get(story.seed) for story in known.stories.ended()} == points


def test_unknown_types_are_counted_and_change_nothing() -> None:
    known = folded(events())
    before = len(known.log)
    known.fold(event(Unknown(type="seed.exploded", raw=b"{}"), ts=known.ts + 1))
    assert (known.unknown, len(known.log)) == (1, before)


def test_epoch_times_of_all_ranks_are_shown() -> None:
    known = folded(events())
    for rank, seconds in ((1, 0.34), (2, 0.36), (1, 0.35)):
        known.fold(event(ev.RankEpoch(seconds=seconds, phases={}), ts=known.ts + 1, rank=rank))
    view = ViewState()
    view.show_view("policy")
    assert "rank 1 350 ms  rank 2 360 ms" in draw(panel_inputs(known, view), 120, 40)


def test_machine_is_that_of_the_first_rank() -> None:
    known = folded(events(rounds=1))
    before, cpu = known.system, known.curves.histories.get("cpu")
    assert before is not None
    assert cpu is not None
    other = dataclasses.replace(before, cpu_percent=900.0, rss=99)
    known.fold(event(other, ts=known.ts + 1, seq=10**6, rank=3))
    assert known.system == before
    assert cpu.last == before.cpu_percent


def test_a_frozen_state_does_not_move() -> None:
    known = folded(events(rounds=3))
    still = known.frozen_copy()
    made = panel_inputs(still)
    before = compose_screen(PANELS, made, made, 120, 40).lines
    for found in events()[len(events(rounds=3)) :]:
        known.fold(found)
    assert compose_screen(PANELS, made, made, 120, 40).lines == before
    assert known.rounds_done == 6


def test_frozen_copy_shares_no_field_that_events_change() -> None:
    known = folded(events(rounds=3))
    still = known.frozen_copy()
    for field in dataclasses.fields(State):
        value = getattr(known, field.name)
        if hasattr(value, "copy") and not isinstance(value, frozenset):
            assert getattr(still, field.name) is not value, field.name
    tallies, gates = still.seed_counts.by_blueprint(), dict(still.gates)
    waiting = still.incidents.unseen(still.ts)
    for found in events()[len(events(rounds=3)) :]:
        known.fold(found)
    for record in known.incidents.waiting():
        known.incidents.ack(record.key, known.ts)
    assert (still.seed_counts.by_blueprint(), still.gates) == (tallies, gates)
    assert still.incidents.unseen(still.ts) == waiting


def test_every_event_type_is_logged_or_handled() -> None:
    """Whatever the daemon can say changes something that is shown, but for what no snapshot holds."""
    from esper_overwatch.overwatch_tui.model.log_entries import has_log_entry
    from esper_overwatch.overwatch_tui.model.state import HANDLERS
    from esper_overwatch.overwatch_tui.render.event_text import event_text

    for spec in EVENTS.values():
        handled = spec.cls in HANDLERS
        sample = _sample(spec.cls)
        assert handled or has_log_entry(sample) or not spec.keep, spec.type
        assert bool(event_text(sample)) == has_log_entry(sample), spec.type


def _sample(hint: Any) -> Any:
    """Some value of a type."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return typing.get_args(hint)[0]
    if origin in (typing.Union, types.UnionType):
        return _sample(typing.get_args(hint)[0])
    if dataclasses.is_dataclass(hint):
        return hint(**{name: _sample(part) for name, part in typing.get_type_hints(hint).items()})
    return {str: "x", int: 1, float: 1.0, bool: False, list: [], dict: {}}[origin or hint]


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
    if dataclasses.is_dataclass(hint):
        parts = typing.get_type_hints(hint)
        return st.builds(hint, **{name: _strategy(part) for name, part in parts.items()})
    return {
        str: st.sampled_from(["", "env01", "env01.r0c1", "policy", "\x1b[2J", "漢", "norm_drift", "WAIT"]),
        int: st.integers(-2, 2**40),
        float: st.floats(),
        bool: st.booleans(),
    }[hint]


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
    ViewState,
    name=st.sampled_from(VIEWS),
    env=st.integers(0, 20),
    sort=st.sampled_from(SORTS),
    detail=st.booleans(),
    glyphs=st.sampled_from((UNICODE, ASCII)),
)


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.lists(ANY_EVENT, max_size=8),
    st.sampled_from([0, 1, 40]),
    ANY_VIEW,
    st.sampled_from([(80, 24), (120, 40), (200, 60), (60, 8)]),
)
def test_any_events_in_any_order_can_be_drawn(
    found: list[Event], began: int, view: ViewState, size: tuple[int, int]
) -> None:
    view.focus = view.name
    made = panel_inputs(folded([*events(rounds=2)[:began], *found]), view)
    width, height = size
    layout = compose_screen(PANELS, made, made, width, height)
    for box in layout.boxes:
        lines = layout.lines[box.name]
        assert all(sum(len(text) for text, _ in line) == box.width for line in lines), box.name
    assert len(layout.text(width, height).split("\n")) == height


@settings(suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_run_of_which_events_are_missing_can_be_drawn(random: Any) -> None:
    share = random.random()
    known = folded(one for one in events(envs=16, rounds=2) if random.random() < share)
    made = panel_inputs(known)
    assert compose_screen(PANELS, made, made, 120, 40).boxes


def test_what_ended_unheard_is_not_open_after_a_snapshot() -> None:
    known, told = folded(events()), snapshot_of(events())
    records = {record.key for record in known.incidents.open()}
    ended = min(records)
    known.rejoin("resynchronised", now=known.ts)
    assert not known.incidents.open()
    for found in told:
        if not (isinstance(found.data, ev.Incident) and found.data.id == ended):
            known.fold(found)
    assert {record.key for record in known.incidents.open()} == records - {ended}
    assert known.escalation_left() == state().escalation_left() is not None

"""Lives of seeds: the same as SQL's, whatever the order of the events, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.model import seed_stories
from esper_overwatch.overwatch_tui.model.seed_facts import COLUMNS, SeedFacts
from esper_overwatch.overwatch_tui.model.seed_stories import SeedStory
from esper_overwatch.overwatch_tui.model.state import State, fold_late
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.journal.seed_lives import Lives
from esper_overwatch.protocol.messages.events import (
    EpochFinished,
    RoundFinished,
    SeedGate,
    SeedStage,
    spec_of,
)
from tests.overwatch_tui.harness import events, folded
from tests.trainer.journals import (
    BEGIN,
    Told,
    at,
    epoch,
    round_finished,
    round_started,
    stage,
    started,
)
from tests.trainer.query.test_seed_view import random_round


def numbered(told: Sequence[Told]) -> list[Event]:
    return [
        Event(n, BEGIN + n, spec_of(type(data)).type, spec_of(type(data)).stream, 1, ctx, data)
        for n, (data, ctx) in enumerate(told, 1)
    ]


def told_by(state: State) -> list[tuple[object, ...]]:
    """Ended lives, as far as `Lives` knows them."""
    found = state.stories.ended()
    return sorted(
        ((x.round, x.env, x.slot, x.born_epoch, x.blueprint, x.end_stage, x.seed) for x in found), key=str
    )


def test_lives_are_those_that_sql_has(monkeypatch: pytest.MonkeyPatch) -> None:
    # One that another seed replaced without an end has none in SQL; here it ends with its round.
    monkeypatch.setattr(seed_stories, "MAX_ENDED", 10_000)
    random_ = random.Random(5)
    told = [started("b1")]
    for round_ in range(1, 80):
        told += [*random_round(random_, round_), round_finished(round_, 9)]
    found = numbered(told)
    lives = Lives()
    for event in found:
        if isinstance(event.data, SeedStage):
            lives.stage(event)
        elif isinstance(event.data, RoundFinished):
            lives.round_finished(event.ctx.round, event.ctx.epoch)
    wanted = sorted(
        (
            (x.round, x.env, x.slot, x.germinated_epoch, x.blueprint, x.end_stage or x.stage, x.seed)
            for x in lives.all
        ),
        key=str,
    )
    known = [one for one in told_by(folded(found)) if one[3] is not None]
    assert len(wanted) > 100
    assert known == wanted


def test_order_of_events_does_not_matter() -> None:
    found = list(events(envs=3, rounds=3))
    wanted = folded(found)
    assert len(wanted.stories.ended()) > 10
    late = [e for e in found if isinstance(e.data, SeedStage | SeedGate | EpochFinished | RoundFinished)]
    rest = [e for e in found if e not in late] + [late[-1]]
    state = folded(rest)
    random.Random(1).shuffle(late)
    fold_late(state, late + late[:200])
    assert state.stories.ended() == wanted.stories.ended()
    for story in wanted.stories.ended():
        assert state.stories.get(story.key) == wanted.stories.get(story.key)


def story_of(found: Iterable[Event]) -> SeedStory:
    story = folded(found).stories.present(1, 0, "r0c0")
    assert story is not None
    return story


def grown(alpha: float, worth: float | None, *, stage_: int = 2) -> dict[str, Any]:
    return {
        "stage": [[stage_, 0], [0, 0]],
        "alpha": [[alpha, 0.0]] * 2,
        "contribution": [[worth, None]] * 2,
        "seed_grad_norm": [[2.0, None]] * 2,
    }


def test_story_tells_stages_gates_points_and_end() -> None:
    refused = SeedGate(slot="r0c0", gate="G2", passed=False, checks={"health": True, "min_epochs": False})
    passed = replace(refused, passed=True, checks={"health": True, "min_epochs": True})
    told: list[Told] = [
        started("b1"),
        round_started(1),
        (replace(passed, gate="G0"), at(1, 0, 0)),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED", seed="s1"),
        epoch(1, 1, **grown(0.0, None)),
        stage(at(1, 1, 0), "r0c0", "GERMINATED", "TRAINING", by="auto"),
        (refused, at(1, 1, 0)),
        (refused, at(1, 2, 0)),
        (passed, at(1, 3, 0)),
        stage(at(1, 3, 0), "r0c0", "TRAINING", "BLENDING"),
        epoch(1, 4, **grown(0.5, 0.125, stage_=3)),
        stage(at(1, 4, 0), "r0c0", "BLENDING", "PRUNED"),
        stage(at(1, 5, 0), "r0c0", "PRUNED", "DORMANT", by="auto"),
        (replace(refused, gate="G0"), at(1, 6, 0)),
    ]
    story = story_of(numbered(told))
    assert (story.by, story.born_epoch, story.blueprint, story.parameters) == ("policy", 0, "norm", 17)
    assert [step.stage for step in story.stages] == ["GERMINATED", "TRAINING", "BLENDING", "PRUNED"]
    assert [(g.gate, g.failed, g.times) for g in story.gates] == [
        ("G0", (), 1),
        ("G2", ("min_epochs",), 2),
        ("G2", (), 1),
    ]
    assert story.key[3] == 0, "a gate alone is no seed"
    assert [(p.epoch, p.alpha, p.contribution) for p in story.points] == [(1, 0.0, None), (4, 0.5, 0.125)]
    assert (story.outcome, story.end_epoch, story.epochs, story.contribution) == ("PRUNED", 4, 4, 0.125)


def test_a_seed_from_before_joining_is_told_from_then() -> None:
    found = numbered([started("b1"), epoch(1, 4, **grown(0.5, 0.25, stage_=3))])
    story = story_of(found)
    assert (story.by, story.born_epoch, story.outcome) == (None, None, "lives")
    assert [point.contribution for point in story.points] == [0.25]


def test_what_a_resumed_boot_repeats_is_told_once() -> None:
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 1, 0), "r0c0", "DORMANT", "GERMINATED", seed="old"),
        epoch(1, 2, **grown(0.0, None)),
        started("b2", resumed_round=0),
        round_started(1),
        stage(at(1, 1, 0), "r0c0", "DORMANT", "GERMINATED", seed="new"),
        epoch(1, 2, **grown(0.0, None)),
    ]
    state = folded(numbered(told))
    story = state.stories.present(1, 0, "r0c0")
    assert story is not None
    assert (story.key, story.seed, len(story.points)) == ((1, 0, "r0c0", 0), "new", 1)
    assert state.stories.ended() == []


def test_memory_is_bounded_and_keeps_the_newest_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_stories, "MAX_PLACES", 20)
    monkeypatch.setattr(seed_stories, "MAX_POINTS", 8)
    monkeypatch.setattr(seed_stories, "MAX_EPOCHS", 20)
    state = folded(events(envs=4, rounds=6))
    places = state.stories._places
    assert len(places) <= 20
    assert {place[0] for place in places} <= {5, 6}
    assert len(state.stories._measured) <= 20
    assert max(len(facts.numbers) for facts in places.values()) <= 8 * COLUMNS
    assert all(len(state.stories.get(story.key).points) <= 8 for story in state.stories.ended())  # type: ignore[union-attr]


def test_copy_and_cut_are_not_changed_by_later_events() -> None:
    found = list(events(envs=4, rounds=3))
    half = next(i for i, e in enumerate(found) if e.ctx.round == 2 and e.ctx.epoch == 12)
    state = folded(found[:half])
    copied = state.stories.copy()
    before = [copied.get(story.key) for story in copied.ended()]
    assert before
    for event in found[half:]:
        state.fold(event)
    assert [copied.get(story.key) for story in copied.ended()] == before
    numbers = {e.stream: e.seq for e in sorted(found[:half], key=lambda e: e.seq)}
    cut = state.stories.cut(numbers)
    assert [cut.get(story.key) for story in cut.ended()] == before


def test_facts_of_a_place_are_packed_and_come_back() -> None:
    found = [e for e in events(envs=4, rounds=3) if isinstance(e.data, SeedStage | SeedGate)]
    assert len(found) > 50
    places = [(e.ctx.round, e.ctx.env, e.data.slot) for e in found]
    round_, env, slot = max(places, key=places.count)
    wanted = [e for e, place in zip(found, places, strict=True) if place == (round_, env, slot)]
    owner = object()
    facts = SeedFacts(owner)
    for event in [*wanted, *wanted]:
        facts.add(event)
    assert len(facts) == len(wanted) > 2, "each once"
    assert env is not None
    kept = list(facts.copy(owner).events(round_, env, slot))
    assert [(e.seq, e.ts, e.type, e.stream, e.ctx) for e in kept] == [
        (e.seq, e.ts, e.type, e.stream, e.ctx) for e in wanted
    ]
    for before, after in zip(wanted, kept, strict=True):
        if isinstance(before.data, SeedStage):
            assert after.data == replace(before.data, action=None, command=None)
        else:
            assert (after.data.gate, after.data.passed) == (before.data.gate, before.data.passed)
            assert list(after.data.checks) == [c for c, passed in before.data.checks.items() if not passed]


def test_lives_after_the_clock_stepped_back_are_told() -> None:
    found = list(events(envs=3, rounds=3))
    half = len(found) // 2
    shifted = [replace(one, ts=one.ts - 3_600_000_000) for one in found[half:]]
    assert told_by(folded([*found[:half], *shifted])) == told_by(folded(found))


def test_points_after_the_clock_stepped_back_are_of_their_seed() -> None:
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED", seed="old"),
        *[epoch(1, one, **grown(0.0, 0.5)) for one in (1, 2, 3)],
        stage(at(1, 3, 0), "r0c0", "GERMINATED", "PRUNED"),
        stage(at(1, 4, 0), "r0c0", "DORMANT", "GERMINATED", seed="new"),
        *[epoch(1, one, **grown(0.0, 0.25)) for one in (5, 6, 7)],
    ]
    found = numbered(told)
    shifted = [*found[:9], *[replace(one, ts=one.ts - 7) for one in found[9:]]]
    state = folded(shifted)
    stories = [state.stories.get((1, 0, "r0c0", number)) for number in (0, 1)]
    assert [story and story.seed for story in stories] == ["old", "new"]
    assert [story and [point.epoch for point in story.points] for story in stories] == [[1, 2, 3], [5, 6, 7]]
    assert [story and story.contribution for story in stories] == [0.5, 0.25]


def boots(ahead: int) -> tuple[list[Event], list[Event]]:
    """A boot whose clock is so many microseconds ahead, and the one after it, resumed after round 1."""
    first = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        *[epoch(1, one, **grown(0.0, 0.5)) for one in (1, 2, 3)],
        stage(at(1, 3, 0), "r0c0", "GERMINATED", "PRUNED"),
        round_finished(1, 3),
    ]
    second = [started("b2", resumed_round=1), round_started(2), epoch(2, 1)]
    found = numbered([*first, *second])
    return [replace(e, ts=e.ts + ahead) for e in found[: len(first)]], found[len(first) :]


@pytest.mark.parametrize("ahead", [0, 600_000_000])
@pytest.mark.parametrize("is_late", [False, True], ids=["in order", "late"])
def test_earlier_boot_with_a_clock_ahead_is_told(ahead: int, is_late: bool) -> None:
    first, second = boots(ahead)
    state = folded(second if is_late else [*first, *second])
    if is_late:
        fold_late(state, first)
    (story,) = state.stories.ended()
    assert (story.round, story.outcome, story.by) == (1, "PRUNED", "policy")
    told = state.stories.get(story.key)
    assert told is not None
    assert [point.epoch for point in told.points] == [1, 2, 3]


def test_points_are_told_when_the_clock_was_set_back_early() -> None:
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
        *[epoch(1, one, **grown(0.0, 0.5)) for one in range(1, 6)],
    ]
    first, *rest = numbered(told)
    story = story_of([first, *[replace(e, ts=e.ts - 600_000_000) for e in rest]])
    assert [point.epoch for point in story.points] == [1, 2, 3, 4, 5]


def repeated(told: int) -> list[Event]:
    """Rounds 1 to 3, then a boot with its clock set back that repeats so many epochs of round 2."""
    first = [started("b1")]
    for round_ in (1, 2, 3):
        first += [
            round_started(round_),
            stage(at(round_, 0, 0), "r0c0", "DORMANT", "GERMINATED", seed=f"old{round_}"),
            *[epoch(round_, one, **grown(0.0, 0.5)) for one in (1, 2, 3, 4)],
        ]
    second = [
        started("b2", resumed_round=1),
        round_started(2),
        stage(at(2, 0, 0), "r0c0", "DORMANT", "GERMINATED", seed="new"),
        *[epoch(2, one, **grown(0.0, 0.25)) for one in range(1, told + 1)],
    ]
    found = numbered([*first, *second])
    return [*found[: len(first)], *[replace(e, ts=e.ts - 600_000_000) for e in found[len(first) :]]]


@pytest.mark.parametrize("told", [1, 4])
def test_boot_with_its_clock_set_back_voids_what_it_repeats(told: int) -> None:
    state = folded(repeated(told))
    story = state.stories.present(2, 0, "r0c0")
    assert story is not None
    assert (story.seed, story.outcome) == ("new", "lives")
    assert [(p.epoch, p.contribution) for p in story.points] == [(e, 0.25) for e in range(1, told + 1)]
    assert state.stories.present(3, 0, "r0c0") is None


def test_cut_before_a_repetition_has_what_it_hid() -> None:
    found = repeated(4)
    end = 1 + next(i for i, e in enumerate(found) if (e.ctx.round, e.ctx.epoch) == (3, 4))
    wanted = folded(found[:end]).stories
    cut = folded(found).stories.cut({"life": end, "metric": end})
    for round_ in (1, 2, 3):
        assert cut.present(round_, 0, "r0c0") == wanted.present(round_, 0, "r0c0")
    assert cut.ended() == wanted.ended()

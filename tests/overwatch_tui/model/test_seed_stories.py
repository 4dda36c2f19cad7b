"""Stories of seeds: their own events, whatever the order in which they come, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.model import seed_stories
from esper_overwatch.overwatch_tui.model.seed_stories import SeedStory
from esper_overwatch.overwatch_tui.model.state import State, fold_late
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import EpochFinished, SeedEnded, SeedGate, SeedStage, spec_of
from tests.overwatch_tui.harness import events, folded
from tests.trainer.journals import (
    BEGIN,
    Told,
    at,
    ended,
    epoch,
    rewound,
    round_finished,
    round_started,
    stage,
    started,
)


def numbered(told: Sequence[Told]) -> list[Event]:
    """Events as a reader gets them, with the numbers of their streams."""
    seq = {"life": 0, "metric": 0}
    found = []
    for n, (data, ctx) in enumerate(told):
        spec = spec_of(type(data))
        seq[spec.stream] += 1
        found.append(Event(seq[spec.stream], BEGIN + n, spec.type, spec.stream, 1, ctx, data))
    return found


def stories_of(state: State) -> list[SeedStory]:
    """Ended seeds with all that is known."""
    found = [state.stories.get(story.seed) for story in state.stories.ended()]
    return [story for story in found if story is not None]


def test_order_of_events_does_not_matter() -> None:
    found = list(events(envs=3, rounds=3))
    wanted = folded(found)
    assert len(wanted.stories.ended()) > 10
    late = [e for e in found if isinstance(e.data, SeedStage | SeedGate | SeedEnded | EpochFinished)]
    rest = [e for e in found if e not in late] + [late[-1]]
    state = folded(rest)
    random.Random(1).shuffle(late)
    fold_late(state, late + late[:200])
    assert state.stories.ended() == wanted.stories.ended()
    assert stories_of(state) == stories_of(wanted)


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


REFUSED = SeedGate(
    slot="r0c0", gate="G2", passed=False, checks={"health": True, "min_epochs": False}, seed="r1n0r0c0"
)
PASSED = replace(REFUSED, passed=True, checks={"health": True, "min_epochs": True})
LIFE: list[Told] = [
    started("b1"),
    round_started(1),
    (replace(PASSED, gate="G0"), at(1, 0, 0)),
    stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
    epoch(1, 1, **grown(0.0, None)),
    stage(at(1, 1, 0), "r0c0", "GERMINATED", "TRAINING", by="auto"),
    (REFUSED, at(1, 1, 0)),
    (REFUSED, at(1, 2, 0)),
    (PASSED, at(1, 3, 0)),
    stage(at(1, 3, 0), "r0c0", "TRAINING", "BLENDING"),
    epoch(1, 4, **grown(0.5, 0.125, stage_=3)),
    stage(at(1, 4, 0), "r0c0", "BLENDING", "PRUNED"),
    stage(at(1, 5, 0), "r0c0", "PRUNED", "DORMANT", by="auto"),
    (replace(REFUSED, gate="G0", seed=None), at(1, 6, 0)),
]


def test_story_tells_stages_gates_points_and_end() -> None:
    story = story_of(numbered(LIFE))
    assert (story.by, story.born_epoch, story.blueprint, story.parameters) == ("policy", 0, "norm", 17)
    assert [step.stage for step in story.stages] == ["GERMINATED", "TRAINING", "BLENDING", "PRUNED"]
    assert [(g.gate, g.failed, g.times) for g in story.gates] == [
        ("G0", (), 1),
        ("G2", ("min_epochs",), 2),
        ("G2", (), 1),
    ]
    assert [(p.epoch, p.alpha, p.contribution) for p in story.points] == [(1, 0.0, None), (4, 0.5, 0.125)]
    assert (story.outcome, story.end_epoch, story.epochs, story.contribution) == ("PRUNED", 4, 4, 0.125)


def test_what_was_told_of_an_end_goes_before_all_else() -> None:
    undone = ended(at(1, 8, 0), "r0c0", 0, 7, "DORMANT", contribution=0.25)
    story = story_of(numbered([*LIFE, undone]))
    assert (story.outcome, story.end_epoch, story.contribution) == ("undone by a rollback", 7, 0.25)
    failed = {"G2": ["min_epochs"], "G3": ["contribution"]}
    alone = folded(numbered([ended(at(1, 8, 0), "r0c0", 2, 7, "TRAINING", gates_failed=failed)]))
    (story,) = alone.stories.ended()
    assert (story.outcome, story.end_stage, story.epochs) == ("round over", "TRAINING", 5)
    assert [(gate.gate, gate.failed) for gate in story.gates] == [
        ("G2", ("min_epochs",)),
        ("G3", ("contribution",)),
    ]


def test_seeds_of_older_versions_end_with_their_round() -> None:
    told = [*LIFE[:6], epoch(1, 3, **grown(0.0, 0.5)), round_finished(1), round_started(2)]
    (story,) = stories_of(folded(numbered(told)))
    assert (story.outcome, story.end_stage, story.contribution) == ("round over", "TRAINING", 0.5)


def test_a_seed_from_before_joining_is_told_from_then() -> None:
    found = numbered([started("b1"), epoch(1, 4, **grown(0.5, 0.25, stage_=3))])
    story = story_of(found)
    assert (story.seed, story.by, story.born_epoch, story.outcome) == ("", None, None, "lives")
    assert [point.contribution for point in story.points] == [0.25]


def played_again(shift: int = 0) -> list[Event]:
    """Rounds 1 to 3, then a boot with its clock set back that goes back to the midst of round 2."""
    first: list[Told] = [started("b1")]
    for round_ in (1, 2, 3):
        first += [
            round_started(round_),
            stage(at(round_, 0, 0), "r0c0", "DORMANT", "GERMINATED"),
            *[epoch(round_, one, **grown(0.0, 0.5)) for one in (1, 2, 3, 4)],
            stage(at(round_, 3, 0), "r0c0", "GERMINATED", "PRUNED"),
            ended(at(round_, 4, 0), "r0c0", 0, 3, "PRUNED"),
        ]
    second = [
        started("b2", resumed_round=1),
        rewound(2, 2, first),
        epoch(2, 3, **grown(0.0, 0.25)),
        stage(at(2, 3, 0), "r0c0", "GERMINATED", "TRAINING"),
    ]
    found = numbered([*first, *second])
    return [*found[: len(first)], *[replace(e, ts=e.ts - shift) for e in found[len(first) :]]]


@pytest.mark.parametrize("is_late", [False, True], ids=["in order", "late"])
def test_what_a_boot_plays_again_is_told_once(is_late: bool) -> None:
    found = played_again(shift=600_000_000)
    state = folded(found[-4:] if is_late else found)
    fold_late(state, found[:-4] if is_late else [])
    story = state.stories.present(2, 0, "r0c0")
    assert story is not None
    assert [step.stage for step in story.stages] == ["GERMINATED", "TRAINING"]
    assert [(p.epoch, p.contribution) for p in story.points] == [(1, 0.5), (2, 0.5), (3, 0.25)]
    assert story.outcome == "lives"
    assert state.stories.present(3, 0, "r0c0") is None
    assert [story.round for story in state.stories.ended()] == [1]


def test_cut_has_what_was_known_then() -> None:
    found = played_again()
    for end in range(2, len(found)):
        numbers = {e.stream: e.seq for e in found[:end]}
        wanted = folded(found[:end])
        cut = folded(found).stories.cut(numbers, wanted.ctx.round)
        assert cut.ended() == wanted.stories.ended()
        for round_ in (1, 2, 3):
            assert cut.present(round_, 0, "r0c0") == wanted.stories.present(round_, 0, "r0c0")


def test_copy_is_not_changed_by_later_events() -> None:
    found = list(events(envs=4, rounds=3))
    half = next(i for i, e in enumerate(found) if e.ctx.round == 2 and e.ctx.epoch == 12)
    state = folded(found[:half])
    copied = state.stories.copy()
    before = stories_of(state)
    assert before
    for event in found[half:]:
        state.fold(event)
    assert [copied.get(story.seed) for story in copied.ended()] == before != stories_of(state)


def test_memory_is_bounded_and_keeps_the_newest_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_stories, "MAX_SEEDS", 20)
    monkeypatch.setattr(seed_stories, "MAX_POINTS", 8)
    state = folded(events(envs=4, rounds=6))
    stories = stories_of(state)
    assert 10 < len(stories) <= 20
    assert {story.round for story in stories} <= {5, 6}
    assert len(state.stories._points) <= 20
    assert max(len(points) for points in state.stories._points.values()) <= 8 * 48
    assert all(len(story.points) <= 8 for story in stories)


def test_points_after_the_clock_stepped_back_are_of_their_seed() -> None:
    told = [
        started("b1"),
        round_started(1),
        stage(at(1, 0, 0), "r0c0", "DORMANT", "GERMINATED", seed="old"),
        *[epoch(1, one, **grown(0.0, 0.5)) for one in (1, 2, 3)],
        stage(at(1, 3, 0), "r0c0", "GERMINATED", "PRUNED", seed="old"),
        stage(at(1, 4, 0), "r0c0", "DORMANT", "GERMINATED", seed="new"),
        *[epoch(1, one, **grown(0.0, 0.25)) for one in (5, 6, 7)],
    ]
    found = numbered(told)
    state = folded([*found[:9], *[replace(one, ts=one.ts - 7) for one in found[9:]]])
    stories = [state.stories.get(seed) for seed in ("old", "new")]
    assert [story and [point.epoch for point in story.points] for story in stories] == [[1, 2, 3], [5, 6, 7]]
    assert [story and story.contribution for story in stories] == [0.5, 0.25]

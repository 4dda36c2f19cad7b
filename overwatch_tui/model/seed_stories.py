"""The life of each seed, from its birth to its end: stages, gates, and what was measured each epoch.

Only facts are kept, in bounded memory; a life is made of them when it is asked for. So events may come in any
order and more than once. What belongs to one life is decided as `Lives` does, which SQL agrees with.

What a resumed boot repeats is decided by the numbers of events in a stream and by the run's clock, that is
(round, epoch): times step back with the machine's clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import NamedTuple

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.journal.seed_lives import Life, Lives
from esper_overwatch.protocol.messages.events import EpochFinished, SeedGate, SeedStage
from esper_overwatch.protocol.messages.vocabulary import WITH_SEED

from .columns import at_or_none
from .seed_facts import COLUMNS, SeedFacts

MAX_PLACES = 2000
"""Slots of envs in a round of which facts are kept; those of the oldest round go first."""
MAX_FACTS = 200
"""Stages and gates of a slot in a round; further ones are left out."""
MAX_POINTS = 256
"""Epochs of a slot in a round; beyond, every second one is dropped."""
MAX_EPOCHS = 16_384
"""Epochs of which the newest measurement is known; those that came first go first."""
MAX_BOOTS = 16
MAX_ENDED = 200
"""Ended lives that are listed."""
_SEQ = 2
"""Column that holds the number of an epoch's event."""
_WITH_SEED = frozenset(stage.name for stage in WITH_SEED)

SeedKey = tuple[int, int, str, int]
"""(round, env, slot, how many lives were in this slot before in the round)."""
_Place = tuple[int, int, str]
"""(round, env, slot)."""
_Clock = tuple[int, float]
"""(round, epoch)."""


class StageStep(NamedTuple):
    """A stage that a seed entered."""

    stage: str
    epoch: int
    ts: int
    by: str
    alpha: float
    contribution: float | None


class GateStep(NamedTuple):
    """A gate that was evaluated `times` times in a row with one verdict."""

    gate: str
    epoch: int
    """The first time."""
    ts: int
    failed: tuple[str, ...]
    """Checks; empty = passed."""
    times: int


class Point(NamedTuple):
    """A seed after an epoch; None is what was not measured."""

    epoch: int
    ts: int
    alpha: float | None
    contribution: float | None
    grad_norm: float | None


@dataclass
class SeedStory:
    """One seed."""

    key: SeedKey
    blueprint: str | None = None
    parameters: int | None = None
    seed: str | None = None
    """Id in the events."""
    by: str | None = None
    """The one who planted it; None = its birth is not known."""
    born_epoch: int | None = None
    stage: str = ""
    end_stage: str | None = None
    """Last stage, as in `Life`; None = it goes on."""
    end_epoch: int | None = None
    contribution: float | None = None
    """The newest known, a share of accuracy."""
    ts: int = 0
    """Time of the newest stage, microseconds."""
    stages: list[StageStep] = field(default_factory=list)
    gates: list[GateStep] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @property
    def round(self) -> int:
        return self.key[0]

    @property
    def env(self) -> int:
        return self.key[1]

    @property
    def slot(self) -> str:
        return self.key[2]

    @property
    def outcome(self) -> str:
        """`FOSSILIZED`, `PRUNED`, `undone by a rollback`, `round over`, or `lives`."""
        if self.end_stage == "DORMANT":
            return "undone by a rollback"
        if self.end_stage is None:
            return "lives"
        return self.end_stage if self.end_stage in ("FOSSILIZED", "PRUNED") else "round over"

    @property
    def epochs(self) -> int | None:
        """Epochs from its birth to its end, or to its newest known epoch."""
        last = self.end_epoch
        if last is None and self.points:
            last = self.points[-1].epoch
        return None if last is None or self.born_epoch is None else max(0, last - self.born_epoch)


class _Boot:
    """A daemon that began with a number of `life`: what it repeats replaces what was before."""

    def __init__(self, seq: int, clock: _Clock = (1 << 60, inf)) -> None:
        self.seq = seq
        self.clock = clock
        """Earliest clock that the boot has reported."""

    def copy(self) -> _Boot:
        return _Boot(self.seq, self.clock)


class SeedStories:
    """Facts of many seeds."""

    def __init__(self) -> None:
        self._places: dict[_Place, SeedFacts] = {}
        self._boots: list[_Boot] = []
        self._finished: dict[int, int] = {}
        """Number of the event by which a round was over."""
        self._newest: dict[str, tuple[int, _Clock]] = {}
        """Number and clock of the newest event of each stream."""
        self._measured: dict[tuple[int, int], int] = {}
        """Number of the newest event that measured it, by round and epoch."""
        self._owner = object()
        self._made: dict[_Place, list[SeedStory]] = {}
        """Lives that were made of the facts, without `points`."""

    def copy(self) -> SeedStories:
        """Copy that shares facts until either changes them."""
        twin = SeedStories()
        twin._places, twin._finished = dict(self._places), dict(self._finished)
        twin._newest, twin._measured = dict(self._newest), dict(self._measured)
        twin._boots = [boot.copy() for boot in self._boots]
        self._owner = object()
        return twin

    def cut(self, until: Mapping[str, int]) -> SeedStories:
        """Stories of the events up to a number of each stream."""
        twin = SeedStories()
        life, metric = until.get("life", 0), until.get("metric", 0)
        for clock, seq in self._measured.items():
            if seq <= metric:
                twin._note_epoch(seq, clock)
        for place, facts in self._places.items():
            kept = SeedFacts(twin._owner)
            for event in facts.events(*place):
                if event.seq <= life:
                    kept.add(event)
                    twin._note_newest("life", event.seq, (place[0], event.ctx.epoch))
            for at in range(0, len(facts.numbers), COLUMNS):
                if facts.numbers[at + _SEQ] <= metric:
                    kept.numbers.extend(facts.numbers[at : at + COLUMNS])
                    # A later boot may have measured it again, which hid the number from the table.
                    twin._note_epoch(int(facts.numbers[at + _SEQ]), (place[0], int(facts.numbers[at])))
            if len(kept) or kept.numbers:
                twin._places[place] = kept
        twin._boots = [boot.copy() for boot in self._boots if boot.seq <= life]
        twin._finished = {round_: seq for round_, seq in self._finished.items() if seq <= life}
        for round_, seq in twin._finished.items():
            twin._note_newest("life", seq, (round_, inf))
        return twin

    def begin_boot(self, event: Event) -> None:
        if all(boot.seq != event.seq for boot in self._boots):
            boots = [*self._boots, _Boot(event.seq)]
            self._boots = sorted(boots, key=lambda boot: boot.seq)[-MAX_BOOTS:]

    def reach(self, event: Event, *, is_over: bool = False) -> None:
        """The run was at this round and epoch; with `is_over` its round ended."""
        round_, clock = event.ctx.round, (event.ctx.round, event.ctx.epoch + is_over)
        is_newest = self._note_newest(event.stream, event.seq, clock)
        if event.stream == "life":
            boots = [boot for boot in self._boots if event.seq >= boot.seq]
        else:
            # Its number does not say which boot it is of: as it comes of the newest, later of an unknown one.
            boots = self._boots[-1:] if is_newest else []
        for boot in boots:
            if clock < boot.clock:
                boot.clock = clock
                self._made.clear()
        if is_over:
            self._finished[round_] = max(self._finished.get(round_, 0), event.seq)
            while len(self._finished) > MAX_PLACES:
                del self._finished[min(self._finished)]
            self._made.clear()

    def _note_newest(self, stream: str, seq: int, clock: _Clock) -> bool:
        """True if the event with this number is the newest of its stream."""
        known = self._newest.get(stream)
        if known is not None and seq <= known[0]:
            return False
        self._newest[stream] = seq, clock
        if known is None or known[1][0] != clock[0] or clock < known[1]:
            self._made.clear()
        return True

    def _note_epoch(self, seq: int, clock: tuple[int, int]) -> None:
        """An epoch was measured by the event with this number."""
        self._note_newest("metric", seq, clock)
        self._measured[clock] = max(self._measured.get(clock, 0), seq)
        if len(self._measured) > MAX_EPOCHS:
            del self._measured[next(iter(self._measured))]

    def note(self, event: Event) -> None:
        """Take in a stage or a gate."""
        self.reach(event)
        data: SeedStage | SeedGate = event.data
        if event.ctx.env is None:
            return
        place = (event.ctx.round, event.ctx.env, data.slot)
        facts = self._of(place)
        if facts is not None and len(facts) < MAX_FACTS:
            facts.add(event)
            self._made.pop(place, None)

    def epoch(self, event: Event, slots: list[str], with_seed: frozenset[int]) -> None:
        """Take in an `epoch`; `with_seed` has the codes of the stages in which a slot holds a seed."""
        self.reach(event)
        data: EpochFinished = event.data
        round_, epoch, ts = event.ctx.round, event.ctx.epoch, event.ts
        self._note_epoch(event.seq, (round_, epoch))
        for env, row in enumerate(data.stage):
            for slot, code in enumerate(row):
                if code not in with_seed or slot >= len(slots):
                    continue
                facts = self._of((round_, env, slots[slot]))
                if facts is None:
                    continue
                if not facts.numbers:
                    self._made.pop((round_, env, slots[slot]), None)
                columns = (data.alpha, data.contribution, data.seed_grad_norm)
                values = (at_or_none(at_or_none(column, env), slot) for column in columns)
                facts.numbers.extend((epoch, ts, event.seq, *(nan if v is None else v for v in values)))
                if len(facts.numbers) > MAX_POINTS * COLUMNS:
                    facts.numbers = _halve(facts.numbers)

    def _of(self, place: _Place) -> SeedFacts | None:
        """The facts of a place, to be changed; None where its round is too old to be kept."""
        facts = self._places.get(place)
        if facts is None:
            if len(self._places) >= MAX_PLACES and not self._make_room(place[0]):
                return None
            facts = self._places[place] = SeedFacts(self._owner)
        elif facts.owner is not self._owner:
            facts = self._places[place] = facts.copy(self._owner)
        return facts

    def _make_room(self, round_: int) -> bool:
        """Drop the oldest round where it is older than this one."""
        oldest = min(place[0] for place in self._places)
        if oldest >= round_:
            return False
        self._places = {place: facts for place, facts in self._places.items() if place[0] != oldest}
        self._made.clear()
        return True

    def _is_void(self, round_: int, epoch: float, seq: int) -> bool:
        """True if a later boot repeats what an event of `life` reported."""
        return any(seq < boot.seq and (round_, epoch) >= boot.clock for boot in self._boots)

    def _is_void_point(self, clock: tuple[int, int], seq: int) -> bool:
        """True if the epoch was measured again, or the run has gone back to before it."""
        newest, now = self._newest.get("metric", (0, clock))
        return seq < self._measured.get(clock, 0) or (seq < newest and clock > now)

    def _is_over(self, round_: int) -> bool:
        ended = self._finished.get(round_)
        if ended is not None and not self._is_void(round_, inf, ended):
            return True
        # The stream that reports a boot that goes back first makes it known.
        return round_ < min((clock[0] for _, clock in self._newest.values()), default=0)

    def ended(self) -> list[SeedStory]:
        """Lives that are over, without `points`: of each round what ended before it, the newest first."""
        found = [story for story in self._all() if story.end_stage is not None]
        found.sort(key=_newest_end, reverse=True)
        return found[:MAX_ENDED]

    def _all(self) -> Iterator[SeedStory]:
        for place, facts in self._places.items():
            if place not in self._made:
                self._made[place] = self._tell(place, facts)
            yield from self._made[place]

    def present(self, round_: int, env: int, slot: str) -> SeedStory | None:
        """The newest life in a slot, with all that is known."""
        return self._full((round_, env, slot), -1)

    def get(self, key: SeedKey) -> SeedStory | None:
        return self._full(key[:3], key[3])

    def _full(self, place: _Place, number: int) -> SeedStory | None:
        facts = self._places.get(place)
        stories = self._tell(place, facts) if facts is not None else []
        if facts is None or not -len(stories) <= number < len(stories):
            return None
        self._add_points(stories, facts.numbers)
        return stories[number]

    def _tell(self, place: _Place, facts: SeedFacts) -> list[SeedStory]:
        """The lives that were in this place, in the order of birth."""
        round_, env, slot = place
        events = sorted(facts.events(*place), key=lambda event: event.seq)
        events = [one for one in events if not self._is_void(round_, one.ctx.epoch, one.seq)]
        lives, stories = Lives(), _Stories(place)
        for event in events:
            if isinstance(event.data, SeedStage):
                lives.stage(event)
                stories.stage(event, lives.at(env, slot))
            else:
                stories.gate(event)
        if not stories.all and any(True for _ in self._points(round_, facts.numbers)):
            stories.begin_unknown()
        if self._is_over(round_):
            last = max((int(epoch) for epoch in facts.numbers[::COLUMNS]), default=0)
            for story in stories.all:
                if story.end_stage is None:
                    story.end_stage = story.stage or "unknown"
                    story.end_epoch = max(last, *(step.epoch for step in story.stages), 0)
        return stories.all

    def _add_points(self, stories: list[SeedStory], numbers: array[float]) -> None:
        """Give each epoch to the life whose stage was the newest then: by epochs, since clocks step back."""
        begins = [((step.epoch, step.ts), i) for i, story in enumerate(stories) for step in story.stages]
        points = {(point.epoch, point.ts): point for point in self._points(stories[0].round, numbers)}
        for then, point in sorted(points.items()):
            owner = max((begin for begin in begins if begin[0] <= then), default=((0, 0), 0))[1]
            story = stories[owner]
            story.points.append(point)
            if point.contribution is not None:
                story.contribution = point.contribution

    def _points(self, round_: int, numbers: array[float]) -> Iterator[Point]:
        """The epochs that no later boot has repeated."""
        for at in range(0, len(numbers), COLUMNS):
            epoch, ts, seq, *values = numbers[at : at + COLUMNS]
            if not self._is_void_point((round_, int(epoch)), int(seq)):
                yield Point(int(epoch), int(ts), *(v if isfinite(v) else None for v in values))


class _Stories:
    """Makes the lives of one place of its events, in their order."""

    def __init__(self, place: _Place) -> None:
        self.all: list[SeedStory] = []
        self._place = place
        self._of_life: dict[int, tuple[Life, SeedStory]] = {}
        self._now: SeedStory | None = None
        self._waiting: list[Event] = []
        """Gates that were evaluated while no seed was there: of the one that is planted next."""

    def begin_unknown(self) -> SeedStory:
        """Begin the story of a seed whose birth is not known."""
        self._now = SeedStory((*self._place, len(self.all)))
        self.all.append(self._now)
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self.gate(event)
        return self._now

    def stage(self, event: Event, life: Life | None) -> None:
        """A stage was entered by this life; None is one whose birth is not known."""
        data: SeedStage = event.data
        known = self._of_life.get(id(life))
        story = known[1] if known is not None else self._now if life is None else None
        if story is None:
            if life is None and data.to_stage not in _WITH_SEED:
                return
            story = self.begin_unknown()
        if life is not None and known is None:
            self._of_life[id(life)] = life, story
            story.by, story.born_epoch = data.by, event.ctx.epoch
        self._now = story
        story.blueprint = story.blueprint or data.blueprint if life is None else life.blueprint
        story.seed = story.seed or data.seed
        story.parameters = story.parameters or data.parameters or None
        story.ts = event.ts
        story.contribution = story.contribution if data.contribution is None else data.contribution
        if story.end_stage is None or data.to_stage in _WITH_SEED:
            step = (data.to_stage, event.ctx.epoch, event.ts, data.by, data.alpha, data.contribution)
            story.stages.append(StageStep(*step))
        if life is not None:
            for each, its in self._of_life.values():
                # What a rollback undid ends with the return of the one before it.
                its.stage, its.end_stage, its.end_epoch = each.stage, each.end_stage, each.end_epoch
        else:
            story.stage = data.to_stage
            is_end = data.to_stage not in _WITH_SEED or data.to_stage == "FOSSILIZED"
            story.end_stage, story.end_epoch = (data.to_stage, event.ctx.epoch) if is_end else (None, None)

    def gate(self, event: Event) -> None:
        """Add a gate to the story of the present seed."""
        data: SeedGate = event.data
        story = self._now
        if story is None or story.end_stage in ("PRUNED", "DORMANT", "EMBARGOED", "RESETTING"):
            self._waiting.append(event)
            return
        last = story.gates[-1] if story.gates else None
        if last is not None and (last.gate, last.failed) == (data.gate, data.failed):
            story.gates[-1] = last._replace(times=last.times + 1)
        else:
            story.gates.append(GateStep(data.gate, event.ctx.epoch, event.ts, data.failed, 1))


def _newest_end(story: SeedStory) -> tuple[int, bool, int, int]:
    return story.round, story.outcome != "round over", story.end_epoch or 0, story.ts


def _halve(numbers: array[float]) -> array[float]:
    """Every second epoch."""
    kept = array("d")
    for at in range(0, len(numbers), 2 * COLUMNS):
        kept.extend(numbers[at : at + COLUMNS])
    return kept

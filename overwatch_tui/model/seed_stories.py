"""Each seed's own events by its id: stages, gates and its end, and what was measured of its slot each epoch.

Only facts are kept, in bounded memory; a story is made of them when it is asked for. So events may come in
any order and more than once. What a boot that went back has made void is passed over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from sys import intern
from typing import NamedTuple

from msgspec import Struct, msgpack

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.journal.seed_counts import is_of_life
from esper_overwatch.protocol.messages.events import (
    EpochFinished,
    RunRewound,
    SeedEnded,
    SeedGate,
    SeedStage,
)
from esper_overwatch.protocol.messages.vocabulary import Stage

from .columns import at_or_none

MAX_SEEDS = 2000
"""Seeds, and slots of envs in a round, of which facts are kept; those of the oldest round go first."""
MAX_FACTS = 200
"""Stages and gates of a seed; further ones are left out."""
MAX_POINTS = 256
"""Epochs of a slot in a round; beyond, every second one is dropped."""
MAX_REWINDS = 16
MAX_ENDED = 200
"""Ended seeds that are listed."""
_POINT = struct.Struct("=2q4d")
"""Number of the event and epoch, time, alpha, contribution, gradient norm."""
_ENDS = (Stage.FOSSILIZED.name, Stage.PRUNED.name, Stage.DORMANT.name)


class _Place(NamedTuple):
    round: int
    env: int
    slot: str


class StageStep(Struct, array_like=True, tag="stage"):
    """A stage that a seed entered."""

    stage: str
    epoch: int
    ts: int
    by: str
    alpha: float
    contribution: float | None


class GateStep(Struct, array_like=True, tag="gate"):
    """A gate that was evaluated `times` times in a row with one verdict."""

    gate: str
    epoch: int
    """The first time."""
    ts: int
    failed: tuple[str, ...]
    """Checks; empty = passed."""
    times: int


class _End(Struct, array_like=True, tag="end"):
    """What was told of a seed's end, see `SeedEnded`."""

    born: int
    ended: int
    how: str
    contribution: float | None
    gates_failed: dict[str, tuple[str, ...]]


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

    seed: str
    """Its id; empty where no event has told it."""
    round: int
    env: int
    slot: str
    blueprint: str | None = None
    parameters: int | None = None
    by: str | None = None
    """The one who planted it; None = its birth is not known."""
    born_epoch: int | None = None
    end_stage: str | None = None
    """FOSSILIZED, PRUNED, DORMANT (undone by a rollback), or its stage at the round's end; None: lives."""
    end_epoch: int | None = None
    is_told: bool = False
    """Its end is known from `seed.ended`."""
    contribution: float | None = None
    """The newest known, a share of accuracy."""
    ts: int = 0
    """Time of the newest stage, microseconds."""
    stages: list[StageStep] = field(default_factory=list)
    gates: list[GateStep] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    @property
    def stage(self) -> str:
        """The newest that is known."""
        return self.stages[-1].stage if self.stages else ""

    @property
    def outcome(self) -> str:
        """`FOSSILIZED`, `PRUNED`, `undone by a rollback`, `round over`, or `lives`."""
        if self.end_stage == "DORMANT":
            return "undone by a rollback"
        if self.end_stage is None:
            return "lives"
        return self.end_stage if self.end_stage in _ENDS else "round over"

    @property
    def epochs(self) -> int | None:
        """Epochs from its birth to its end, or to its newest known epoch."""
        last = self.end_epoch
        if last is None and self.points:
            last = self.points[-1].epoch
        return None if last is None or self.born_epoch is None else max(0, last - self.born_epoch)


class _Fact(Struct, array_like=True):
    seq: int
    epoch: int
    what: StageStep | GateStep | _End


class _Facts(NamedTuple):
    """Facts about one seed; replaced, never changed, so that copies can share them."""

    place: _Place
    blueprint: str | None
    parameters: int
    packed: bytes
    """A list of `_Fact`: there are thousands."""

    @property
    def all(self) -> list[_Fact]:
        """Made anew at each call."""
        return _unpack(self.packed)


_pack, _unpack = msgpack.encode, msgpack.Decoder(list[_Fact]).decode


class SeedStories:
    """Facts of many seeds.

    Attributes:
        round: the present one; seeds of earlier ones have ended.
    """

    def __init__(self) -> None:
        self.round = 0
        self._facts: dict[str, _Facts] = {}
        self._points: dict[_Place, bytes] = {}
        self._rewinds: dict[int, RunRewound] = {}
        """By the number of the event."""
        self._made: dict[str, SeedStory] = {}
        """Stories that were made of the facts, without `points`."""
        self._made_in = 0

    def copy(self) -> SeedStories:
        """Independent copy, which can be continued."""
        twin = SeedStories()
        twin.round, twin._facts, twin._points = self.round, dict(self._facts), dict(self._points)
        twin._rewinds = dict(self._rewinds)
        return twin

    def cut(self, until: Mapping[str, int], round_: int) -> SeedStories:
        """Stories of the events up to a number of each stream, in this round."""
        twin, life, metric = SeedStories(), until.get("life", 0), until.get("metric", 0)
        twin.round = round_
        for seed, facts in self._facts.items():
            kept = [fact for fact in facts.all if fact.seq <= life]
            if kept:
                twin._facts[seed] = facts._replace(packed=_pack(kept))
        for place, points in self._points.items():
            each = [points[at : at + _POINT.size] for at in range(0, len(points), _POINT.size)]
            twin._points[place] = b"".join(one for one in each if _POINT.unpack(one)[0] <= metric)
        twin._rewinds = {seq: rewound for seq, rewound in self._rewinds.items() if seq <= life}
        return twin

    def note(self, event: Event) -> None:
        """Take in a stage, a gate, an end or a rewind; those that name no seed are passed over."""
        data: SeedStage | SeedGate | SeedEnded | RunRewound = event.data
        if isinstance(data, RunRewound):
            self._rewinds[event.seq] = data
            self._rewinds = {seq: self._rewinds[seq] for seq in sorted(self._rewinds)[-MAX_REWINDS:]}
            self._made.clear()
            return
        seed, env, round_ = data.seed, event.ctx.env, event.ctx.round
        is_of_slot = isinstance(data, SeedStage) and not is_of_life(data)
        if seed is None or env is None or is_of_slot or not (seed in self._facts or self._has_room(round_)):
            return
        facts = self._facts.get(seed) or _Facts(_Place(round_, env, intern(data.slot)), None, 0, _pack([]))
        if not isinstance(data, SeedGate):
            named, parameters = facts.blueprint or data.blueprint, facts.parameters or data.parameters
            facts = facts._replace(blueprint=intern(named) if named else named, parameters=parameters)
        known = facts.all
        is_known = any(fact.seq == event.seq for fact in known)
        if not is_known and (len(known) < MAX_FACTS or isinstance(data, SeedEnded)):
            fact = _Fact(event.seq, event.ctx.epoch, _what(data, event))
            self._facts[seed] = facts._replace(packed=_pack([*known, fact]))
            self._made.pop(seed, None)

    def epoch(self, event: Event, slots: list[str], with_seed: frozenset[int]) -> None:
        """Take in an `epoch`; `with_seed` has the codes of the stages in which a slot holds a seed."""
        data: EpochFinished = event.data
        for env, row in enumerate(data.stage):
            for i, code in enumerate(row[: len(slots)]):
                place = _Place(event.ctx.round, env, slots[i])
                if code not in with_seed or not (place in self._points or self._has_room(place.round)):
                    continue
                columns = (data.alpha, data.contribution, data.seed_grad_norm)
                values = (at_or_none(at_or_none(column, env), i) for column in columns)
                numbers = (float(event.ts), *(nan if value is None else value for value in values))
                points = self._points.get(place, b"") + _POINT.pack(event.seq, event.ctx.epoch, *numbers)
                if len(points) > MAX_POINTS * _POINT.size:  # every second epoch stays
                    starts = range(0, len(points), 2 * _POINT.size)
                    points = b"".join(points[at : at + _POINT.size] for at in starts)
                self._points[place] = points

    def ended(self) -> list[SeedStory]:
        """Seeds that have ended, without `points`: of each round what ended before it, the newest first."""
        if self._made_in != self.round:
            self._made, self._made_in = {}, self.round
        for seed in self._facts.keys() - self._made.keys():
            self._made[seed] = self._tell(seed)
        found = [s for s in self._made.values() if s.is_told or (s.stages and s.end_stage is not None)]
        found.sort(key=_newest_end, reverse=True)
        return found[:MAX_ENDED]

    def get(self, seed: str) -> SeedStory | None:
        """A seed with all that is known; None where nothing is."""
        return self._full(seed, self._facts[seed].place) if seed in self._facts else None

    def present(self, round_: int, env: int, slot: str) -> SeedStory | None:
        """The newest seed in a slot, with all that is known."""
        place = _Place(round_, env, slot)
        steps = list(self._steps(place))
        if steps:
            return self._full(max(steps, key=lambda step: step[1:])[3], place)
        return self._full("", place) if any(self._valid_points(place)) else None

    def _has_room(self, round_: int) -> bool:
        """True once there is room: the oldest round goes where it is older than this one."""
        if max(len(self._facts), len(self._points)) < MAX_SEEDS:
            return True
        oldest = min([facts.place.round for facts in self._facts.values()] + [p.round for p in self._points])
        if oldest >= round_:
            return False
        self._facts = {seed: one for seed, one in self._facts.items() if one.place.round != oldest}
        self._points = {place: one for place, one in self._points.items() if place.round != oldest}
        self._made.clear()
        return True

    def _is_void(self, stream: str, seq: int, clock: tuple[int, int], *, is_end: bool = False) -> bool:
        return any(
            seq <= rewound.last.get(stream, 0) and rewound.voids(*clock, is_end=is_end)
            for rewound in self._rewinds.values()
        )

    def _valid(self, facts: _Facts) -> list[_Fact]:
        """What counts of the facts, in the order of the events."""

        def is_valid(fact: _Fact) -> bool:
            clock, is_end = (facts.place.round, fact.epoch), isinstance(fact.what, _End)
            return not self._is_void("life", fact.seq, clock, is_end=is_end)

        return sorted(filter(is_valid, facts.all), key=lambda fact: fact.seq)

    def _steps(self, place: _Place) -> Iterator[tuple[int, int, int, str]]:
        """Epoch, number, time and seed of each stage in a place."""
        for seed, facts in self._facts.items():
            if facts.place == place:
                for fact in self._valid(facts):
                    if isinstance(fact.what, StageStep):
                        yield fact.epoch, fact.seq, fact.what.ts, seed

    def _tell(self, seed: str) -> SeedStory:
        facts = self._facts[seed]
        story = SeedStory(seed, *facts.place, facts.blueprint, facts.parameters or None)
        for fact in self._valid(facts):
            if isinstance(fact.what, StageStep):
                _add_stage(story, fact.what)
            elif isinstance(fact.what, GateStep):
                _add_gate(story.gates, fact.what)
            else:
                _add_end(story, fact.what)
        if story.end_stage is None and story.round < self.round:
            story.end_stage = story.stage or "unknown"
            story.end_epoch = max((fact.epoch for fact in facts.all), default=0)
        return story

    def _full(self, seed: str, place: _Place) -> SeedStory:
        story = self._tell(seed) if seed else SeedStory("", *place)
        steps = sorted(self._steps(place))
        for point in self._valid_points(place):
            then = point.epoch, point.ts
            begun = [owner for epoch, _, ts, owner in steps if (epoch, ts) <= then]
            if seed == (begun or [owner for *_, owner in steps[:1]] or [seed])[-1]:
                story.points.append(point)
                if point.contribution is not None and not story.is_told:
                    story.contribution = point.contribution
        return story

    def _valid_points(self, place: _Place) -> Iterator[Point]:
        """The epochs that count, the newest measurement of each."""
        points: dict[int, Point] = {}
        for seq, epoch, ts, *values in sorted(_POINT.iter_unpack(self._points.get(place, b""))):
            if not self._is_void("metric", seq, (place.round, epoch)):
                points[epoch] = Point(epoch, int(ts), *(v if isfinite(v) else None for v in values))
        yield from (points[epoch] for epoch in sorted(points))


def _what(data: SeedStage | SeedGate | SeedEnded, event: Event) -> StageStep | GateStep | _End:
    epoch, ts = event.ctx.epoch, event.ts
    if isinstance(data, SeedEnded):
        failed = {gate: tuple(checks) for gate, checks in data.gates_failed.items()}
        return _End(data.born, data.ended, data.how, data.contribution, failed)
    if isinstance(data, SeedStage):
        return StageStep(data.to_stage, epoch, ts, data.by, data.alpha, data.contribution)
    return GateStep(data.gate, epoch, ts, data.failed, 1)


def _add_stage(story: SeedStory, step: StageStep) -> None:
    if step.stage == "GERMINATED" and step.by != "governor":
        story.by, story.born_epoch = step.by, step.epoch
    story.stages.append(step)
    story.ts = step.ts
    story.contribution = story.contribution if step.contribution is None else step.contribution
    is_end = step.stage in _ENDS
    story.end_stage, story.end_epoch = (step.stage, step.epoch) if is_end else (None, None)


def _add_gate(gates: list[GateStep], step: GateStep) -> None:
    last = gates[-1] if gates else None
    if last is not None and (last.gate, last.failed) == (step.gate, step.failed):
        last.times += 1
    else:
        gates.append(step)


def _add_end(story: SeedStory, end: _End) -> None:
    story.born_epoch, story.end_epoch, story.end_stage = end.born, end.ended, end.how
    story.contribution, story.is_told = end.contribution, True
    if not story.gates:
        story.gates = [GateStep(gate, end.ended, 0, checks, 1) for gate, checks in end.gates_failed.items()]


def _newest_end(story: SeedStory) -> tuple[int, bool, int, int, str]:
    """Its id last, so that seeds which ended together have one order."""
    return story.round, story.outcome != "round over", story.end_epoch or 0, story.ts, story.seed

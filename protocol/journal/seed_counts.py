"""Counts of seeds by blueprint and slot: sums of `seed.ended`, and the present round's seeds as they stand.

The view `seeds` of `esper-daemon query` has the same seeds. A boot that goes back to a checkpoint says so by
`run.rewound`, before it tells again what became of seeds.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import EpochFinished, RunRewound, SeedEnded, SeedStage
from esper_overwatch.protocol.messages.vocabulary import WITH_SEED, Stage

_OF_LIFE = frozenset(stage.name for stage in (*WITH_SEED, Stage.PRUNED))
_GONE = (Stage.PRUNED.name, Stage.DORMANT.name)
PACK_ROUNDS, MAX_PACKS = 16, 62
"""Rounds that are packed together, and packs: a boot can go back to 1000 rounds; older ones are sums only."""


@dataclass(frozen=True, slots=True)
class SeedCount:
    """Seeds of one blueprint."""

    germinated: int = 0
    fossilized: int = 0
    pruned: int = 0
    contributed: float = field(default=0.0, compare=False)
    """Sum of the last known contributions of its seeds, shares of accuracy."""
    measured: int = field(default=0, compare=False)
    """Seeds of which one is known."""

    @classmethod
    def of(cls, seed: SeedEnded) -> SeedCount:
        worth = seed.contribution
        worth = worth if worth is not None and isfinite(worth) else None
        how = (int(seed.how == "FOSSILIZED"), int(seed.how == "PRUNED"))
        return cls(1, *how, worth or 0.0, int(worth is not None))

    @property
    def mean_contribution(self) -> float | None:
        """Mean per measured seed; None where none was measured."""
        return self.contributed / self.measured if self.measured else None

    def __add__(self, other: SeedCount) -> SeedCount:
        return SeedCount(
            self.germinated + other.germinated,
            self.fossilized + other.fossilized,
            self.pruned + other.pruned,
            self.contributed + other.contributed,
            self.measured + other.measured,
        )


CountsBySlot = dict[tuple[str, str], SeedCount]
"""Counts by blueprint and slot."""


def is_of_life(stage: SeedStage) -> bool:
    """True for a stage of the seed that the event names; the others are those of the slot after it."""
    return stage.to_stage in _OF_LIFE or (stage.to_stage == "DORMANT" and stage.by == "governor")


class SeedCounts:
    """Adds up the events of a run in their order.

    Attributes:
        is_whole: every event of `life` since the run's beginning was received, and all seeds' ends were told:
            the counts are the run's.
    """

    def __init__(self) -> None:
        self.is_whole = True
        self._rounds: dict[int, CountsBySlot] = {}
        """Of the seeds whose ends were told; a round's are replaced, never changed: copies share them."""
        self._packs: list[bytes] = []
        """The rounds before these; a day of them as they are would be a MiB."""
        self._packed: CountsBySlot = {}
        self._older: CountsBySlot = {}
        """Sums of all rounds before `_rounds`, and of those before the packs."""
        self._round = 0
        self._stages: list[Event] = []
        """Of the present round."""
        self._told: set[str] = set()
        """Seeds of the present round whose ends were told."""
        self._measured: dict[tuple[int, str], list[tuple[int, float]]] = {}
        """Epochs and contributions of the present round, by env and slot."""
        self._sum: CountsBySlot | None = None

    def copy(self) -> SeedCounts:
        """Independent copy, which can be continued."""
        twin = SeedCounts()
        twin.is_whole, twin._round = self.is_whole, self._round
        twin._rounds, twin._packs = dict(self._rounds), list(self._packs)
        twin._packed, twin._older = dict(self._packed), dict(self._older)
        twin._stages, twin._told = list(self._stages), set(self._told)
        twin._measured = {place: list(values) for place, values in self._measured.items()}
        return twin

    def rewind(self, rewound: RunRewound) -> None:
        """Forget what the boot that begins plays again."""
        stages = [one for one in self._stages if not rewound.voids(one.ctx.round, one.ctx.epoch)]
        measured = self._measured if self._round == rewound.round else {}
        rounds = {n: counts for pack in self._packs for n, counts in _unpack(pack).items()} | self._rounds
        self._rounds = {number: counts for number, counts in rounds.items() if number < rewound.round}
        self._packs, self._packed = [], dict(self._older)
        self._begin_round(rewound.round)
        self._stages = [one for one in stages if one.ctx.round == rewound.round]
        for place, values in measured.items():
            self._measured[place] = [value for value in values if value[0] <= rewound.epoch]

    def stage(self, event: Event) -> None:
        """Take in a `seed.stage`."""
        self._reach(event.ctx.round)
        if event.data.seed is not None and event.ctx.env is not None:
            self._stages.append(event)
            self._sum = None

    def epoch(self, event: Event, slots: Sequence[str]) -> None:
        """Take in an `epoch`; `slots` names the columns."""
        self._reach(event.ctx.round)
        data: EpochFinished = event.data
        for env, row in enumerate(data.contribution):
            for slot, value in zip(slots, row, strict=False):
                if value is not None:
                    self._measured.setdefault((env, slot), []).append((event.ctx.epoch, value))
                    self._sum = None

    def end(self, event: Event) -> None:
        """Take in a `seed.ended`."""
        self._reach(event.ctx.round)
        seed: SeedEnded = event.data
        self._told.add(seed.seed)
        self._rounds[self._round] = counts = dict(self._rounds.get(self._round, {}))
        _add(counts, [seed])
        self._sum = None

    def finish_round(self, round_: int, germinated: int) -> None:
        """Compare what was told of a round's seeds with how many there were."""
        told = sum(count.germinated for count in self._rounds.get(round_, {}).values())
        self.is_whole &= told == germinated

    def by_slot(self) -> CountsBySlot:
        if self._sum is None:
            self._sum = dict(self._packed)
            _merge(self._sum, self._rounds.values())
            _add(self._sum, self._present())
        return self._sum

    def by_blueprint(self) -> dict[str, SeedCount]:
        total: dict[str, SeedCount] = {}
        for (blueprint, _), count in self.by_slot().items():
            total[blueprint] = total.get(blueprint, SeedCount()) + count
        return total

    def _reach(self, round_: int) -> None:
        if round_ != self._round:
            self._begin_round(round_)

    def _begin_round(self, round_: int) -> None:
        self._round, self._stages, self._told, self._measured, self._sum = round_, [], set(), {}, None
        if len(self._rounds) >= 2 * PACK_ROUNDS:
            pack = {number: self._rounds.pop(number) for number in list(self._rounds)[:PACK_ROUNDS]}
            _merge(self._packed, pack.values())
            self._packs.append(zlib.compress(pickle.dumps(pack), 1))
        if len(self._packs) > MAX_PACKS:
            _merge(self._older, _unpack(self._packs.pop(0)).values())

    def _present(self) -> Iterable[SeedEnded]:
        """The present round's seeds as they stand."""
        seeds: dict[str, tuple[int | None, SeedEnded]] = {}
        for event in self._stages:
            data: SeedStage = event.data
            assert data.seed is not None
            if data.seed in self._told:
                continue
            if data.to_stage == "GERMINATED" and data.by != "governor":
                seeds[data.seed] = (
                    event.ctx.env,
                    SeedEnded(
                        seed=data.seed,
                        slot=data.slot,
                        blueprint=data.blueprint,
                        parameters=data.parameters,
                        born=event.ctx.epoch,
                        ended=event.ctx.epoch,
                        how=data.to_stage,
                    ),
                )
            _, seed = seeds.get(data.seed, (None, None))
            if seed is not None and is_of_life(data):
                seed.how, seed.ended = data.to_stage, event.ctx.epoch
                seed.contribution = seed.contribution if data.contribution is None else data.contribution
        for env, seed in seeds.values():
            assert env is not None
            until = seed.ended if seed.how in _GONE else float("inf")
            for epoch, value in self._measured.get((env, seed.slot), ()):
                seed.contribution = value if seed.born < epoch <= until else seed.contribution
            yield seed


@lru_cache(4096)
def _name_of(blueprint: str, slot: str) -> tuple[str, str]:
    """The same object for equal ones: each round has a count by these."""
    return blueprint, slot


def _add(total: CountsBySlot, seeds: Iterable[SeedEnded]) -> None:
    for seed in seeds:
        name = _name_of(seed.blueprint or "--", seed.slot)
        total[name] = total.get(name, SeedCount()) + SeedCount.of(seed)


def _merge(total: CountsBySlot, others: Iterable[CountsBySlot]) -> None:
    for counts in others:
        for name, count in counts.items():
            total[name] = total.get(name, SeedCount()) + count


def _unpack(pack: bytes) -> dict[int, CountsBySlot]:
    rounds: dict[int, CountsBySlot] = pickle.loads(zlib.decompress(pack))
    return rounds

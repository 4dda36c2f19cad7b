"""Outcomes of the seeds by blueprint, equal to those of `esper-daemon query` and its table `seeds`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.journal.seed_lives import Life, Lives
from esper_overwatch.protocol.messages.events import EpochFinished


@dataclass(frozen=True, slots=True)
class BlueprintTally:
    """Outcomes of the seeds of one blueprint, counted from the events received."""

    germinated: int = 0
    fossilized: int = 0
    pruned: int = 0
    contributed: float = field(default=0.0, compare=False)
    """Sum of the last known contributions of its seeds, shares of accuracy."""
    measured: int = field(default=0, compare=False)
    """Seeds of which one is known."""

    @property
    def mean_contribution(self) -> float | None:
        """Mean per measured seed; None where none was measured."""
        return self.contributed / self.measured if self.measured else None

    def __add__(self, other: BlueprintTally) -> BlueprintTally:
        return BlueprintTally(
            self.germinated + other.germinated,
            self.fossilized + other.fossilized,
            self.pruned + other.pruned,
            self.contributed + other.contributed,
            self.measured + other.measured,
        )


Tallies = dict[str, BlueprintTally]
SlotTallies = dict[tuple[str, str], BlueprintTally]
"""Tallies by blueprint and slot."""
_Measured = tuple[int, int, int, list[list[float | None]], list[str]]
"""Time, round, epoch, contributions [N][S] and the names of the slots."""


@dataclass
class Scoreboard:
    """Follows the stages of seeds; a boot that resumes repeats rounds, which count once."""

    _rounds: dict[int, SlotTallies] = field(default_factory=dict)
    """Tallies of the rounds before the present one."""
    _round: int = 0
    _events: list[Event] = field(default_factory=list)
    """The stages of the present round."""
    _measured: list[_Measured] = field(default_factory=list)
    """Contributions of the present round, epoch by epoch."""
    _lives: Lives = field(default_factory=Lives)
    """Lives of the present round."""
    _is_booting: bool = False
    is_whole: bool = True
    """True while every event of `life` since the run's beginning was received: the counts are the run's."""

    def begin_boot(self) -> None:
        """A daemon starts: what its first event repeats has been counted already."""
        self._is_booting = True

    def reach(self, event: Event) -> None:
        """A round begins, or an epoch or a round is over; `stage` calls it too."""
        if not self._is_booting:
            return
        self._is_booting = False
        round_, limit = event.ctx.round, event.ctx.epoch + (event.type == "round.finished")
        kept = [old for old in self._events if old.ctx.round == round_ and old.ctx.epoch < limit]
        again: list[tuple[int, Event | _Measured]] = [(old.ts, old) for old in kept]
        last = event.ctx.epoch - (event.type == "epoch")  # stages follow the epoch that they name
        again += [(old[0], old) for old in self._measured if old[1] == round_ and old[2] <= last]
        self._rounds = {number: tallies for number, tallies in self._rounds.items() if number < round_}
        if self._round < round_:
            self._close_round()
        self._begin_round(round_)
        for _, each in sorted(again, key=lambda pair: pair[0]):
            if isinstance(each, Event):
                self.stage(each)
            else:
                self._measure(each)

    def epoch(self, event: Event, slots: list[str]) -> None:
        """An epoch was measured; `slots` names the columns."""
        self.reach(event)
        data: EpochFinished = event.data
        if event.ctx.round == self._round:
            self._measure((event.ts, event.ctx.round, event.ctx.epoch, data.contribution, slots))

    def _measure(self, measured: _Measured) -> None:
        self._measured.append(measured)
        _, round_, _, contribution, slots = measured
        width = min(map(len, contribution), default=0)
        known = {life.slot for life in self._lives.all}
        highest = max((life.env for life in self._lives.all), default=-1)
        if highest < len(contribution) and known <= set(slots[:width]):
            self._lives.contributions(round_, contribution, slots)

    def _begin_round(self, round_: int) -> None:
        self._round, self._events, self._measured, self._lives = round_, [], [], Lives()

    def stage(self, event: Event) -> None:
        self.reach(event)
        if event.ctx.round != self._round:
            self._close_round()
            self._begin_round(event.ctx.round)
        self._events.append(event)
        self._lives.stage(event)

    def tallies(self) -> Tallies:
        total: Tallies = {}
        for (blueprint, _), tally in self.by_slot().items():
            total[blueprint] = total.get(blueprint, BlueprintTally()) + tally
        return total

    def by_slot(self) -> SlotTallies:
        return _sum(*self._rounds.values(), _count(self._lives.all))

    def copy(self) -> Scoreboard:
        """Independent copy, which can be continued."""
        present = (self._round, list(self._events), list(self._measured), self._lives.copy())
        return Scoreboard(dict(self._rounds), *present, self._is_booting, self.is_whole)

    def _close_round(self) -> None:
        now = _count(self._lives.all)
        if now:
            self._rounds[self._round] = _sum(self._rounds.get(self._round, {}), now)
        if len(self._rounds) > MAX_ROUNDS_APART:
            first, second, *_ = self._rounds
            self._rounds = {
                first: _sum(self._rounds.pop(first), self._rounds.pop(second)),
                **self._rounds,
            }


MAX_ROUNDS_APART = 1000
"""Rounds whose counts are kept apart, so that a resumed boot can repeat them; older ones are added up."""


def _count(lives: list[Life]) -> SlotTallies:
    return _sum(*({_name(life.blueprint, life.slot): _tally(life)} for life in lives if life.blueprint))


@lru_cache(maxsize=4096)
def _name(blueprint: str, slot: str) -> tuple[str, str]:
    """One tuple for all rounds, to save memory."""
    return blueprint, slot


def _tally(life: Life) -> BlueprintTally:
    worth = life.contribution if life.contribution is not None and isfinite(life.contribution) else None
    return BlueprintTally(
        1,
        int(life.end_stage == "FOSSILIZED"),
        int(life.end_stage == "PRUNED"),
        worth or 0.0,
        int(worth is not None),
    )


def _sum(*parts: SlotTallies) -> SlotTallies:
    total: SlotTallies = {}
    for part in parts:
        for name, tally in part.items():
            total[name] = total.get(name, BlueprintTally()) + tally
    return total

"""How the seeds of each blueprint ended: the counts that `esper-daemon query` has of its table `seeds`."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.codec.json_lines import Event
from protocol.journal.seed_lives import Life, Lives


@dataclass(frozen=True)
class BlueprintTally:
    """What became of the seeds of one blueprint, by the events received."""

    germinated: int = 0
    fossilized: int = 0
    pruned: int = 0

    def __add__(self, other: BlueprintTally) -> BlueprintTally:
        return BlueprintTally(
            self.germinated + other.germinated,
            self.fossilized + other.fossilized,
            self.pruned + other.pruned,
        )


Tallies = dict[str, BlueprintTally]


@dataclass
class Scoreboard:
    """Follows the stages of seeds; a boot that resumes repeats rounds, which count once."""

    _rounds: dict[int, Tallies] = field(default_factory=dict)
    """Of the rounds before the present one."""
    _round: int = 0
    _events: list[Event] = field(default_factory=list)
    """The stages of the present round."""
    _lives: Lives = field(default_factory=Lives)
    """Those of the present round."""
    _is_booting: bool = False

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
        self._rounds = {number: tallies for number, tallies in self._rounds.items() if number < round_}
        if self._round < round_:
            self._close_round()
        self._round, self._events, self._lives = round_, [], Lives()
        for old in kept:
            self.stage(old)

    def stage(self, event: Event) -> None:
        """A seed entered a stage."""
        self.reach(event)
        if event.ctx.round != self._round:
            self._close_round()
            self._round, self._events, self._lives = event.ctx.round, [], Lives()
        self._events.append(event)
        self._lives.stage(event)

    def tallies(self) -> Tallies:
        """By blueprint."""
        return _sum(*self._rounds.values(), _count(self._lives.all))

    def copy(self) -> Scoreboard:
        """What later events do not change, and what can be continued."""
        lives = Lives()
        for event in self._events:
            lives.stage(event)
        return Scoreboard(dict(self._rounds), self._round, list(self._events), lives, self._is_booting)

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


def _count(lives: list[Life]) -> Tallies:
    return _sum(
        *(
            {
                life.blueprint: BlueprintTally(
                    1, int(life.end_stage == "FOSSILIZED"), int(life.end_stage == "PRUNED")
                )
            }
            for life in lives
            if life.blueprint is not None
        )
    )


def _sum(*parts: Tallies) -> Tallies:
    total: Tallies = {}
    for part in parts:
        for name, tally in part.items():
            total[name] = total.get(name, BlueprintTally()) + tally
    return total

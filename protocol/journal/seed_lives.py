"""Lives of seeds, from the stages that they entered: for the terminal.

`esper-daemon query` applies the same rules in SQL (`trainer.query.seed_view`).
A seed that a rollback puts back does not begin a new life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import SeedStage
from esper_overwatch.protocol.messages.vocabulary import LIVE, Stage

_LIVE = frozenset(stage.name for stage in LIVE)
_ENDS = frozenset({Stage.FOSSILIZED.name, Stage.PRUNED.name})


@dataclass
class Life:
    """One seed, from germination to its end."""

    env: int
    slot: str
    blueprint: str | None
    round: int
    germinated_epoch: int
    parameters: int
    stage: str
    seed: str | None = None
    """Id in the events."""
    end_epoch: int | None = None
    """When it was fossilized, pruned or undone by a rollback, or when its round ended; None = it goes on."""
    end_stage: str | None = None
    """FOSSILIZED, PRUNED, DORMANT (undone by a rollback), or where it stood at the round's end."""
    contribution: float | None = None
    """The newest measured; of a fossilized seed until the round's end."""


class Lives:
    """Follows `seed.stage`, `epoch` and `round.finished`.

    Attributes:
        all: every life, in the order of birth.
    """

    def __init__(self) -> None:
        self.all: list[Life] = []
        self._planted: dict[tuple[int, str], Life] = {}
        """The newest life of each env and slot in this round."""
        self._round = 0

    def copy(self) -> Lives:
        """An independent copy, which can be continued by further events."""
        twin = Lives()
        twin.all, twin._round = [replace(life) for life in self.all], self._round
        places = {id(old): new for old, new in zip(self.all, twin.all, strict=True)}
        twin._planted = {place: places[id(life)] for place, life in self._planted.items()}
        return twin

    def at(self, env: int, slot: str) -> Life | None:
        """The newest life in a slot in this round, or the one that a rollback brought back."""
        return self._planted.get((env, slot))

    def stage(self, event: Event) -> None:
        """A slot entered a stage."""
        data: SeedStage = event.data
        env, round_, epoch = event.ctx.env, event.ctx.round, event.ctx.epoch
        if env is None:
            return
        self._enter(round_)
        life = self._planted.get((env, data.slot))
        if data.to_stage == "GERMINATED" and data.by != "governor":
            life = Life(
                env=env,
                slot=data.slot,
                blueprint=data.blueprint,
                round=round_,
                germinated_epoch=epoch,
                parameters=data.parameters,
                stage=data.to_stage,
                seed=data.seed,
            )
            self.all.append(life)
            self._planted[env, data.slot] = life
            return
        if life is None:
            return
        if data.by == "governor" and data.blueprint is not None and data.blueprint != life.blueprint:
            life = self._put_back(life, data.blueprint, epoch)
        _move(life, data, epoch)

    def contributions(
        self, round_: int, contribution: Sequence[Sequence[float | None]], slots: Sequence[str]
    ) -> None:
        """An epoch was measured: contribution [N][S]."""
        self._enter(round_)
        for (env, slot), life in self._planted.items():
            if life.end_stage not in (None, "FOSSILIZED"):
                continue
            value = contribution[env][slots.index(slot)]
            if value is not None:
                life.contribution = value

    def round_finished(self, round_: int, epoch: int) -> None:
        """End the lives that still go on, at their stage."""
        for life in self._planted.values():
            if life.round == round_ and life.end_stage is None:
                life.end_stage, life.end_epoch = life.stage, epoch
        self._planted.clear()

    def _enter(self, round_: int) -> None:
        if round_ != self._round:
            self._round = round_
            self._planted.clear()

    def _put_back(self, life: Life, blueprint: str, epoch: int) -> Life:
        """A rollback undid this seed and brought back the one that was in its slot before."""
        life.end_stage, life.end_epoch = "DORMANT", epoch
        for older in reversed(self.all):
            same_place = (older.env, older.slot, older.round) == (life.env, life.slot, life.round)
            if same_place and older is not life and older.blueprint == blueprint:
                self._planted[life.env, life.slot] = older
                return older
        return life


def _move(life: Life, data: SeedStage, epoch: int) -> None:
    if data.to_stage in _LIVE:
        life.stage, life.end_stage, life.end_epoch = data.to_stage, None, None
    elif data.to_stage in _ENDS:
        life.stage = life.end_stage = data.to_stage
        life.end_epoch = epoch
    elif data.by == "governor" and life.end_stage in (None, "FOSSILIZED"):
        life.end_stage, life.end_epoch = "DORMANT", epoch
    if data.contribution is not None:
        life.contribution = data.contribution

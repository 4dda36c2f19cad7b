"""Random histories of seeds as a daemon tells them: with rollbacks, and boots that go back to checkpoints."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

from esper_overwatch.protocol.messages.events import SeedEnded
from tests.trainer import journals
from tests.trainer.journals import SLOTS, Told, at, round_finished, round_started, stage, started

ENVS, EPOCHS = 2, 8
_NEXT = {"GERMINATED": "TRAINING", "TRAINING": "BLENDING", "BLENDING": "HOLDING", "HOLDING": "FOSSILIZED"}


@dataclass
class History:
    """A run of random decisions; `ends` are those of the seeds that count."""

    random: random.Random
    told: list[Told] = field(default_factory=lambda: [started("b0")])
    ends: list[tuple[int, int, SeedEnded]] = field(default_factory=list)
    """Round, env and end of each."""
    round: int = 0
    epoch: int = 0
    boots: int = 1
    seeds: dict[tuple[int, str], list[SeedEnded]] = field(default_factory=dict)
    """Of the present round, by env and slot, the newest last."""

    def play(self, epochs: int) -> None:
        """Go on; a round begins where the last is over."""
        for _ in range(epochs):
            if not self.round or self.epoch == EPOCHS:
                self.round, self.epoch, self.seeds = self.round + 1, 0, {}
                self.told.append(round_started(self.round))
                self.decide()
            self.epoch += 1
            self.measure()
            if self.epoch < EPOCHS:
                self.decide()
            else:
                self.finish()

    def go_back(self, kept: dict[str, Any]) -> None:
        """A boot goes on from a checkpoint, which is what `save` gave."""
        told = self.told
        vars(self).update(copy.deepcopy(kept))
        is_over = not self.round or self.epoch == EPOCHS
        where = (self.round + 1, 0) if is_over else (self.round, self.epoch)
        boot = started(f"b{self.boots}", resumed_round=self.round if is_over else self.round - 1)
        self.told = [*told, boot, journals.rewound(*where, told)]
        self.boots += 1

    def save(self) -> dict[str, Any]:
        return copy.deepcopy({name: getattr(self, name) for name in ("ends", "round", "epoch", "seeds")})

    def decide(self) -> None:
        """Some seeds move, are planted, pruned, or undone and brought back by a rollback."""
        for env in range(ENVS):
            for slot in SLOTS:
                seeds = [seed for seed in self.seeds.get((env, slot), ()) if seed.how != "DORMANT"]
                newest = seeds[-1] if seeds else None
                chance = self.random.random()
                if newest is None or newest.how == "PRUNED":
                    if chance < 0.4:
                        self.plant(env, slot)
                    elif newest is not None and chance < 0.6:
                        self.move(env, newest, "TRAINING", "governor")
                elif chance < 0.1:
                    self.move(env, newest, "DORMANT", "governor")
                elif chance < 0.2 and newest.how != "FOSSILIZED":
                    self.move(env, newest, "PRUNED")
                elif chance < 0.8 and newest.how in _NEXT:
                    self.move(env, newest, _NEXT[newest.how])

    def plant(self, env: int, slot: str) -> None:
        seed = SeedEnded(
            seed=f"r{self.round}e{self.epoch}n{env}{slot}",
            slot=slot,
            blueprint=self.random.choice(["norm", "attention"]),
            parameters=17,
            born=self.epoch,
            ended=self.epoch,
            how="",
        )
        self.seeds.setdefault((env, slot), []).append(seed)
        self.move(env, seed, "GERMINATED")

    def move(self, env: int, seed: SeedEnded, to: str, by: str = "policy") -> None:
        blueprint = None if to == "DORMANT" else seed.blueprint
        where = at(self.round, self.epoch, env)
        self.told.append(stage(where, seed.slot, seed.how, to, by=by, blueprint=blueprint, seed=seed.seed))
        seed.how, seed.ended = to, self.epoch

    def measure(self) -> None:
        measured: list[list[float | None]] = [[None] * len(SLOTS) for _ in range(ENVS)]
        for (env, slot), seeds in self.seeds.items():
            living = [seed for seed in seeds if seed.how not in ("DORMANT", "PRUNED")]
            if living and self.random.random() < 0.5:
                living[-1].contribution = measured[env][SLOTS.index(slot)] = round(self.random.random(), 3)
        self.told.append(journals.epoch(self.round, self.epoch, contribution=measured))

    def finish(self) -> None:
        """The round is over: all its seeds' ends are told."""
        for (env, _), seeds in sorted(self.seeds.items()):
            for seed in copy.deepcopy(seeds):
                seed.ended = self.epoch if seed.how in _NEXT else seed.ended
                self.ends.append((self.round, env, seed))
                self.told.append((seed, at(self.round, self.epoch, env)))
        germinated = sum(map(len, self.seeds.values()))
        self.told.append(round_finished(self.round, self.epoch, germinated=germinated))


def random_history(seed: int, steps: int = 12) -> History:
    """Boots that go on, or back to a checkpoint; one that went back over a round's end ends with a round.

    In the midst of that round the terminal would know of its seeds only what came after.
    """
    history = History(random.Random(seed))
    saved = [history.save()]
    for _ in range(steps):
        history.play(history.random.randint(1, 2 * EPOCHS))
        if history.random.random() < 0.4:
            saved.append(history.save())
        if history.random.random() < 0.4:
            del saved[max(1, len(saved) - history.random.randint(0, 2)) :]
            last = history.round
            history.go_back(saved[-1])
            history.play(EPOCHS - history.epoch if history.round < last else 0)
    return history

"""Plans: what is planted in each slot of each env, whatever the host shows; the rivals of a learned policy.

A constant schedule is one plan for all hosts. With K blueprints and S slots there are (K + 1)**S of them:
each slot gets a seed of one blueprint, as soon as it may, or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.protocol.messages.vocabulary import LIVE, Op, Stage
from esper_overwatch.trainer.policy.actions import ActionSpace, Logits
from esper_overwatch.trainer.policy.baselines import NO_SEED, Rule, random, surest
from esper_overwatch.trainer.policy.observation import BASE_COLUMNS, SLOT_COLUMNS, Observation

MAX_SCHEDULES = 4096
HALVINGS = (0.5, 0.75)
"""Shares of the episode at which a halving plan removes the weaker half of its seeds."""


class TooManySchedules(EsperError):
    """The slots and blueprints make more constant schedules than can be searched."""

    exit_code = 9


@dataclass(frozen=True)
class Plan:
    """Blueprints by slot; `NO_SEED` where nothing is planted.

    Attributes:
        blueprints: indices into the run's.
        halves: whether it drops at each of `HALVINGS` the weaker half of what does not earn its rent.
    """

    blueprints: tuple[int, ...]
    halves: bool = False

    def label(self, kinds: Sequence[str]) -> str:
        """Words for the plan, as `depthwise 0, conv_light 1`."""
        seeds = [f"{kinds[b]} {slot}" for slot, b in enumerate(self.blueprints) if b != NO_SEED]
        return ", ".join(seeds) or "nothing"


def constant_schedules(slots: int, blueprints: int) -> list[Plan]:
    """All of them, the empty one first.

    Raises:
        TooManySchedules: there are more than `MAX_SCHEDULES`.
    """
    if (count := (blueprints + 1) ** slots) > MAX_SCHEDULES:
        raise TooManySchedules(
            f"{blueprints} blueprints in {slots} slots make {count} constant schedules, more than "
            f"{MAX_SCHEDULES}; name fewer seeds.blueprints, or leave out the policies constant and oracle"
        )
    return [Plan(choice) for choice in product(range(NO_SEED, blueprints), repeat=slots)]


def halving_plans(slots: int, blueprints: int) -> list[Plan]:
    """One for each blueprint: a seed of it in every slot, then the weaker halves go."""
    return [Plan((blueprint,) * slots, halves=True) for blueprint in range(blueprints)]


def plan_rule(plans: Sequence[Plan], rent: float, device: torch.device | str = "cpu") -> Rule:
    """The rule of N envs with a plan each.

    Args:
        rent: what a seed costs per multiple of the host's parameters, in accuracy.
    """
    plant_NS = torch.tensor([plan.blueprints for plan in plans], device=device)
    halves_N = torch.tensor([plan.halves for plan in plans], device=device)

    def rule(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
        n, slots = plant_NS.shape
        weak_NS, is_settled_N = _weaker(seen, rent)
        wanted = torch.zeros(n, len(Op), slots, dtype=torch.bool, device=legal.device)
        wanted[:, Op.GERMINATE] = plant_NS != NO_SEED
        if halves_N.any():  # what was dropped is not planted again
            wanted[:, Op.GERMINATE] &= ~(halves_N & (_time(seen) >= HALVINGS[0])).unsqueeze(1)
        wanted[:, Op.ADVANCE] = True
        wanted[:, Op.PRUNE] = weak_NS & halves_N.unsqueeze(1)
        wanted[:, Op.FOSSILIZE] = (is_settled_N | ~halves_N).unsqueeze(1)
        return surest(space, wanted & legal, plant_NS, random(space, legal, blueprint, seen))

    return rule


def _time(seen: Observation) -> Tensor:
    """[N], share of the episode that is over."""
    return seen.base[:, BASE_COLUMNS.names.index("epoch")]


def _weaker(seen: Observation, rent: float) -> tuple[Tensor, Tensor]:
    """Seeds that a halving plan drops now, bool [N, S], and whether all its halvings are over, bool [N]."""

    def column(name: str) -> Tensor:
        return seen.slot[..., SLOT_COLUMNS.names.index(name)]

    time = _time(seen)
    slots = seen.slot.shape[1]
    live = torch.stack([column(stage.name.lower()) > 0 for stage in LIVE]).any(0)
    judged = live & (column(Stage.HOLDING.name.lower()) > 0) & ~column("contribution").isnan()
    surplus = column("contribution") - rent * column("parameters_log").expm1()
    done = sum((time >= share).to(torch.int64) for share in HALVINGS)
    keep = torch.tensor([math.ceil(slots / 2**k) for k in range(len(HALVINGS) + 1)], device=time.device)
    excess = live.sum(1) > keep[torch.as_tensor(done)]
    worst = surplus.masked_fill(~judged, math.inf).argmin(1)
    is_worst = torch.nn.functional.one_hot(worst, slots).bool() & judged
    weak = is_worst & (surplus < 0.0) & excess.unsqueeze(1)
    return weak, (time >= HALVINGS[-1]) & ~weak.any(1)

"""Policies that do not learn, which PPO is compared with under the same random numbers.

Each is a function from what is legal and seen to preferences (logits) of every head, so that its actions are
drawn, masked and logged exactly as the learned ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import ALPHA_TARGETS, LIVE, Op, Stage
from esper_overwatch.trainer.compute.device import filled

from .actions import ActionSpace, Logits
from .observation import BASE_COLUMNS, NUM_HISTORY_EPOCHS, SLOT_COLUMNS, Observation

Rule = Callable[[ActionSpace, Tensor, int, Observation], Logits]
"""(action space, legal bool [N, ops, S], index of the blueprint to plant, what is seen) -> logits."""

SURE_LOGIT = 1e4
"""A lead in logits that leaves the rest a probability of exactly 0."""
NUM_FIXED_SLOTS = 2
"""Slots that the fixed schedule fills, from the first."""
FIXED_BLUEPRINTS = ("conv_light", "attention")
"""Blueprint that it plants: the first of these on offer, otherwise the last kind on offer."""
NO_SEED = -1
"""Stands in a schedule for a slot in which nothing is planted."""
_PRIORITY = (Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE, Op.PRUNE)
"""Priority of ops where a schedule wants several; later ones win."""


def random(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:  # noqa: ARG001
    """Every legal op, then every legal slot for it, then every choice of the other heads alike."""
    n, slots = legal.shape[0], space.sizes[1]
    ops = len(Op)
    others = (torch.zeros(n, slots, size, device=legal.device) for size in space.sizes[2:])
    return (
        torch.zeros(n, ops, device=legal.device),
        torch.zeros(n, ops, slots, device=legal.device),
        *others,
    )


def no_growth(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
    """Always WAIT: what the host learns without seeds."""
    logits = random(space, legal, blueprint, seen)
    logits[0][:, Op.WAIT] = SURE_LOGIT
    return logits


def constant(*plants: int | None) -> Rule:
    """The rule that plants one blueprint in each slot, or none, at once, blends it in and keeps it.

    Args:
        plants: by slot the index of a blueprint, or None; slots beyond them stay empty.
    """

    def rule(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
        padded = [*plants, *[None] * space.sizes[1]][: space.sizes[1]]
        planted = [NO_SEED if plant is None else plant for plant in padded]
        plant_NS = filled(planted, legal.device).expand(len(legal), -1)
        return schedules(plant_NS)(space, legal, blueprint, seen)

    return rule


def schedules(plant_NS: Tensor) -> Rule:
    """The rule of N envs that each do the same with a schedule of their own.

    Args:
        plant_NS: int64 [N, S], by slot the index of a blueprint, or `NO_SEED`.
    """

    def rule(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
        mine_NS = plant_NS != NO_SEED
        wanted = torch.zeros_like(legal)
        wanted[:, Op.GERMINATE] = wanted[:, Op.ADVANCE] = wanted[:, Op.FOSSILIZE] = mine_NS
        return surest(space, wanted & legal, plant_NS, random(space, legal, blueprint, seen))

    return rule


def surest(space: ActionSpace, wanted: Tensor, plant_NS: Tensor, logits: Logits) -> Logits:
    """Logits of the one action that each env wants most, of several slots in the first.

    Args:
        wanted: bool [N, ops, S], of what is legal.
        plant_NS: int64 [N, S], blueprints to plant.
        logits: changed in place.
    """
    logits[0][:] = -SURE_LOGIT
    logits[0][:, Op.WAIT] = 0.0
    for rank, op in enumerate(_PRIORITY, start=1):
        logits[0][:, op] = torch.where(wanted[:, op].any(1), rank * SURE_LOGIT, -SURE_LOGIT)
    slots = plant_NS.shape[1]
    logits[1][:] = -SURE_LOGIT * (torch.arange(slots, device=wanted.device) + slots * ~wanted)
    kinds = torch.arange(space.sizes[2], device=wanted.device)
    logits[2][:] = torch.where(plant_NS.unsqueeze(-1) == kinds, SURE_LOGIT, 0.0)
    for head, choice in ((3, 0), (4, 0), (5, len(ALPHA_TARGETS) - 1), (6, 0), (7, 0)):
        logits[head][..., choice] = SURE_LOGIT
    return logits


def fixed(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
    """Plant `blueprint` in the first slots, blend it in and keep it, each step as soon as it is legal."""
    return constant(*[blueprint] * NUM_FIXED_SLOTS)(space, legal, blueprint, seen)


STANDSTILL_ACCURACY_GAIN = 0.05
"""A gain of validation accuracy below this over the epochs shown counts as standing still."""
LAST_PLANTING_EPISODE_SHARE = 0.75
"""From this share of the episode on nothing is planted: it would not be grown in time."""
STUCK_EPISODE_SHARE = 0.25
"""A seed that trains for this share of the episode and still may not blend never will."""
_HEURISTIC_PRIORITY = (Op.GERMINATE, Op.PRUNE, Op.SET_ALPHA, Op.ADVANCE, Op.FOSSILIZE)
"""Priority of ops where it wants several; later ones win."""


def heuristic(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
    """Act as a person would: grow where the host no longer learns, keep what helps, drop what harms.

    One seed at a time per host, so that its effect can be measured. It is planted when the host's accuracy
    stands still, blended in as soon as its gate lets it, and judged by what it contributes once it is held.
    """
    logits = random(space, legal, blueprint, seen)
    wanted = _wanted(seen) & legal
    logits[0][:] = -SURE_LOGIT
    logits[0][:, Op.WAIT] = 0.0
    for rank, op in enumerate(_HEURISTIC_PRIORITY, start=1):
        logits[0][:, op] = torch.where(wanted[:, op].any(1), rank * SURE_LOGIT, -SURE_LOGIT)
    slots = space.sizes[1]
    order = torch.arange(slots, device=legal.device)
    logits[1][:] = -SURE_LOGIT * (order + slots * ~wanted)
    for head, choice in ((2, blueprint), (3, 0), (4, 0), (5, len(ALPHA_TARGETS) - 1), (6, 1), (7, 0)):
        logits[head][..., choice] = SURE_LOGIT
    return logits


def _wanted(seen: Observation) -> Tensor:
    """bool [N, ops, S]: what it would do to which slot, if it may."""

    def base(name: str) -> Tensor:
        return seen.base[:, BASE_COLUMNS.names.index(name)]

    def slot(name: str) -> Tensor:
        return seen.slot[..., SLOT_COLUMNS.names.index(name)]

    def stage(which: Stage) -> Tensor:
        return slot(which.name.lower()) > 0

    n, slots, _ = seen.slot.shape
    gained = base("val_accuracy") - base(f"val_accuracy_{NUM_HISTORY_EPOCHS + 1}_ago")
    idle = ~torch.stack([stage(which) for which in LIVE]).any(0).any(1)
    plant = (gained < STANDSTILL_ACCURACY_GAIN) & idle & (base("epoch") < LAST_PLANTING_EPISODE_SHARE)
    contribution, held = slot("contribution"), stage(Stage.HOLDING)
    wanted = torch.zeros(n, len(Op), slots, dtype=torch.bool, device=seen.slot.device)
    wanted[:, Op.GERMINATE] = plant.unsqueeze(1)
    wanted[:, Op.ADVANCE] = True
    wanted[:, Op.SET_ALPHA] = stage(Stage.BLENDING)
    stuck = stage(Stage.TRAINING) & (slot("epochs_in_stage") >= STUCK_EPISODE_SHARE)
    wanted[:, Op.PRUNE] = stuck | (held & (contribution < 0))
    wanted[:, Op.FOSSILIZE] = contribution > 0
    return wanted

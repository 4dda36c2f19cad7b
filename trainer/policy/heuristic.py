"""What a person would do by hand: grow where the host no longer learns, keep what helps, drop what harms.

One seed at a time per host, so that what it brings can be told. It is planted when the host's accuracy stands
still, blended in whole as soon as its gate lets it, and judged by what it contributes once it is held.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..seeds.stages import ALPHA_TARGETS, Op, Stage
from .actions import ActionSpace, Logits
from .baselines import SURE, random
from .observation import BASE, HISTORY, SLOT, Observation

STANDSTILL = 0.05
"""A gain of validation accuracy below this over the epochs shown is none to speak of."""
TOO_LATE = 0.75
"""From this share of the episode on nothing is planted: it would not be grown in time."""
STUCK = 0.25
"""A seed that trains for this share of the episode and still may not blend never will."""
_GROWING = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
_PRIORITY = (Op.GERMINATE, Op.PRUNE, Op.SET_ALPHA, Op.ADVANCE, Op.FOSSILIZE)
"""What it does where it wants several; the later ones first."""


def heuristic(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
    """Logits of one sure action per host; see `baselines.Rule`."""
    logits = random(space, legal, blueprint, seen)
    wanted = _wanted(seen) & legal
    logits[0][:] = -SURE
    logits[0][:, Op.WAIT] = 0.0
    for rank, op in enumerate(_PRIORITY, start=1):
        logits[0][:, op] = torch.where(wanted[:, op].any(1), rank * SURE, -SURE)
    slots = space.sizes[1]
    order = torch.arange(slots, device=legal.device)
    logits[1][:] = -SURE * (order + slots * ~wanted)
    for head, choice in ((2, blueprint), (3, 0), (4, 0), (5, len(ALPHA_TARGETS) - 1), (6, 1), (7, 0)):
        logits[head][..., choice] = SURE
    return logits


def _wanted(seen: Observation) -> Tensor:
    """bool [N, ops, S]: what it would do to which slot, if it may."""

    def base(name: str) -> Tensor:
        return seen.base[:, BASE.names.index(name)]

    def slot(name: str) -> Tensor:
        return seen.slot[..., SLOT.names.index(name)]

    def stage(which: Stage) -> Tensor:
        return slot(which.name.lower()) > 0

    n, slots, _ = seen.slot.shape
    gained = base("val_accuracy") - base(f"val_accuracy_{HISTORY + 1}_ago")
    idle = ~torch.stack([stage(which) for which in _GROWING]).any(0).any(1)
    plant = (gained < STANDSTILL) & idle & (base("epoch") < TOO_LATE)
    contribution, held = slot("contribution"), stage(Stage.HOLDING)
    wanted = torch.zeros(n, len(Op), slots, dtype=torch.bool, device=seen.slot.device)
    wanted[:, Op.GERMINATE] = plant.unsqueeze(1)
    wanted[:, Op.ADVANCE] = True
    wanted[:, Op.SET_ALPHA] = stage(Stage.BLENDING)
    stuck = stage(Stage.TRAINING) & (slot("epochs_in_stage") >= STUCK)
    wanted[:, Op.PRUNE] = stuck | (held & (contribution < 0))
    wanted[:, Op.FOSSILIZE] = contribution > 0
    return wanted

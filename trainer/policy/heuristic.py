"""A rule as a person would follow: grow where the host no longer learns, keep what helps, drop what harms.

One seed at a time per host, so that its effect can be measured. It is planted when the host's accuracy stands
still, blended in completely as soon as its gate lets it, and judged by what it contributes once it is held.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import ALPHA_TARGETS, LIVE, Op, Stage

from .actions import ActionSpace, Logits
from .baselines import SURE_LOGIT, random
from .observation import BASE_COLUMNS, NUM_HISTORY_EPOCHS, SLOT_COLUMNS, Observation

STANDSTILL_ACCURACY_GAIN = 0.05
"""A gain of validation accuracy below this over the epochs shown counts as standing still."""
LAST_PLANTING_EPISODE_SHARE = 0.75
"""From this share of the episode on nothing is planted: it would not be grown in time."""
STUCK_EPISODE_SHARE = 0.25
"""A seed that trains for this share of the episode and still may not blend never will."""
_HEURISTIC_PRIORITY = (Op.GERMINATE, Op.PRUNE, Op.SET_ALPHA, Op.ADVANCE, Op.FOSSILIZE)
"""Priority of ops where it wants several; later ones win."""


def heuristic(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
    """Logits of one sure action per host; see `baselines.Rule`."""
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

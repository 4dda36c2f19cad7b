"""Policies that do not learn, which PPO is compared with under the same random numbers.

Each is a function from what is legal and seen to preferences (logits) of every head, so that its actions are
drawn, masked and logged exactly as the learned ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from protocol.messages.vocabulary import ALPHA_TARGETS, Op

from .actions import ActionSpace, Logits
from .observation import Observation

Rule = Callable[[ActionSpace, Tensor, int, Observation], Logits]
"""(action space, legal bool [N, ops, S], index of the blueprint to plant, what is seen) -> logits."""

SURE_LOGIT = 1e4
"""A lead in logits that leaves the rest a probability of exactly 0."""
NUM_FIXED_SLOTS = 2
"""How many slots, from the first, the fixed schedule fills."""
FIXED_BLUEPRINTS = ("conv_light", "attention")
"""What it plants: the first of these that is on offer, otherwise the last kind that is."""
_CONSTANT_ORDER = (Op.GERMINATE, Op.ADVANCE, Op.FOSSILIZE)
"""What a constant schedule does as soon as it may; the later ones first."""


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
        slots = space.sizes[1]
        planted = [*plants, *[None] * slots][:slots]
        chosen = torch.tensor([plant is not None for plant in planted], device=legal.device)
        logits = random(space, legal, blueprint, seen)
        mine = (legal & chosen).any(-1)
        for rank, op in enumerate(_CONSTANT_ORDER, start=1):
            logits[0][:, op] = torch.where(mine[:, op], rank * SURE_LOGIT, -SURE_LOGIT)
        logits[0][:, [Op.SET_ALPHA, Op.PRUNE]] = -SURE_LOGIT
        logits[1][:] = -SURE_LOGIT * (torch.arange(slots, device=legal.device) + slots * ~chosen)
        for slot, plant in enumerate(planted):
            logits[2][:, slot, plant or 0] = SURE_LOGIT
        for head, choice in ((3, 0), (4, 0), (5, len(ALPHA_TARGETS) - 1), (6, 0), (7, 0)):
            logits[head][..., choice] = SURE_LOGIT
        return logits

    return rule


def fixed(space: ActionSpace, legal: Tensor, blueprint: int, seen: Observation) -> Logits:
    """Plant `blueprint` in the first slots, blend it in and keep it, each step as soon as it is legal."""
    return constant(*[blueprint] * NUM_FIXED_SLOTS)(space, legal, blueprint, seen)

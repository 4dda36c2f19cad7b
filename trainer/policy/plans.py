"""Decisions at few epochs about all slots at once: what is planted in each empty slot, or nothing.

Between two decisions hosts train, and what was planted advances and fossilises as soon as its gates let it
(`baselines.schedules`). So an episode is a semi-Markov decision process (Sutton, Precup, Singh, "Between MDPs
and semi-MDPs", 1999): a decision earns the rewards of all epochs up to the next one.

A decision is one joint choice, factored slot by slot from the first on: each slot's distribution depends on
what was chosen for the slots before it. It uses the heads `op` (WAIT or GERMINATE), `slot` and `blueprint` of
the network; the other heads do not matter. Everything here is a pure function of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op

from .actions import Evaluation, Logits
from .baselines import NO_SEED
from .network import ActorCritic, Hidden
from .observation import Observation

BLUEPRINT = HEAD_NAMES.index("blueprint")
_OP = 0


class PlanSpace:
    """Joint choices of what to plant.

    Args:
        epochs: at which is decided, from 0, ascending.
        slots: S.

    Attributes:
        rows: int64 [D], the same epochs.
    """

    def __init__(self, epochs: Sequence[int], slots: int, device: torch.device | str = "cpu") -> None:
        self.epochs, self.slots = tuple(epochs), slots
        self.rows = torch.tensor(self.epochs, device=device)

    @property
    def horizon(self) -> int:
        """Epochs up to the last decision and with it: what comes after needs no network."""
        return self.epochs[-1] + 1

    def log_probs(self, logits: Logits) -> tuple[Tensor, Tensor]:
        """Log-probabilities [..., S, 2] of nothing and of a seed, and of its blueprint [..., S, K].

        Args:
            logits: of the network, which was told the plan: each slot's follow from the slots before.
        """
        by_slot = logits[_OP].unsqueeze(-2) + logits[1].transpose(-1, -2)
        either = torch.stack([by_slot[..., Op.WAIT], by_slot[..., Op.GERMINATE]], -1)
        return either.log_softmax(-1), logits[BLUEPRINT].log_softmax(-1)

    def evaluate(self, logits: Logits, plan: Tensor, free: Tensor) -> Evaluation:
        """Log-probability and entropy of every head for plans; those of a head are summed over the slots.

        Args:
            logits: see `log_probs`.
            plan: int64 [..., S], what is planted by a decision: a blueprint, or `NO_SEED`.
            free: bool [..., S], slots that it is about.
        """
        either, kinds = self.log_probs(logits)
        plants = plan != NO_SEED
        chosen = either.gather(-1, plants.long().unsqueeze(-1)).squeeze(-1)
        kind = kinds.gather(-1, plan.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        by_head = {_OP: (either, chosen, free), BLUEPRINT: (kinds, kind, free & plants)}
        nothing = torch.zeros_like(chosen[..., 0])
        log_probs, entropies, most = ([nothing] * len(HEAD_NAMES) for _ in range(3))
        for head, (log_p, taken, where) in by_head.items():
            log_probs[head] = (taken * where).sum(-1)
            entropies[head] = (-(log_p.exp() * log_p).sum(-1) * where).sum(-1)
            most[head] = math.log(log_p.shape[-1]) * where.sum(-1).to(log_p.dtype)
        max_entropy = torch.stack(most, -1)
        return Evaluation(
            torch.stack(log_probs, -1), torch.stack(entropies, -1), max_entropy > 0, max_entropy
        )


def decide_plan(
    network: ActorCritic,
    space: PlanSpace,
    seen: Observation,
    hidden: Hidden,
    reset: Tensor,
    free: Tensor,
    uniform: Tensor | None,
    waited: Tensor,
    temperature: float = 1.0,
) -> tuple[Tensor, ...]:
    """One decision for N envs: plans [N, S], log-probabilities [N, heads], V(s) [N], `waited` [N, S], h, c,
    the likelihood [N, 1 + ops] of `Decision`.

    Args:
        seen: [N, ...].
        reset: bool [N].
        free: bool [N, S], slots that the decision is about.
        uniform: [N, 2 S], draws; None = a slot is planted as soon as the policy would more probably than not
            have planted it by now, with the most probable blueprint.
        waited: [N, S], probability that nothing was planted so far.
        temperature: divides the logits.
    """
    step = Observation(seen.base.unsqueeze(0), seen.slot.unsqueeze(0), seen.blueprint.unsqueeze(0))
    plan = torch.full_like(free, NO_SEED, dtype=torch.int64)
    waited = torch.where(reset.unsqueeze(-1), 1.0, waited)
    nothing = torch.zeros_like(waited[:, 0])
    for slot in range(space.slots):
        out = network(step, hidden, reset.unsqueeze(0), plan.unsqueeze(0))
        logits = tuple(head[0] / temperature for head in out.logits)
        either, kinds = space.log_probs(logits)
        if slot == 0:
            nothing = (either[..., 0] * free).sum(-1).exp()
        none = either[:, slot, 0].exp()
        if uniform is None:
            left = torch.where(free[:, slot], waited[:, slot] * none, waited[:, slot])
            plants, kind = left < 0.5, kinds[:, slot].argmax(-1)
            waited = torch.cat([waited[:, :slot], left.unsqueeze(1), waited[:, slot + 1 :]], 1)
        else:
            plants = uniform[:, 2 * slot] >= none
            cdf = kinds[:, slot].exp().cumsum(-1)
            kind = (cdf <= uniform[:, 2 * slot + 1, None] * cdf[:, -1:]).sum(-1).clamp_max(cdf.shape[-1] - 1)
        plan[:, slot] = torch.where(plants & free[:, slot], kind, NO_SEED)
    now = space.evaluate(logits, plan, free)
    ops = torch.zeros(len(free), 1 + len(Op), device=free.device, dtype=nothing.dtype)
    ops[:, 0], ops[:, 1 + Op.WAIT], ops[:, 1 + Op.GERMINATE] = (
        now.log_prob.sum(-1).exp(),
        nothing,
        1 - nothing,
    )
    return plan, now.log_prob, network.value(out.value[0]), waited, out.h[0], out.c[0], ops

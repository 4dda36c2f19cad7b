"""Actions as tensors: eight factors, their masks, how they are drawn and how probable they were.

The joint probability is p(op) p(slot | op) prod p(head | slot), over the heads that matter for the op
(`stages.HEADS_OF_OP`); a head that does not matter has index 0 and carries no log-probability, no entropy and
no gradient. Everything here is a pure function of tensors: nothing branches on a tensor's value, so that
`torch.compile(fullgraph=True)` takes it in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    HEAD_NAMES,
    HEADS_OF_OP,
    TEMPOS,
    Curve,
    Op,
    Style,
)
from esper_overwatch.trainer.compute.device import upload

Logits = tuple[Tensor, ...]
"""One tensor a head, in the order of `HEAD_NAMES`: op [..., 6], slot [..., 6, S], others [..., S, size]."""


class Evaluation(NamedTuple):
    """A policy's view of given actions; all [..., heads], 0 where the head does not matter."""

    log_prob: Tensor
    entropy: Tensor
    """Nats."""
    relevant: Tensor
    """bool: the head matters for the op chosen."""
    max_entropy: Tensor
    """Nats, of a uniform choice among what was legal; 0 where there was no choice."""


class ActionSpace:
    """Sizes of the heads and which of them matter for an op.

    Args:
        blueprints: how many kinds of seeds are on offer.
        device: where masks and actions live.

    Attributes:
        sizes: choices per head, in the order of `HEAD_NAMES`.
        relevant_OH: bool [ops, heads], `HEADS_OF_OP` as a table.
    """

    def __init__(self, slots: int, blueprints: int, device: torch.device | str = "cpu") -> None:
        self.sizes: tuple[int, ...] = (
            len(Op),
            slots,
            blueprints,
            len(Style),
            len(TEMPOS),
            len(ALPHA_TARGETS),
            len(ALPHA_SPEEDS),
            len(Curve),
        )
        relevant = [[head == "op" or head in HEADS_OF_OP[op] for head in HEAD_NAMES] for op in Op]
        self.relevant_OH = upload(np.array(relevant), torch.device(device))

    def sample(self, logits: Logits, legal: Tensor, uniform: Tensor) -> Tensor:
        """Draw actions: first the op, then the slot for it, then the others.

        Args:
            logits: see `Logits`.
            legal: bool [..., 6, S].
            uniform: [..., heads] in [0, 1); the same numbers draw the same actions.

        Returns:
            int64 [..., heads] in the order of `HEAD_NAMES`; 0 where the head does not matter.
        """
        op = _draw(logits[0], legal.any(-1), uniform[..., 0])
        return self._complete(op, logits, legal, uniform)

    def act_greedily(self, logits: Logits, legal: Tensor, waited: Tensor) -> tuple[Tensor, Tensor]:
        """Choose what the policy would more probably than not have done by now, without a draw.

        A policy that plants with probability 0.4 in each epoch has planted after two with probability 0.64,
        though WAIT is its most probable op in every single one. So an op is taken as soon as the probability
        of having waited ever since the last one is below 1/2: the most probable op other than WAIT, with the
        most probable slot for it and the most probable choices of the other heads, the first among equals.

        Args:
            waited: [...] probability of WAIT in all steps since the last other op; 1 at the beginning.

        Returns:
            The actions, as of `sample`, and `waited` after them.
        """
        can = legal.any(-1)
        waited = waited * self.op_probabilities(logits, legal)[..., Op.WAIT]
        acts = waited < 0.5
        others = torch.arange(len(Op), device=can.device) != Op.WAIT
        op = torch.where(acts, _masked(logits[0], can & others).argmax(-1), int(Op.WAIT))
        return self._complete(op, logits, legal), waited.masked_fill(acts, 1.0)

    def op_probabilities(self, logits: Logits, legal: Tensor) -> Tensor:
        """Probability of each op, [..., ops]; 0 where it is legal in no slot. Arguments as in `sample`."""
        return _log_probs(logits[0], legal.any(-1)).exp()

    def _complete(
        self,
        op: Tensor,
        logits: Logits,
        legal: Tensor,
        uniform: Tensor | None = None,
    ) -> Tensor:
        """Actions of the ops [...]: drawn, or the most probable ones where nothing is to be drawn."""
        draws: Sequence[Tensor | None] = [None] * len(HEAD_NAMES) if uniform is None else uniform.unbind(-1)
        relevant = self.relevant_OH[op]
        slot = _draw(_at(logits[1], op), self._slot_mask(legal, op, relevant), draws[1])
        picked = [op, slot]
        for head in range(2, len(HEAD_NAMES)):
            scores = _at(logits[head], slot)
            mask = torch.ones_like(scores, dtype=torch.bool)
            picked.append(_draw(scores, mask, draws[head]))
        return torch.stack(picked, -1) * relevant

    def evaluate(self, logits: Logits, actions: Tensor, legal: Tensor) -> Evaluation:
        """Log-probability and entropy of every head for actions int64 [..., heads]."""
        op, slot = actions[..., 0], actions[..., 1]
        relevant = self.relevant_OH[op]
        scores = [logits[0], _at(logits[1], op), *(_at(head, slot) for head in logits[2:])]
        masks = [legal.any(-1), self._slot_mask(legal, op, relevant)]
        log_probs, entropies, counts = [], [], []
        for head, score in enumerate(scores):
            mask = masks[head] if head < len(masks) else torch.ones_like(score, dtype=torch.bool)
            counts.append(mask.sum(-1))
            log_p = _log_probs(score, mask)
            log_probs.append(log_p.gather(-1, actions[..., head, None]).squeeze(-1))
            entropies.append(-(log_p.exp() * log_p).sum(-1))
        return Evaluation(
            log_prob=torch.stack(log_probs, -1).where(relevant, 0.0),
            entropy=torch.stack(entropies, -1).where(relevant, 0.0),
            relevant=relevant,
            max_entropy=torch.stack(counts, -1).where(relevant, 1).to(logits[0].dtype).log(),
        )

    def _slot_mask(self, legal: Tensor, op: Tensor, relevant: Tensor) -> Tensor:
        """Slots legal for the op, bool [..., S]; all of them where the slot does not matter."""
        return _at(legal, op) | ~relevant[..., 1, None]


def _at(table: Tensor, index: Tensor) -> Tensor:
    """Row `index` [...] of each table [..., rows, columns]: [..., columns]."""
    where = index[..., None, None].expand(*index.shape, 1, table.shape[-1])
    return table.gather(-2, where).squeeze(-2)


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Illegal choices get the lowest finite score: probability and gradient exactly 0, never a NaN."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)


def _log_probs(scores: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities [..., choices]; those of illegal choices are the lowest finite number."""
    return _masked(scores, mask).log_softmax(-1)


def _draw(scores: Tensor, mask: Tensor, uniform: Tensor | None) -> Tensor:
    """Inverse transform sampling among the legal choices, or the most probable of them: int64 [...]."""
    if uniform is None:
        return _masked(scores, mask).argmax(-1)
    cdf = _masked(scores, mask).softmax(-1).cumsum(-1)
    index = (cdf <= uniform[..., None] * cdf[..., -1:]).sum(-1)
    last_legal = (mask * torch.arange(mask.shape[-1], device=mask.device)).amax(-1)
    return torch.minimum(index, last_legal)

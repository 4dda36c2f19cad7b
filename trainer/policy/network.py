"""The recurrent actor-critic: observations in, logits of every head and the state's value out.

One encoder is shared by all slots. The LSTM reads the base features beside all encoded slots; the heads that
concern a slot read the LSTM and that slot, so that what is learned of one slot helps with the others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op

from .actions import ActionSpace, Logits
from .observation import BASE_COLUMNS, SLOT_COLUMNS, Observation
from .running_norm import MAX_DEVIATIONS, EpochNorm, RunningNorm

EMBEDDING_WIDTH = 4
"""Width of the learned vectors that stand for a blueprint and for a slot's place."""
SLOT_WIDTH = 32
PRUNE_PRIOR = -2.5
"""Logit that PRUNE starts with; all others start at 0. A policy that prunes as often as it plants hardly ever
sees a seed grow up, so that it has nothing to learn from."""

Hidden = tuple[Tensor, Tensor]
"""LSTM state (h, c), each [N, hidden]."""


class Output(NamedTuple):
    """Outputs of the network for a sequence of T steps."""

    logits: Logits
    value: Tensor
    """[T, N] in normalised units."""
    h: Tensor
    """[T, N, hidden] after each step."""
    c: Tensor


class LSTM(nn.Module):
    """One LSTM layer over a sequence in which the state of single envs may start afresh at any step.

    Initialised orthogonally per gate, forget bias 1 (Jozefowicz, Zaremba, Sutskever, "An empirical
    exploration of recurrent network architectures", 2015).
    """

    def __init__(self, inputs: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = hidden
        self.input = nn.Linear(inputs, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)
        for weight in (self.input.weight, self.recurrent.weight):
            for gate in weight.detach().chunk(4):
                nn.init.orthogonal_(gate, generator=generator)
        nn.init.zeros_(self.input.bias)
        nn.init.ones_(self.input.bias.detach()[hidden : 2 * hidden])

    def forward(self, x: Tensor, hidden: Hidden, reset: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, N, inputs], reset bool [T, N] (begin step t at zero): h and c, each [T, N, hidden]."""
        h, c = hidden
        gates_x = self.input(x)
        keep = (~reset).to(x.dtype).unsqueeze(-1)
        hs, cs = [], []
        for t in range(x.shape[0]):
            h, c = h * keep[t], c * keep[t]
            i, f, g, o = (gates_x[t] + self.recurrent(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hs.append(h)
            cs.append(c)
        return torch.stack(hs), torch.stack(cs)


class ActorCritic(nn.Module):
    """Policy and value function.

    Args:
        space: sizes of the action heads.
        hidden: width of the LSTM.
        seed: of the initial weights; the same seed gives the same weights.
        plans: whether it decides about all slots at once, see `PlanSpace`.
    """

    def __init__(self, space: ActionSpace, hidden: int, seed: int, *, plans: bool = False) -> None:
        super().__init__()
        slots, blueprints = space.sizes[1], space.sizes[2]
        generator = torch.Generator().manual_seed(seed)

        def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
            layer = nn.Linear(inputs, outputs)
            nn.init.orthogonal_(layer.weight, gain, generator)
            nn.init.zeros_(layer.bias)
            return layer

        relu = math.sqrt(2.0)
        self.base_norm = RunningNorm(len(BASE_COLUMNS.measured))
        self.epoch_norm = EpochNorm(len(BASE_COLUMNS.measured))
        self.slot_norm = RunningNorm(len(SLOT_COLUMNS.measured))
        self.value_norm = RunningNorm(1)
        self.blueprint = nn.Parameter(torch.empty(blueprints + 1, EMBEDDING_WIDTH))
        self.place = nn.Parameter(torch.empty(slots, EMBEDDING_WIDTH))
        for embedding in (self.blueprint, self.place):
            nn.init.normal_(embedding, generator=generator)
        self.slot = linear(len(SLOT_COLUMNS.names) + 2 * EMBEDDING_WIDTH, SLOT_WIDTH, relu)
        inputs = len(BASE_COLUMNS.names) + len(BASE_COLUMNS.measured) + slots * SLOT_WIDTH
        self.base = linear(inputs, hidden, relu)
        self.lstm = LSTM(hidden, hidden, generator)
        self.context = linear(hidden + SLOT_WIDTH, SLOT_WIDTH, relu)
        self.planned: Tensor | None = None
        if plans:
            self.planned = nn.Parameter(torch.zeros(blueprints, SLOT_WIDTH))
        op = linear(hidden, space.sizes[0], 0.01)
        op.bias.detach()[Op.PRUNE] = PRUNE_PRIOR
        self.heads = nn.ModuleDict({"op": op})
        self.heads["slot"] = linear(SLOT_WIDTH, space.sizes[0], 0.01)
        for name, size in zip(HEAD_NAMES[2:], space.sizes[2:], strict=True):
            self.heads[name] = linear(SLOT_WIDTH, size, 0.01)
        self.critic = linear(hidden, 1, 1.0)

    def initial(self, n: int) -> Hidden:
        """The zero state of n envs."""
        zero = self.place.new_zeros(n, self.lstm.hidden)
        return zero, zero

    def forward(self, seen: Observation, hidden: Hidden, reset: Tensor, plan: Tensor | None = None) -> Output:
        """Run T steps.

        Args:
            seen: observations [T, N, ...].
            hidden: state before the first step.
            reset: bool [T, N], start this step from a zero state.
            plan: int64 [T, N, S], what a decision plants, see `PlanSpace`; None = no decision of that kind.
        """
        slots = self._slots(seen)
        base = _fill(self.base_norm, seen.base, len(BASE_COLUMNS.measured)).to(slots.dtype)
        unlike_others = self.epoch_norm(*_by_time(seen)).nan_to_num(-1.0).to(slots.dtype)
        x = self.base(torch.cat([base, unlike_others, slots.flatten(-2)], -1)).relu()
        h, c = self.lstm(x, hidden, reset)
        wide = h.unsqueeze(-2).expand(*h.shape[:-1], slots.shape[-2], h.shape[-1])
        context = self.context(torch.cat([wide, slots], -1))
        if plan is not None and self.planned is not None:
            chosen = torch.where(plan.unsqueeze(-1) < 0, 0.0, self.planned[plan.clamp_min(0)])
            context = context + chosen.cumsum(-2) - chosen  # of the slots before
        context = context.relu()
        logits = (
            self.heads["op"](h),
            self.heads["slot"](context).transpose(-1, -2),
            *(self.heads[name](context) for name in HEAD_NAMES[2:]),
        )
        return Output(logits=logits, value=self.critic(h).squeeze(-1), h=h, c=c)

    def value(self, normalised: Tensor) -> Tensor:
        """V(s) in units of the reward, float32."""
        norm = self.value_norm
        return (normalised.double() * norm.std + norm.mean).float()

    @torch.no_grad()
    def rescale_value(self, returns: Tensor) -> None:
        """Let the value normaliser see the returns and adjust the critic so that V(s) stays what it was.

        Formula: PopArt (van Hasselt et al., "Learning values across many orders of magnitude", 2016).
        """
        norm = self.value_norm
        mean, std = norm.mean.clone(), norm.std
        norm.update(returns.unsqueeze(-1))
        weight, bias = self.critic.weight, self.critic.bias
        bias.copy_((std * bias + mean - norm.mean) / norm.std)
        weight.mul_(std / norm.std)

    @torch.no_grad()
    def observed(self, seen: Observation) -> dict[str, Tensor]:
        """Statistics [] of the measured features as the policy saw them, and of what was missing."""
        z = torch.cat(
            [
                self.base_norm(seen.base[..., : len(BASE_COLUMNS.measured)], MAX_DEVIATIONS).flatten(),
                self.slot_norm(seen.slot[..., : len(SLOT_COLUMNS.measured)], MAX_DEVIATIONS).flatten(),
            ]
        )
        known = ~z.isnan()
        count = known.sum().clamp_min(1)
        return {
            "observation_rms": (z.where(known, 0.0).square().sum() / count).sqrt(),
            "observation_clipped": (z.abs() >= MAX_DEVIATIONS).sum() / count,
            "observation_missing": 1.0 - known.double().mean(),
        }

    def learn_normalisers(self, seen: Observation) -> None:
        """Take a rollout's observations into the running statistics."""
        self.base_norm.update(seen.base[..., : len(BASE_COLUMNS.measured)])
        self.epoch_norm.update(*_by_time(seen))
        self.slot_norm.update(seen.slot[..., : len(SLOT_COLUMNS.measured)])

    def _slots(self, seen: Observation) -> Tensor:
        """Encoded slots [T, N, S, SLOT_WIDTH]."""
        features = _fill(self.slot_norm, seen.slot, len(SLOT_COLUMNS.measured)).to(self.place.dtype)
        place = self.place.expand(*features.shape[:-1], EMBEDDING_WIDTH)
        encoded: Tensor = self.slot(torch.cat([features, self.blueprint[seen.blueprint + 1], place], -1))
        return encoded.relu()


def _by_time(seen: Observation) -> tuple[Tensor, Tensor]:
    """Measured base columns, and the share of the episode after which they were."""
    return seen.base[..., : len(BASE_COLUMNS.measured)], seen.base[..., BASE_COLUMNS.names.index("epoch")]


def _fill(norm: RunningNorm, features: Tensor, measured: int) -> Tensor:
    """Normalise the first `measured` columns; -1 where there is nothing."""
    z = norm(features[..., :measured])
    return torch.cat([z.where(~z.isnan(), -1.0), features[..., measured:]], -1)

"""One round's experience, preallocated on the device: [T, N, ...]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ranks import World
from ..seeds.stages import HEAD_NAMES, Op
from .observation import BASE, SLOT, Observation


@dataclass
class Decision:
    """What a policy chose for N envs in one epoch, and what it knew."""

    actions: Tensor
    """int64 [N, heads] in the order of `HEAD_NAMES`; 0 where a head does not matter."""
    observation: Observation
    legal: Tensor
    """bool [N, ops, S]."""
    log_prob: Tensor
    """float32 [N, heads], 0 where a head does not matter."""
    value: Tensor
    """float32 [N], V(s) in units of the reward."""
    reset: Tensor
    """bool [N]: the recurrent state started afresh with this step."""


class Rollout:
    """Storage of a round; `store` writes row t, nothing is ever moved.

    Args:
        t: epochs of an episode.
        n: envs.
        s: slots.
        device: where it lives.
    """

    def __init__(self, t: int, n: int, s: int, device: torch.device | str = "cpu") -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(t, n, *shape, dtype=dtype, device=device)

        heads = len(HEAD_NAMES)
        self.observation = Observation(
            base=zeros(len(BASE.names)),
            slot=zeros(s, len(SLOT.names)),
            blueprint=zeros(s, dtype=torch.int64),
        )
        self.legal = zeros(len(Op), s, dtype=torch.bool)
        self.actions = zeros(heads, dtype=torch.int64)
        self.log_prob = zeros(heads)
        self.value = zeros()
        self.reward = zeros()
        self.reset = zeros(dtype=torch.bool)

    def store(self, t: int, decision: Decision, reward: Tensor) -> None:
        """Keep the decision of epoch t (0-based) and the reward [N] that it earned."""
        for name, row in vars(decision.observation).items():
            getattr(self.observation, name)[t] = row
        for name in ("legal", "actions", "log_prob", "value", "reset"):
            getattr(self, name)[t] = getattr(decision, name)
        self.reward[t] = reward

    def envs(self, index: Tensor) -> Rollout:
        """A copy of the whole sequences of the envs int64 [n]."""
        return self._each(lambda rows: rows[:, index])

    def of_all(self, world: World) -> Rollout:
        """The sequences of all ranks' envs, on every rank."""
        return self if world.size == 1 else self._each(lambda rows: world.gathered(rows, dim=1))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Rollout:
        part = object.__new__(Rollout)
        part.observation = Observation(**{k: change(v) for k, v in vars(self.observation).items()})
        for name in ("legal", "actions", "log_prob", "value", "reward", "reset"):
            setattr(part, name, change(getattr(self, name)))
        return part

    def state_dict(self) -> dict[str, Tensor]:
        flat = {f"observation.{k}": v for k, v in vars(self.observation).items()}
        return flat | {k: v for k, v in vars(self).items() if k != "observation"}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, mine in self.state_dict().items():
            mine.copy_(state[name])

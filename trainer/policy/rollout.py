"""One round's experience, preallocated on the device: [T, N, ...]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Op
from esper_overwatch.trainer.compute.cuda_graphs import copy_all_
from esper_overwatch.trainer.compute.process_group import ProcessGroup

from .observation import BASE_COLUMNS, SLOT_COLUMNS, Observation

_SEEN = "observation."
"""Before the names of an observation's tensors, in a state."""


@dataclass
class Decision:
    """Decisions of a policy for N envs in one epoch, and its inputs."""

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
    plan: Tensor
    """int64 [N, S], the blueprint that a decision about all slots plants in each; `NO_SEED` elsewhere."""
    free: Tensor
    """bool [N, S], the slots that it was about; none where each epoch has an action of its own."""
    likelihood: Tensor | None = None
    """float32 [N, 1 + ops]: probability of the whole action, then of each op; None where a rule decided."""


@dataclass
class Rollout:
    """A round's experience: tensors [T, N, ...]; `store` writes row t, nothing is ever moved."""

    observation: Observation
    legal: Tensor
    """bool [T, N, ops, S]"""
    actions: Tensor
    """int64 [T, N, heads]"""
    log_prob: Tensor
    """[T, N, heads]"""
    value: Tensor
    """[T, N], V(s) in units of the reward."""
    reward: Tensor
    """[T, N]"""
    reset: Tensor
    """bool [T, N], the recurrent state started afresh with this step."""
    plan: Tensor
    """int64 [T, N, S], see `Decision`; `free` likewise."""
    free: Tensor

    @classmethod
    def zeros(cls, t: int, n: int, s: int, device: torch.device | str = "cpu") -> Rollout:
        """Storage for a round of t epochs, n envs and s slots."""

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(t, n, *shape, dtype=dtype, device=device)

        observation = Observation(
            base=zeros(len(BASE_COLUMNS.names)),
            slot=zeros(s, len(SLOT_COLUMNS.names)),
            blueprint=zeros(s, dtype=torch.int64),
        )
        heads = len(HEAD_NAMES)
        return cls(
            observation=observation,
            legal=zeros(len(Op), s, dtype=torch.bool),
            actions=zeros(heads, dtype=torch.int64),
            log_prob=zeros(heads),
            value=zeros(),
            reward=zeros(),
            reset=zeros(dtype=torch.bool),
            plan=zeros(s, dtype=torch.int64),
            free=zeros(s, dtype=torch.bool),
        )

    def store(self, t: int, decision: Decision, reward: Tensor) -> None:
        """Keep the decision of epoch t (0-based) and the reward [N] that it earned."""
        names = "legal", "actions", "log_prob", "value", "reset", "plan", "free"
        rows = vars(decision.observation) | {name: getattr(decision, name) for name in names}
        columns = vars(self.observation) | {name: getattr(self, name) for name in names}
        copy_all_([*(columns[name][t] for name in rows), self.reward[t]], [*rows.values(), reward])

    def envs(self, index: Tensor) -> Rollout:
        """A copy of the complete sequences of the envs int64 [n]."""
        return self._map(lambda rows: rows[:, index])

    def epochs(self, count: int) -> Rollout:
        """The first epochs of all sequences."""
        return self._map(lambda rows: rows[:count])

    def to(self, device: torch.device) -> Rollout:
        """Move to a device."""
        return self._map(lambda rows: rows.to(device))

    @classmethod
    def joined(cls, rollouts: Sequence[Rollout]) -> Rollout:
        """The sequences of several rollouts, all of one length."""
        flat = [rollout.state_dict() for rollout in rollouts]
        return cls.of_state({name: torch.cat([one[name] for one in flat], 1) for name in flat[0]})

    def all_gather(self, group: ProcessGroup, into: Rollout | None = None) -> Rollout:
        """The sequences of all ranks' envs, on every rank; in new memory, or in that of `into`."""
        if group.size == 1:
            return self
        whole = self._map(lambda rows: group.all_gather(rows, dim=1))
        if into is None:
            return whole
        into.load_state_dict(whole.state_dict())
        return into

    def _map(self, change: Callable[[Tensor], Tensor]) -> Rollout:
        parts = {name: change(rows) for name, rows in vars(self).items() if name != "observation"}
        seen = {name: change(rows) for name, rows in vars(self.observation).items()}
        return Rollout(observation=Observation(**seen), **parts)

    def state_dict(self) -> dict[str, Tensor]:
        flat = {f"{_SEEN}{k}": v for k, v in vars(self.observation).items()}
        return flat | {k: v for k, v in vars(self).items() if k != "observation"}

    @classmethod
    def of_state(cls, state: dict[str, Tensor]) -> Rollout:
        """Restore what `state_dict` gave."""
        seen = {name.removeprefix(_SEEN): rows for name, rows in state.items() if name.startswith(_SEEN)}
        parts = {name: rows for name, rows in state.items() if not name.startswith(_SEEN)}
        return cls(observation=Observation(**seen), **parts)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, mine in self.state_dict().items():
            mine.copy_(state[name])

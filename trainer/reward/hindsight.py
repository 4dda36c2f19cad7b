"""Hindsight credit: a seed that helped another to grow and was then removed is paid for that.

Such a scaffold has no contribution at the episode's end, so nothing else pays for it. What it gave to another
seed is the interaction of the two, as last measured while both were blended (`hosts.validation`), where that
is positive. It is owed from the scaffold's removal on, and paid once the other seed is FOSSILIZED, at once
where it is that already. What is owed for a seed that is removed itself lapses; a rollback of the host makes
all that it owes lapse, since the governor may bring the scaffold back.

Unlike the potentials of `modes`, this is paid on top of what an episode is worth and changes which behaviour
is best: seeds planted for this alone earn at most `MAX_HINDSIGHT` in an episode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, Stage
from esper_overwatch.trainer.seeds.table import SlotTable, is_in

MAX_HINDSIGHT = 0.2
"""Most that an env is paid in an episode, in units of the reward."""


class HindsightCredit:
    """Credit that N envs owe to seeds that are gone.

    Args:
        weight: reward for each unit of accuracy.
    """

    def __init__(self, weight: float, n: int, slots: int, device: torch.device | str = "cpu") -> None:
        self._weight = weight
        self._owed = torch.zeros(n, slots, device=device)
        self._paid = torch.zeros(n, device=device)

    def begin_episode(self) -> None:
        """Nothing is owed."""
        self._owed.zero_()
        self._paid.zero_()

    def pay(self, table: SlotTable, removed: Tensor, rolled_back: Tensor) -> Tensor:
        """Credit due after an epoch, float32 [N].

        Args:
            table: slots at its end.
            removed: bool [N, S], seeds that were pruned in it.
            rolled_back: bool [N], the governor undid it.
        """
        helped = table.interaction.nan_to_num(0.0).clamp_min(0.0) * removed.unsqueeze(2)
        owed = torch.where(is_in(table.stage, BLENDED), self._owed + helped.sum(1), 0.0)
        owed = torch.where(rolled_back.unsqueeze(1), 0.0, owed)
        due = torch.where(table.stage == Stage.FOSSILIZED, owed, 0.0)
        paid = torch.minimum(self._weight * due.sum(1), MAX_HINDSIGHT - self._paid)
        self._owed, self._paid = owed - due, self._paid + paid
        return paid

    def state_dict(self) -> dict[str, Tensor]:
        return {"owed": self._owed.clone(), "paid": self._paid.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._owed.copy_(state["owed"])
        self._paid.copy_(state["paid"])

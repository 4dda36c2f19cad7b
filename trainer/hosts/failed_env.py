"""The state of a failed env before it was restored: one row of every tensor, kept for the post-mortem."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from esper_overwatch.trainer.compute.joined_rows import copy_rows_, parted, portions

Rows = Iterable[tuple[str, Tensor, int]]
"""(name, tensor [n, ...], global index of the env in its first row); groups share names."""


_TABLE = "table."
"""Columns of the slot table, where NaN means "not measured"."""


class FailedEnvCapture:
    """Copies one env's rows aside, by masked operations, without reading values back.

    Args:
        device: of the population.
        rows: of its envs, see `record`.
    """

    def __init__(self, device: torch.device, rows: Rows) -> None:
        self._where = torch.full((3,), -1, dtype=torch.int64, device=device)
        """Env, round and epoch of what is kept; -1 = nothing yet."""
        self._rows = {name: torch.zeros_like(tensor[:1]).detach() for name, tensor, _ in rows}

    @torch.no_grad()
    def record(self, envs: Tensor, position: Tensor, rows: Rows) -> None:
        """Keep the rows of the last env of bool [N]; where there is none, the former stays.

        Args:
            position: int64 [2], round and epoch.
        """
        env = torch.where(envs, torch.arange(len(envs), device=envs.device), -1).amax(0, keepdim=True)
        spans: dict[tuple[int, int], dict[str, Tensor]] = {}
        for name, tensor, first in rows:
            spans.setdefault((first, len(tensor)), {})[name] = tensor
        for (first, count), tensors in spans.items():
            local = env - first
            inside, local = (env >= 0) & (local >= 0) & (local < count), local.clamp(0, count - 1)
            names, flat = list(tensors), [tensor.reshape(count, -1) for tensor in tensors.values()]
            for places in portions(flat):
                part = [flat[i] for i in places]
                numbers = part[0] if len(part) == 1 else torch.cat(part, dim=1)
                kept = [self._rows[names[i]] for i in places]
                copy_rows_(kept, parted(numbers.index_select(0, local).view(-1), kept), inside)
        self._where.copy_(torch.where(env >= 0, torch.cat([env, position]), self._where))

    def tensors(self) -> list[Tensor]:
        """Tensors that `record` changes."""
        return [self._where, *self._rows.values()]

    @torch.no_grad()
    def find(self, position: tuple[int, int], rows: Rows) -> dict[str, Any] | None:
        """The env that has non-finite numbers now, else the one kept.

        Returns:
            env, round, epoch (from 0, of the one trained last) and rows (name -> tensor [1, ...] on the CPU).
        """
        rows = list(rows)
        ill = [
            first + int(env)
            for name, tensor, first in rows
            if not name.startswith(_TABLE)
            for env in (~tensor.isfinite()).reshape(len(tensor), tensor[0].numel()).any(1).nonzero()
        ]
        if ill:
            env = min(ill)
            current = {
                name: tensor[env - first : env - first + 1].cpu().clone()
                for name, tensor, first in rows
                if first <= env < first + len(tensor)
            }
            return {"env": env, "round": position[0], "epoch": position[1], "rows": current}
        env, round_, epoch = self._where.tolist()
        if env < 0:
            return None
        kept = {name: row.cpu().clone() for name, row in self._rows.items()}
        return {"env": env, "round": round_, "epoch": epoch, "rows": kept}

"""Measurements of a group's training: loss, gradients, layers and their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, ISOLATED
from esper_overwatch.trainer.compute.execution_plan import Amp
from esper_overwatch.trainer.compute.stacked_ops import Parameters
from esper_overwatch.trainer.config.seed_options import GatesConfig
from esper_overwatch.trainer.seeds.table import SlotTable, is_in

from .gradients import LayerTensors, collected_norms, layer_statistics, norm_and_health, of_activations
from .model import HostModel
from .precision import autocast
from .seed_pool import SeedPool
from .slot_plan import Runs

NUM_PROBED_EXAMPLES = 16
"""Examples of a batch whose activations are measured: each has a map of numbers, enough for statistics."""

Used = Sequence[dict[str, str]]
"""Trained modules by slot, see `SeedPool.trained_modules`."""


@dataclass(frozen=True)
class TrainResult:
    """Measurements of n hosts' training epoch: float32 on the device, gradients of the last step."""

    loss: Tensor
    """[n] mean over the epoch's batches."""
    accuracy: Tensor
    """[n]"""
    host_grad_norm: Tensor
    """[n]"""
    host_health: Tensor
    """[n]"""
    seed_grad_norm: Tensor
    """[n, S]; NaN where no seed learns."""
    seed_health: Tensor
    """[n, S]; NaN where no seed learns."""
    layers: LayerTensors | None
    layers_seconds: float
    """Seconds that this thread spent on them."""
    skipped_steps: Tensor | None = None
    """int64 [n], steps of the epoch that overflowed; None where losses are not scaled."""

    def without_overflows(self, applied: Tensor, skipped: Tensor) -> TrainResult:
        """Replace the gradients of hosts whose last step overflowed, those not in `applied` bool [n], by NaN.

        Args:
            skipped: int64 [n], how many steps of the epoch did.
        """
        nan, missing = float("nan"), ~applied
        return replace(
            self,
            skipped_steps=skipped,
            host_grad_norm=self.host_grad_norm.masked_fill(missing, nan),
            host_health=self.host_health.masked_fill(missing, nan),
            seed_grad_norm=self.seed_grad_norm.masked_fill(missing.unsqueeze(1), nan),
            seed_health=self.seed_health.masked_fill(missing.unsqueeze(1), nan),
        )


class GroupStatistics:
    """Measures the hosts of a group.

    Args:
        table: the group's rows of it.
        gates: which gradients are healthy.
        amp: what forward passes compute in.
    """

    def __init__(
        self, model: HostModel, pool: SeedPool, table: SlotTable, gates: GatesConfig, amp: Amp
    ) -> None:
        self._model, self._pool, self._table, self._gates = model, pool, table, gates
        self._amp: Amp = amp

    def _present(self, used: Used, learners: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Masks bool [n] of the hosts that have a gradient, by tensor name; for the host, then for each slot.

        Args:
            learners: see `SeedPool.learners`.
        """
        everywhere = torch.ones_like(self._table.stage[:, 0], dtype=torch.bool)
        seeds = [
            {t: learners[name] for name in modules for t in self._pool.tensors(name)} for modules in used
        ]
        return [dict.fromkeys(self._model.specs(), everywhere), *seeds]

    def summarise(self, used: Used, gradients: Parameters) -> tuple[Tensor, ...]:
        """Norm and health of the gradients: [n] of the host, then [n, S] of the seeds."""
        learners = self._pool.learners(self._table)
        present = self._present(used, learners)
        tensors = self._pool.unpacked(gradients)
        sizes = [len(part) for part in present]
        masks = torch.stack([mask for part in present for mask in part.values()])
        norms = collected_norms([tensors[name] for part in present for name in part])
        (host_norm, host_health), *seeds = map(
            partial(norm_and_health, gates=self._gates),
            torch.split(norms, sizes),
            torch.split(masks, sizes),
        )
        for slot, (norm, health) in enumerate(seeds):
            for module in self._pool.without_tensors(slot):  # their gradient is 0, and healthy
                empty = learners[self._pool.name(slot, module)] & norm.isnan()
                norm.masked_fill_(empty, 0.0)
                health.masked_fill_(empty, 1.0)
        seed_norm, seed_health = (torch.stack(column, dim=1) for column in zip(*seeds, strict=True))
        return host_norm, host_health, seed_norm, seed_health

    def layers(self, used: Used, gradients: Parameters, weights: Parameters, layers: Tensor) -> LayerTensors:
        """Layer statistics of each tensor that has a gradient, in the envs bool [n]."""
        learners = self._pool.learners(self._table)
        present = {name: mask for part in self._present(used, learners) for name, mask in part.items()}
        tensors = self._pool.unpacked(gradients)
        learnt = self._pool.unpacked({name: weights[name] for name in gradients})
        statistics: LayerTensors = layer_statistics(
            list(present),
            [tensors[name] for name in present],
            [learnt[name] for name in present],
            torch.stack(list(present.values())) & layers,
        )
        return statistics

    @torch.no_grad()
    def outputs(
        self, runs: Runs, weights: Parameters, x: Tensor, layers: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Statistics of what blocks, slots and the head put out: [3, n] by name; bool [A, n], of which hosts.

        A forward pass of its own, of the first examples, with the weights as they are now, so that the
        step that trains is the same program whether layers are measured or not.
        """
        n, found, present = len(self._table.stage), {}, []
        x, weights = x[:NUM_PROBED_EXAMPLES], self._pool.take(runs, weights)

        def measure(name: str, out: Tensor, mask: Tensor) -> None:
            found[name] = of_activations(out)
            present.append(mask)

        with autocast(self._amp, x.device):
            for slot, planned in enumerate(runs):
                x = self._model.train_block(slot, x, weights)
                block, row = divmod(slot, self._model.rows)
                if row == 0:
                    measure(f"block{block}.out", _by_host(x, n), layers)
                if planned:
                    x = self._pool.run(slot, x, n, planned, weights)
                    seeded = is_in(self._table.stage[:, slot], (*ISOLATED, *BLENDED))
                    name = f"{self._pool.slots[slot]}.out"
                    measure(name, _by_host(x, n), layers & seeded)
            measure("head.out", self._model.head(x, weights).transpose(0, 1), layers)
        return found, torch.stack(present)


def _by_host(x: Tensor, n: int) -> Tensor:
    """[B*H*W, n, C] from [B, n*C, H, W]; a view where the memory is channels_last."""
    return x.permute(0, 2, 3, 1).reshape(-1, n, x.shape[1] // n)

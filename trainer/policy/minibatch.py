"""One step of a PPO update by a minibatch: loss, gradients, clip, Adam, and whether the step is taken.

All of it is decided on the device, so that the same operations run as they are or are replayed as a CUDA
graph. A step that is not taken leaves weights, moments and counters alone: Adam skips where found_inf is 1
(as torch.amp.GradScaler has it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs, iter_tensors
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.policy_options import PPOConfig

from .coefficients import Coefficients
from .loss import Loss
from .network import ActorCritic
from .rollout import Rollout

BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-5
"""Adam's: decay rates of the moments as usual, epsilon as CleanRL's PPO has it."""
EPSILON = 1e-6
"""Keeps the clip of a gradient of 0 finite, as in torch.nn.utils.clip_grad_norm_."""
Limits = tuple[float, float]
"""`target_kl` and `max_grad_norm`: a change of one needs a new capture."""


class EarlyStop:
    """What ends an update, and what is counted of its steps; on the device, in fixed buffers.

    Attributes:
        stopped: bool [], whether the policy has moved too far in this update.
        streak: int64 [], non-finite steps in a row up to now.
        longest: int64 [], the longest streak seen in this update.
    """

    def __init__(self, device: torch.device) -> None:
        self.stopped = torch.zeros((), dtype=torch.bool, device=device)
        self.streak, self.longest = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))

    def begin(self) -> None:
        """Begin an update; the streak goes on."""
        self.stopped.zero_()
        self.longest.copy_(self.streak)

    def judge_kl(self, loss: Loss, target_kl: float) -> Tensor:
        """bool []: whether the update goes on.

        Args:
            loss: of the minibatch; where it is not finite, it does not show how far the policy has moved.
            target_kl: in nats; 0 = the update never stops.
        """
        if target_kl > 0:
            self.stopped.logical_or_((loss.approx_kl > target_kl) & loss.total.isfinite())
        return ~self.stopped

    def allow_step(self, finite: Tensor) -> Tensor:
        """bool []: whether a step is taken, whose loss and gradient are finite or not."""
        goes_on = ~self.stopped
        applied = goes_on & finite
        following = torch.where(applied, 0, self.streak + 1)
        self.streak.copy_(torch.where(goes_on, following, self.streak))
        self.longest.copy_(torch.maximum(self.longest, self.streak))
        return applied


class Minibatch:
    """Takes the steps of updates, with what they measure.

    Args:
        network: learns.
        loss: of a batch [T, n] and of the share of the minibatch that it is, see `ppo_loss`.
        process_group: the ranks that compute a minibatch together.
        graphs: replay the step, among ranks what comes before the exchange and what comes after it; None = it
            runs as it is.

    Attributes:
        early_stop: which steps are taken.
        is_replayed: whether a step is made of graphs; then what follows a stop is computed and not applied.
        moments: Adam's means, mean squares and counters, each in the order of the parameters.
    """

    def __init__(
        self,
        network: ActorCritic,
        loss: Callable[[Rollout, Tensor, Tensor, Coefficients, float], Loss],
        process_group: ProcessGroup,
        graphs: CudaGraphs | None,
    ) -> None:
        self._network, self._loss, self._group = network, loss, process_group
        self._parameters: list[Tensor] = list(network.parameters())
        self.moments = [[torch.zeros_like(p.detach()) for p in self._parameters] for _ in range(2)]
        self.moments.append([torch.zeros((), device=network.place.device) for _ in self._parameters])
        self._shapes: dict[str, torch.Size] = {}
        self._sent: list[torch.Size] = []
        self.early_stop = stop = EarlyStop(network.place.device)
        self._saw_stop = False
        self.is_replayed = graphs is not None and graphs.on
        self._program, self._share, self._finish = self._step, self._compute_share, self._finish_step
        if graphs is None:
            return

        def changes() -> list[Tensor]:
            return [*self._parameters, *iter_tensors(self.moments), *vars(stop).values()]

        name = "a minibatch of the policy"
        if process_group.size == 1:
            self._program = graphs.wrap(name, self._step, changes=changes, in_place=(0, 1))
            return
        self._share = graphs.wrap(f"a rank's share of {name}", self._compute_share, in_place=(0,))
        self._finish = graphs.wrap(name, self._finish_step, changes=changes, in_place=(1,))

    def step(
        self,
        rollout: Rollout,
        advantage: Tensor,
        target: Tensor,
        coefficients: Coefficients,
        cfg: PPOConfig,
        rate: Tensor,
        envs: Tensor,
    ) -> Tensor:
        """Take a step by a minibatch, unless the update has stopped; what `unpack` reads.

        Args:
            rollout: of all ranks' envs; in the same memory in each update.
            advantage, target: see `ppo_loss`.
            rate: [] of learning.
            envs: int64 [n] of the minibatch.
        """
        limits = (cfg.target_kl, cfg.max_grad_norm)
        if self._group.size == 1:
            inputs = advantage, target, coefficients
            return self._program(vars(rollout), self.moments, *inputs, limits, rate, envs)
        flat = self._share(vars(rollout), advantage, target, coefficients, envs)
        self._group.all_reduce_(flat)
        return self._finish(flat, self.moments, limits, rate)

    def has_stopped(self) -> bool:
        """True if the update has; the host waits for the step, where it did not wait within it."""
        is_known = self._group.size == 1 and not self.is_replayed
        return self._saw_stop if is_known else bool(self.early_stop.stopped)

    def unpack(self, rows: list[Tensor]) -> dict[str, Tensor]:
        """Statistics of M steps by name, float64 [M, ...]; `ran` is 0 in those after a stop."""
        columns = torch.split(torch.stack(rows), [shape.numel() for shape in self._shapes.values()], dim=1)
        return {
            name: column.reshape(len(rows), *shape)
            for (name, shape), column in zip(self._shapes.items(), columns, strict=True)
        }

    def _step(
        self,
        rollout: dict[str, Any],
        moments: list[list[Tensor]],
        advantage: Tensor,
        target: Tensor,
        coefficients: Coefficients,
        limits: Limits,
        rate: Tensor,
        envs: Tensor,
    ) -> Tensor:
        """A step of one process; see `step`."""
        ran, target_kl = ~self.early_stop.stopped, limits[0]
        loss = self._compute_loss(rollout, advantage, target, coefficients, envs)
        whole = loss._replace(total=loss.total.detach().clone())
        goes_on = self.early_stop.judge_kl(whole, target_kl)
        # A minibatch that stops the update is computed forwards only, where the host can wait for it.
        self._saw_stop = target_kl > 0 and not self.is_replayed and not bool(goes_on)
        if self._saw_stop:
            return self._measure(whole, self._norms(None), ran, torch.zeros_like(ran))
        gradients = torch.autograd.grad(loss.total, self._parameters, materialize_grads=True)
        return self._take(whole, gradients, ran, moments, limits, rate)

    def _compute_share(
        self,
        rollout: dict[str, Any],
        advantage: Tensor,
        target: Tensor,
        coefficients: Coefficients,
        envs: Tensor,
    ) -> Tensor:
        """This rank's part of the row of numbers that `_finish_step` reads."""
        loss = self._compute_loss(rollout, advantage, target, coefficients, envs)
        gradients = torch.autograd.grad(loss.total, self._parameters, materialize_grads=True)
        parts = [*loss.pack(self._group.rank, self._group.size), *gradients]
        self._sent = [part.shape for part in parts]
        return torch.cat([part.reshape(-1) for part in parts])

    def _finish_step(self, flat: Tensor, moments: list[list[Tensor]], limits: Limits, rate: Tensor) -> Tensor:
        """The rest of a step, which all ranks do alike; the numbers are sums over the ranks."""
        ran, count = ~self.early_stop.stopped, len(self._parameters)
        parts = torch.split(flat, [shape.numel() for shape in self._sent])
        sums = [part.view(shape) for part, shape in zip(parts, self._sent, strict=True)]
        whole = Loss.unpack(sums[:-count])
        self.early_stop.judge_kl(whole, limits[0])
        return self._take(whole, sums[-count:], ran, moments, limits, rate)

    def _compute_loss(
        self,
        rollout: dict[str, Any],
        advantage: Tensor,
        target: Tensor,
        coefficients: Coefficients,
        envs: Tensor,
    ) -> Loss:
        """The loss of this rank's share of a minibatch."""
        mine = envs.tensor_split(self._group.size)[self._group.rank]
        part = Rollout(**rollout).envs(mine)
        with torch.enable_grad():
            return self._loss(part, advantage[:, mine], target[:, mine], coefficients, len(mine) / len(envs))

    def _take(
        self,
        whole: Loss,
        gradients: Sequence[Tensor],
        ran: Tensor,
        moments: list[list[Tensor]],
        limits: Limits,
        rate: Tensor,
    ) -> Tensor:
        """Take the step, unless the update has stopped or something is not finite."""
        norms = self._norms(gradients)
        applied = self.early_stop.allow_step(whole.total.isfinite() & norms["grad_norm"].isfinite())
        clip = (limits[1] / (norms["grad_norm"] + EPSILON)).clamp(max=1.0)
        self._apply(moments, gradients, clip, rate, applied)
        return self._measure(whole, norms, ran, applied)

    def _measure(self, whole: Loss, norms: dict[str, Tensor], ran: Tensor, applied: Tensor) -> Tensor:
        """One row of numbers, see `unpack`."""
        goes_on = ~self.early_stop.stopped
        measured = whole.statistics() | {k: v.where(goes_on, torch.nan) for k, v in norms.items()}
        finite = torch.where(goes_on, applied, whole.total.isfinite())
        measured |= {"applied": applied, "finite": finite, "ran": ran}
        self._shapes = {name: value.shape for name, value in measured.items()}
        return torch.cat([value.detach().reshape(-1).double() for value in measured.values()])

    @torch.no_grad()
    def _apply(
        self, moments: list[list[Tensor]], gradients: Any, clip: Tensor, rate: Tensor, applied: Tensor
    ) -> None:
        """Take one step of Adam by gradients that are clipped first."""
        means, squares, counters = moments
        adam(
            self._parameters,
            [gradient * clip for gradient in gradients],
            means,
            squares,
            [],
            counters,
            fused=True,
            found_inf=(~applied).float(),
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate,
            weight_decay=0.0,
            eps=ADAM_EPSILON,
            maximize=False,
        )

    def _norms(self, gradients: Any) -> dict[str, Tensor]:
        """L2 norms: of all gradients, of each head's, of the critic's; NaN where None were computed."""
        network, nothing = self._network, self._network.place.new_full((), torch.nan)

        def norm(layer: nn.Module) -> Tensor:
            mine = {id(parameter) for parameter in layer.parameters()}
            chosen = [g for p, g in zip(self._parameters, gradients, strict=True) if id(p) in mine]
            return torch.nn.utils.get_total_norm(chosen)

        if gradients is None:
            heads = nothing.expand(len(HEAD_NAMES))
            return {"grad_norm": nothing, "head_grad_norm": heads, "critic_grad_norm": nothing}
        return {
            "grad_norm": torch.nn.utils.get_total_norm(gradients),
            "head_grad_norm": torch.stack([norm(network.heads[name]) for name in HEAD_NAMES]),
            "critic_grad_norm": norm(network.critic),
        }

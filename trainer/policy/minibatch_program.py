"""A minibatch of a PPO update as one program whose operations never change, to be replayed as a CUDA graph.

Loss, gradients, clip, Adam and whether its step is taken: all on the device. After a stop steps are computed
and not applied, so that the host need not know of it at once; Adam leaves weights, moments and counters alone
where found_inf is 1 (as torch.amp.GradScaler has it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs, iter_tensors
from esper_overwatch.trainer.config.policy_options import PPOConfig

from .coefficients import Coefficients
from .early_stop import MaskedStop
from .network import ActorCritic
from .rollout import Rollout

EPSILON = 1e-6
"""Keeps the clip of a gradient of 0 finite, as in torch.nn.utils.clip_grad_norm_."""
Limits = tuple[float, str, float]
"""`target_kl`, `kl_per` and `max_grad_norm`: a change of one needs a new capture."""


class MinibatchProgram:
    """One step of an update, with what it measures.

    Args:
        network: learns.
        optimizer: its Adam; moments and counters are used, rates are given.
        loss: of a batch, see `ppo_loss`; its result has `total`, `approx_kl` and `statistics()`.
        graphs: replay it.

    Attributes:
        early_stop: which steps are taken.
    """

    def __init__(
        self,
        network: ActorCritic,
        optimizer: torch.optim.Adam,
        loss: Callable[[Rollout, Tensor, Tensor, Coefficients], Any],
        graphs: CudaGraphs,
    ) -> None:
        self._network, self._optimizer, self._loss = network, optimizer, loss
        self._parameters: list[Tensor] = list(network.parameters())
        self._shapes: dict[str, torch.Size] = {}
        self.early_stop = MaskedStop(network.place.device)
        self._program = graphs.wrap(
            "a minibatch of the policy",
            self._step,
            changes=lambda: [*self._parameters, *iter_tensors(self._moments()), *self.early_stop.tensors()],
            in_place=(0, 1),
        )

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
            rollout: in the same memory in each update, but for `log_prob`.
            advantage, target: see `ppo_loss`.
            rate: [] of learning.
            envs: int64 [n] of the minibatch.
        """
        limits = (cfg.target_kl, cfg.kl_per, cfg.max_grad_norm)
        self._make_moments()
        still = {name: part for name, part in vars(rollout).items() if name != "log_prob"}
        return self._program(
            still, self._moments(), rollout.log_prob, advantage, target, coefficients, limits, rate, envs
        )

    def unpack(self, rows: list[Tensor]) -> dict[str, Tensor]:
        """Statistics of M steps by name, float64 [M, ...]; `ran` is 0 in those after a stop."""
        columns = torch.split(torch.stack(rows), [shape.numel() for shape in self._shapes.values()], dim=1)
        return {
            name: column.reshape(len(rows), *shape)
            for (name, shape), column in zip(self._shapes.items(), columns, strict=True)
        }

    def _step(
        self,
        still: dict[str, Any],
        moments: list[list[Tensor]],
        log_prob: Tensor,
        advantage: Tensor,
        target: Tensor,
        coefficients: Coefficients,
        limits: Limits,
        rate: Tensor,
        envs: Tensor,
    ) -> Tensor:
        batch = Rollout(**still, log_prob=log_prob).envs(envs)
        with torch.enable_grad():
            loss = self._loss(batch, advantage[:, envs], target[:, envs], coefficients)
            gradients = torch.autograd.grad(loss.total, self._parameters)
        target_kl, kl_per, max_norm = limits
        total = torch.nn.utils.get_total_norm(gradients)
        ran = ~self.early_stop.stopped
        finite = loss.total.detach().isfinite()
        goes_on, applied = self.early_stop.judge(
            loss.approx_kl, finite, total.isfinite(), target_kl=target_kl, kl_per=kl_per
        )
        norms = {
            "grad_norm": total,
            "head_grad_norm": torch.stack(
                [self._norm(self._network.heads[name], gradients) for name in HEAD_NAMES]
            ),
            "critic_grad_norm": self._norm(self._network.critic, gradients),
        }
        self._apply(moments, gradients, (max_norm / (total + EPSILON)).clamp(max=1.0), rate, applied)
        measured = loss.statistics() | {k: v.where(goes_on, torch.nan) for k, v in norms.items()}
        measured |= {"applied": applied, "finite": torch.where(goes_on, applied, finite), "ran": ran}
        self._shapes = {name: value.shape for name, value in measured.items()}
        return torch.cat([value.detach().reshape(-1).double() for value in measured.values()])

    @torch.no_grad()
    def _apply(
        self, moments: list[list[Tensor]], gradients: Any, clip: Tensor, rate: Tensor, applied: Tensor
    ) -> None:
        """Take one step of Adam by gradients that are clipped first."""
        options = self._optimizer.param_groups[0]
        beta1, beta2 = options["betas"]
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
            beta1=beta1,
            beta2=beta2,
            lr=rate,
            weight_decay=0.0,
            eps=options["eps"],
            maximize=False,
        )

    def _norm(self, layer: nn.Module, gradients: Any) -> Tensor:
        """L2 norm of a layer's gradient."""
        mine = {id(parameter) for parameter in layer.parameters()}
        return torch.nn.utils.get_total_norm(
            [g for p, g in zip(self._parameters, gradients, strict=True) if id(p) in mine]
        )

    def _moments(self) -> list[list[Tensor]]:
        """Adam's means, mean squares and counters, in the order of the parameters."""
        states = [self._optimizer.state[p] for p in self._parameters]
        return [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")]

    def _make_moments(self) -> None:
        """Let Adam make them, by a step that is not taken."""
        if self._optimizer.state.get(self._parameters[0]):
            return
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer.found_inf = torch.ones((), device=self._network.place.device)  # type: ignore[attr-defined]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

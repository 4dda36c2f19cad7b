"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347) of the recurrent actor-critic.

Complete sequences, minibatched over envs. A step (`minibatch`) decides on the device whether it is taken, and
one transfer at the end brings every statistic. With `target_kl` the host waits for one bit of each minibatch,
between its forward and its backward pass where there is one rank: what comes after the policy has moved too
far is not computed at all. Where steps are replayed as CUDA graphs that bit stays on the device, and the host
looks once a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch import Tensor

from esper_overwatch.protocol.errors import EsperError
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs
from esper_overwatch.trainer.compute.device import exact_float32
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.compute.schedules import schedule_share
from esper_overwatch.trainer.config.policy_options import PPOConfig

from .actions import ActionSpace
from .coefficients import Coefficients
from .feature_statistics import feature_statistics
from .loss import ppo_loss
from .minibatch import Minibatch
from .network import ActorCritic
from .plans import PlanSpace
from .rollout import Rollout
from .update_statistics import EVERY_EPOCH, UpdateStatistics, rollout_statistics, summarise, to_host

MAX_NONFINITE_STEPS = 3
"""Steps in a row with a non-finite loss or gradient after which training ends."""


class PolicyDiverged(EsperError):
    """The policy's loss stayed non-finite; its weights are those of the last finite step."""

    exit_code = 11


class PPO:
    """Improves an actor-critic on rollouts.

    Args:
        network: policy and value function.
        space: its action heads.
        cfg: coefficients.
        seed: of the minibatches' order.
        process_group: the ranks that compute a minibatch together.
        compiler: of the loss; None = uncompiled.
        rounds: over which the learning rate is scheduled; 0 where it is constant.
        graphs: of minibatches and statistics; None = without.
    """

    def __init__(
        self,
        network: ActorCritic,
        space: ActionSpace | PlanSpace,
        cfg: PPOConfig,
        seed: int,
        process_group: ProcessGroup | None = None,
        compiler: Compiler | None = None,
        rounds: int = 0,
        graphs: CudaGraphs | None = None,
    ) -> None:
        self._rounds = rounds
        self.process_group = process_group or ProcessGroup()
        self.network, self.space, self.cfg, self.seed = network, space, cfg, seed
        self._rows = space.rows if isinstance(space, PlanSpace) else EVERY_EPOCH
        self.updates = 0
        self._device = network.place.device
        compiler = compiler or Compiler("off", self._device)
        loss = compiler.wrap(
            "the PPO loss",
            ppo_loss,
            weights=lambda: list(network.parameters()),
            objective=lambda loss: loss.total,
            key=lambda *args: (args[3].shape, args[5].clip, args[6]),
            loops=True,
        )
        self._minibatch = Minibatch(
            network, lambda *args: loss(network, space, *args), self.process_group, graphs
        )
        self._describe, self._learn_inputs = self._describe_experience, network.learn_normalisers
        if graphs is not None and self._minibatch.is_replayed:
            norms = network.base_norm, network.epoch_norm, network.slot_norm
            self._describe = graphs.wrap("the statistics of an update", self._describe, in_place=(0,))
            self._learn_inputs = graphs.wrap(
                "the normalisers of the policy",
                self._learn_inputs,
                changes=lambda: [buffer for norm in norms for buffer in norm.buffers()],
                in_place=(0,),
            )

    def configure(self, **changes: float) -> None:
        """Change coefficients, for the updates to come.

        Args:
            changes: fields of `PPOConfig` by name.
        """
        self.cfg = msgspec.structs.replace(self.cfg, **changes)

    def update(self, rollout: Rollout, advantage: Tensor, returns: Tensor) -> UpdateStatistics:
        """Several passes over a round's experience, then the normalisers learn from it.

        Args:
            rollout: sequences [T, N] of all ranks.
            advantage: [T, N], see `gae`.
            returns: [T, N], what the critic should have predicted, in units of the reward.

        Raises:
            PolicyDiverged: loss or gradient was non-finite `MAX_NONFINITE_STEPS` steps in a row.
        """
        with exact_float32(self._device):
            return self._update(rollout, advantage, returns)

    def _update(self, rollout: Rollout, advantage: Tensor, returns: Tensor) -> UpdateStatistics:
        begun, cfg = time.perf_counter(), self.cfg
        rate = scheduled_rate(cfg, self._rounds, self.updates)
        self.network.rescale_value(returns)
        target = self.network.value_norm(returns.unsqueeze(-1)).squeeze(-1)
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        looked_at = rollout.epochs(self.space.horizon) if isinstance(self.space, PlanSpace) else rollout
        stop = self._minibatch.early_stop
        stop.begin()
        steps = self._take_steps(looked_at, scaled, target, rate)
        self.updates += 1
        overall = self._describe(rollout, advantage, returns, cfg.gamma)
        self._learn_inputs(looked_at.observation)
        overall |= {"stopped": stop.stopped, "nonfinite_in_a_row": stop.longest}
        step, numbers = to_host(steps, overall)
        if (streak := int(numbers.pop("nonfinite_in_a_row"))) >= MAX_NONFINITE_STEPS:
            raise PolicyDiverged(
                f"PPO update {self.updates}: loss or gradient not finite in {streak} steps in a row, weights "
                "kept from the last finite step; lower ppo.learning_rate or resume from an earlier checkpoint"
            )
        stopped = bool(numbers.pop("stopped"))
        kept = max(1, int(step.pop("ran").sum()))  # those after a stop were computed and not applied
        return summarise(
            {name: rows[:kept] for name, rows in step.items()},
            numbers,
            msgspec.structs.replace(cfg, learning_rate=rate),
            self.updates - 1,
            early_stop=stopped,
            seconds=time.perf_counter() - begun,
        )

    def _take_steps(
        self, rollout: Rollout, advantage: Tensor, target: Tensor, learning_rate: float
    ) -> dict[str, Tensor]:
        """Statistics [M, ...] of the steps, up to a stop."""
        cfg, take = self.cfg, self._minibatch
        coefficients = Coefficients.of(cfg, self.updates, self.network.place.dtype, self._device)
        rate = torch.full((), learning_rate, device=self._device)
        every, last = cfg.minibatches if take.is_replayed else 1, cfg.epochs * cfg.minibatches
        rows = []
        for done, envs in enumerate(self._minibatches(target.shape[1]), 1):
            rows.append(take.step(rollout, advantage, target, coefficients, cfg, rate, envs))
            if cfg.target_kl > 0 and done % every == 0 and done < last and take.has_stopped():
                break
        return take.unpack(rows)

    def _minibatches(self, n: int) -> Iterator[Tensor]:
        """The passes' minibatches in turn: random partitions of the n envs, another one each pass."""
        updates = torch.full((), self.updates, dtype=torch.int64, device=self._device)
        passes = torch.arange(self.cfg.epochs, device=self._device)
        keys = rng.key(self.seed, rng.Purpose.MINIBATCH, updates, passes)
        for order in rng.permutation(keys, n):
            yield from order.tensor_split(self.cfg.minibatches)

    @torch.no_grad()
    def _describe_experience(
        self, rollout: Rollout, advantage: Tensor, returns: Tensor, gamma: float
    ) -> dict[str, Tensor]:
        """Describe the update's experience and inputs, before the normalisers learn from them."""
        statistics = rollout_statistics(rollout, advantage, returns, gamma, self._rows)
        network, seen = self.network, rollout.observation
        if isinstance(self.space, PlanSpace):
            seen = rollout.epochs(self.space.horizon).observation
        features = feature_statistics(seen, network.base_norm, network.slot_norm)
        return statistics | network.observed(seen) | {"features": features}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on, beside the network."""
        streak = self._minibatch.early_stop.streak.clone()
        moments = [[tensor.clone() for tensor in part] for part in self._minibatch.moments]
        return {"moments": moments, "updates": self.updates, "streak": streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip(self._minibatch.moments, state["moments"], strict=True):
            for tensor, value in zip(part, saved, strict=True):
                tensor.copy_(value)
        self.updates = state["updates"]
        self._minibatch.early_stop.streak.copy_(state["streak"])


def scheduled_rate(cfg: PPOConfig, rounds: int, updates: int) -> float:
    """The learning rate of the next update: it follows `cfg.schedule` to 0 after the last round.

    Args:
        cfg: with the rate of the first update.
        rounds: of PPO; read by schedules that decay only.
        updates: finished before.
    """
    return cfg.learning_rate * schedule_share(cfg.schedule, warmup=0, total=rounds, done=updates)

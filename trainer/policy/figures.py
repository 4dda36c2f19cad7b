"""What one PPO update has to tell: gathered on the device, brought over in one transfer, told here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protocol.events import PPOUpdate

from ..config import PPOConfig
from ..seeds.stages import HEAD_NAMES, Op
from .rollout import Rollout


@dataclass
class Figures:
    """Statistics of an update, on the host.

    Attributes:
        step: by name, one row per minibatch: [M] or [M, heads].
        whole: by name, of the rollout as a whole: [] or [ops].
    """

    step: dict[str, np.ndarray]
    whole: dict[str, np.ndarray]

    @classmethod
    def of(
        cls,
        steps: list[dict[str, Tensor]],
        rollout: Rollout,
        advantage: Tensor,
        returns: Tensor,
        nonfinite_in_a_row: Tensor,
        observed: dict[str, Tensor],
    ) -> Figures:
        """Bring everything to the host: one transfer, whatever the number of minibatches.

        Args:
            steps: by name, of each minibatch.
            observed: statistics [] of the observations.
        """
        residual, ops = returns - rollout.value, rollout.actions[..., 0]
        whole = {
            "advantage_mean": advantage.mean(),
            "advantage_std": advantage.std(),
            "return_std": returns.std(),
            "explained_variance": 1 - residual.var() / returns.var(),
            "value_nrmse": residual.square().mean().sqrt() / returns.std(),
            "nonfinite_in_a_row": nonfinite_in_a_row,
            "op_fraction": (ops.unsqueeze(-1) == torch.arange(len(Op), device=ops.device))
            .double()
            .mean((0, 1)),
            **observed,
        }
        stacked = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}
        tensors = [*stacked.values(), *whole.values()]
        flat = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors]).cpu().numpy()
        pieces = np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
        arrays = [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
        return cls(
            step=dict(zip(stacked, arrays, strict=False)),
            whole=dict(zip(whole, arrays[len(stacked) :], strict=True)),
        )

    def event(self, cfg: PPOConfig, seconds: float) -> PPOUpdate:
        """The event that tells of this update.

        Losses, clip fraction and gradient norms are means over the steps taken; the KL is that of the last
        pass, after which nothing moved but that pass itself; ratios are the extremes of all steps.
        """
        taken = self.step["taken"].astype(bool)
        finite = self.step["finite"].astype(bool)
        last = np.zeros_like(finite)
        last[-cfg.minibatches :] = True
        heads = {name: _by_head(_mean(self.step[name], taken)) for name in ("head_entropy", "head_grad_norm")}
        chosen = {name: value is not None for name, value in heads["head_entropy"].items()}
        return PPOUpdate(
            seconds=seconds,
            policy_loss=float(_mean(self.step["policy"], taken)),
            value_loss=float(_mean(self.step["value"], taken)),
            entropy=float(_mean(self.step["entropy"], taken)),
            head_entropy=heads["head_entropy"],
            approx_kl=float(_mean(self.step["kl"], last & finite)),
            clip_fraction=float(_mean(self.step["clipped"], taken)),
            ratio_min=float(self.step["ratio_min"].min()),
            ratio_max=float(self.step["ratio_max"].max()),
            head_ratio_max={
                name: float(ratio)
                for name, ratio in zip(HEAD_NAMES, self.step["ratio_max"].max(0), strict=True)
            },
            explained_variance=float(self.whole["explained_variance"]) if self.whole["return_std"] else None,
            grad_norm=float(_mean(self.step["grad_norm"], taken)),
            head_grad_norm={
                name: norm if chosen[name] else None for name, norm in heads["head_grad_norm"].items()
            },
            critic_grad_norm=float(_mean(self.step["critic_grad_norm"], taken)),
            advantage_mean=float(self.whole["advantage_mean"]),
            advantage_std=float(self.whole["advantage_std"]),
            learning_rate=cfg.learning_rate,
            entropy_coefficient=cfg.entropy_coefficient,
            epochs=int(taken.reshape(cfg.epochs, -1).any(1).sum()),
            minibatches=int(taken.sum()),
            early_stop=bool((finite & ~taken).any()),
            skipped_nonfinite=int((~finite).sum()),
            op_fraction={
                op.name: float(share) for op, share in zip(Op, self.whole["op_fraction"], strict=True)
            },
            lstm_h_rms=float(self.step["h_rms"][0]),
            lstm_c_rms=float(self.step["c_rms"][0]),
            return_std=float(self.whole["return_std"]),
            observation_rms=float(self.whole["observation_rms"]),
            observation_clipped=float(self.whole["observation_clipped"]),
            observation_missing=float(self.whole["observation_missing"]),
            value_nrmse=float(self.whole["value_nrmse"]) if self.whole["return_std"] else None,
        )


def _mean(rows: np.ndarray, which: np.ndarray) -> Any:
    """Mean over the rows of `which`, without the NaN of "there was nothing"; NaN where none is left."""
    kept = rows[which]
    known = ~np.isnan(kept)
    with np.errstate(invalid="ignore"):
        return np.where(known, kept, 0.0).sum(0) / known.sum(0)


def _by_head(values: np.ndarray) -> dict[str, float | None]:
    return {
        name: None if math.isnan(value) else float(value)
        for name, value in zip(HEAD_NAMES, values, strict=True)
    }

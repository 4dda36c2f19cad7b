"""Statistics of one PPO update: gathered on the device, moved in one transfer, summed up on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Op
from esper_overwatch.trainer.config.policy_options import PPOConfig

from .coefficients import entropy_coefficient
from .rollout import Rollout

Floats = NDArray[np.float64]
Arrays = dict[str, Floats]


EVERY_EPOCH = slice(None)


@dataclass(frozen=True, kw_only=True)
class UpdateStatistics:
    """The statistics of one update; NaN where there was nothing to measure.

    Losses, clip fractions, entropies and gradient norms are means over the steps that were applied, or over
    what was computed where none was to be; ratios
    are the extremes of all that was computed: those steps, and the minibatch that stopped the update. Arrays
    by head are in the order of `HEAD_NAMES`.
    """

    seconds: float
    policy_loss: float
    value_loss: float
    entropy: float
    """Over that of uniform choices among what was legal, 0..1."""
    head_entropy: Floats
    """[heads] the same; NaN where the head never had a choice."""
    approx_kl: float
    """Mean of the last pass, up to the minibatch that stopped the update."""
    clip_fraction: float
    head_clip_fraction: Floats
    """[heads]; NaN where the head never mattered."""
    ratio_min: float
    ratio_max: float
    head_ratio_max: Floats
    """[heads]"""
    explained_variance: float
    """Meaningless where `return_std` is 0, like `value_nrmse`."""
    explained_variance_within: float
    """Share of the returns' variance between envs at the same epoch; NaN where they do not differ."""
    grad_norm: float
    head_grad_norm: Floats
    """[heads]; NaN where the head never had a choice."""
    critic_grad_norm: float
    advantage_mean: float
    advantage_std: float
    learning_rate: float
    entropy_coefficient: float
    """In force in this update, like the next one."""
    value_coefficient: float
    epochs: int
    """Passes in which at least one step was applied."""
    minibatches: int
    """Steps that were applied."""
    early_stop: bool
    skipped_nonfinite: int
    """Steps whose loss or gradient was not finite."""
    op_fraction: Floats
    """[ops] share of each op among the actions of the rollout."""
    lstm_h_rms: float
    lstm_c_rms: float
    return_std: float
    observation_rms: float
    observation_clipped: float
    observation_missing: float
    features: Floats
    """[groups, statistics] of the observations, see `feature_statistics`."""
    value_nrmse: float
    """Root mean square of the critic's error over the standard deviation of the returns."""
    target_kl: float = 0.0
    """Beyond which the update was to stop; 0 = never."""


def rollout_statistics(
    rollout: Rollout, advantage: Tensor, returns: Tensor, gamma: float, rows: Tensor | slice = EVERY_EPOCH
) -> dict[str, Tensor]:
    """Statistics of the experience of an update: [], but `op_fraction` [ops].

    Args:
        rollout: [T, N].
        advantage, returns: [D, N], of the decisions.
        rows: int64 [D], their epochs.
    """
    value, ops = rollout.value[rows], rollout.actions[..., 0]
    residual = returns - value
    codes = torch.arange(len(Op), device=ops.device)
    return {
        "advantage_mean": advantage.mean(),
        "advantage_std": advantage.std(),
        "return_std": returns.std(),
        "explained_variance": 1 - residual.var() / returns.var(),
        "explained_variance_within": explained_within(rollout.reward, value, gamma, rows),
        "value_nrmse": residual.square().mean().sqrt() / returns.std(),
        "op_fraction": (ops.unsqueeze(-1) == codes).double().mean((0, 1)),
    }


def explained_within(
    reward_TN: Tensor, value_DN: Tensor, gamma: float, rows: Tensor | slice = EVERY_EPOCH
) -> Tensor:
    """1 - sum of (G - V - mean)^2 / sum of (G - mean)^2, means being over the envs at each step; [].

    G are the discounted rewards that followed, without the critic's own estimates in them. What a critic
    that knows nothing but the time explains is 0. NaN where all envs get the same.
    """
    steps = torch.arange(len(reward_TN), device=reward_TN.device)
    ahead = steps - steps.unsqueeze(1)
    weights = torch.where(ahead >= 0, torch.pow(gamma, ahead.clamp_min(0).double()), 0.0)
    following = (weights @ reward_TN.double())[rows]
    error, spread = ((x - x.mean(1, keepdim=True)).square().sum() for x in (following - value_DN, following))
    return (1 - error / spread).where(spread > 1e-12 * following.square().sum(), torch.nan)


def to_host(stacked: dict[str, Tensor], overall: dict[str, Tensor]) -> tuple[Arrays, Arrays]:
    """Bring all statistics to the host: one transfer, whatever the number of minibatches.

    Args:
        stacked: by name [M, ...], of M minibatches.
        overall: by name, of the update as one.

    Returns:
        The same as float64 arrays.
    """
    tensors = [*stacked.values(), *overall.values()]
    flat = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors]).cpu().numpy()
    pieces = np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    arrays = [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
    return (
        dict(zip(stacked, arrays, strict=False)),
        dict(zip(overall, arrays[len(stacked) :], strict=True)),
    )


def summarise(
    step: Arrays,
    overall: Arrays,
    cfg: PPOConfig,
    updates: int,
    *,
    early_stop: bool,
    seconds: float,
) -> UpdateStatistics:
    """The statistics of an update from those of its steps and its rollout, see `to_host`.

    Args:
        cfg: with the learning rate that was used.
        updates: finished before.
        early_stop: whether the update ended before its last step.
        seconds: of the update.
    """
    applied, finite = step["applied"].astype(bool), step["finite"].astype(bool)
    shown = applied if applied.any() else finite
    passes = np.arange(len(applied)) // cfg.minibatches
    head_entropy = _mean(step["head_entropy"], shown)
    numbers = {name: float(value) for name, value in overall.items() if not value.shape}
    return UpdateStatistics(
        policy_loss=float(_mean(step["policy_loss"], shown)),
        value_loss=float(_mean(step["value_loss"], shown)),
        entropy=float(_mean(step["entropy"], shown)),
        head_entropy=head_entropy,
        approx_kl=float(_mean(step["approx_kl"], (passes == passes[-1]) & finite)),
        clip_fraction=float(_mean(step["clip_fraction"], shown)),
        head_clip_fraction=_mean(step["head_clip_fraction"], shown),
        ratio_min=float(step["ratio_min"].min()),
        ratio_max=float(step["ratio_max"].max()),
        head_ratio_max=step["ratio_max"].max(0),
        grad_norm=float(_mean(step["grad_norm"], shown)),
        head_grad_norm=np.where(np.isnan(head_entropy), np.nan, _mean(step["head_grad_norm"], shown)),
        critic_grad_norm=float(_mean(step["critic_grad_norm"], shown)),
        learning_rate=cfg.learning_rate,
        entropy_coefficient=entropy_coefficient(cfg, updates),
        value_coefficient=cfg.value_coefficient,
        target_kl=cfg.target_kl,
        epochs=len(np.unique(passes[applied])),
        minibatches=int(applied.sum()),
        skipped_nonfinite=int((~finite).sum()),
        op_fraction=overall["op_fraction"],
        features=overall["features"],
        lstm_h_rms=float(step["hidden_rms"][0]),
        lstm_c_rms=float(step["cell_rms"][0]),
        **numbers,
        early_stop=early_stop,
        seconds=seconds,
    )


def _mean(rows: Floats, which: NDArray[np.bool_]) -> Any:
    """Mean over the rows of `which`, without the NaN of "there was nothing"; NaN where none is left."""
    kept = rows[which]
    known = ~np.isnan(kept)
    with np.errstate(invalid="ignore"):
        return np.where(known, kept, 0.0).sum(0) / known.sum(0)

"""Events of an epoch and of a round, made from host frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import (
    EpochFinished,
    GovernorRollback,
    GovernorVeto,
    LayerStatistics,
    RoundFinished,
    ShapleyComputed,
)
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, HEADS_OF_OP, Op
from esper_overwatch.trainer.governor import RollbackReason, VetoReason
from esper_overwatch.trainer.hosts.gradients import ACTIVATIONS

from .collection.levels import LevelCode
from .columns import LAYER_STATISTICS, EpochGradients, nullable, shortest
from .episode_totals import EpisodeTotals
from .stall_counters import StallCounts
from .timer import PhaseTimes
from .transfer import HostFrame

_OP_HAS_HEAD = {name: np.array([name == "op" or name in HEADS_OF_OP[op] for op in Op]) for name in HEAD_NAMES}
"""Ops for which a head matters, bool by op, by head."""


def epoch_event(
    frame: HostFrame,
    decision: HostFrame,
    gradients: EpochGradients,
    episode_return: NDArray[np.float64],
    times: PhaseTimes,
    actions: list[str],
) -> EpochFinished:
    """The `epoch` event.

    Args:
        frame: the columns of `outcome_columns`.
        decision: the columns of `decision_columns` that the epoch was trained by.
        gradients: of the frame.
        episode_return: [N] rewards of the episode so far.
        times: of the epoch.
        actions: [N] ids of the actions.
    """
    op, blueprint, contribution = decision["op"], decision["blueprint"], frame["contribution"]
    return EpochFinished(
        seconds=times.seconds,
        train_loss=shortest(frame["train_loss"]),
        train_accuracy=shortest(frame["train_accuracy"]),
        val_loss=shortest(frame["val_loss"]),
        val_accuracy=shortest(frame["val_accuracy"]),
        reward=shortest(frame["reward"]),
        episode_return=episode_return.tolist(),
        op=op.tolist(),
        action_slot=nullable(decision["slot"], ~_OP_HAS_HEAD["slot"][op]),
        host_grad_norm=_float32(gradients.host_norm, np.isnan(gradients.host_health)),
        host_health=_float32(gradients.host_health, np.isnan(gradients.host_health)),
        stage=decision["stage"].tolist(),
        epochs_in_stage=decision["epochs_in_stage"].tolist(),
        alpha=shortest(decision["alpha"]),
        blueprint=nullable(blueprint, blueprint < 0),
        contribution=nullable(contribution, np.isnan(contribution)),
        seed_grad_norm=_float32(gradients.seed_norm, np.isnan(gradients.seed_health)),
        seed_health=_float32(gradients.seed_health, np.isnan(gradients.seed_health)),
        seed_grad_ratio=_float32(gradients.ratio, np.isnan(gradients.ratio)),
        parameters=frame["parameters"].tolist(),
        reward_components={
            name.removeprefix("reward."): shortest(frame[name])
            for name in frame
            if name.startswith("reward.")
        },
        phases=times.phases,
        cpu_phases=times.cpu_phases,
        gpu_phases=times.gpu_phases,
        gpu_round=times.gpu_epoch[0] if times.gpu_epoch else None,
        gpu_epoch=times.gpu_epoch[1] if times.gpu_epoch else None,
        loss_scale=frame["amp.loss_scale"].tolist() if "amp.loss_scale" in frame else [],
        skipped_steps=frame["amp.skipped_steps"].tolist() if "amp.skipped_steps" in frame else [],
        action=actions,
        **_choices(decision),
        **_judgement(decision),
    )


def _float32(values: NDArray[np.float64], absent: NDArray[np.bool_]) -> list[Any]:
    """Nested lists of what a device measured in float32, with None where `absent` is true."""
    return nullable(values.astype(np.float32), absent)


def _judgement(decision: HostFrame) -> dict[str, Any]:
    """Probabilities and values of the network; empty where it did not decide, or a checkpoint lacks them."""
    if "policy.value" not in decision:
        return {}
    likelihood = decision["policy.likelihood"]
    if np.isnan(likelihood).all():  # between two decisions, see `policy.decision_epochs`
        return {}
    return {
        "probability": shortest(likelihood[:, 0]),
        "op_probability": shortest(likelihood[:, 1:]),
        "value": shortest(decision["policy.value"]),
    }


def _choices(decision: HostFrame) -> dict[str, Any]:
    """Fields of the policy's view, its choice and the gates asked; empty where a checkpoint lacks them."""
    if not {"heads", "executed", "gates.asked", "interaction.last"} <= decision.keys():
        return {}
    op = decision["op"]
    interaction = decision["interaction.last"]
    return {
        "interaction": nullable(interaction, np.isnan(interaction)),
        "heads": {
            name: nullable(decision["heads"][:, i], ~_OP_HAS_HEAD[name][op])
            for i, name in enumerate(HEAD_NAMES)
        },
        "executed": decision["executed"].tolist(),
        "gates_asked": decision["gates.asked"].tolist(),
        "gates_passed": decision["gates.passed"].tolist(),
    }


def layers_event(frame: HostFrame, names: Sequence[str], level_N: NDArray[np.int8]) -> LayerStatistics:
    """A layer that did not run in an env (no such seed) has no zero fraction: it is not measured."""
    asked = level_N >= LevelCode.DEBUG
    absent = ~asked[None, :] | np.isnan(frame["layer.zero_fraction"])
    silent = ~asked[None, :] | np.isnan(frame["layer.activation_zero_fraction"])
    columns = {name: frame[f"layer.{name}"] for name in LAYER_STATISTICS}
    columns["nonfinite"] = np.where(absent, 0, columns["nonfinite"]).astype(np.int64)
    return LayerStatistics(
        layer=list(names),
        **{
            name: nullable(values, silent if name in ACTIVATIONS else absent)
            for name, values in columns.items()
        },
    )


def rollback_events(frame: HostFrame) -> Iterator[tuple[int, GovernorRollback]]:
    """Each env that the governor has rolled back, and the event of it."""
    ill = frame.get("governor.ill", np.zeros(0))
    for env in np.flatnonzero(ill).tolist():
        rollback = GovernorRollback(
            reason=RollbackReason(int(ill[env])).name.lower(),
            loss=float(frame["train_loss"][env]),
            restored_epoch=int(frame["governor.restored"][env]),
            penalty=-float(frame["reward.rollback"][env]),
        )
        yield env, rollback


def veto_events(
    frame: HostFrame, before: HostFrame, slots: Sequence[str]
) -> Iterator[tuple[int, GovernorVeto]]:
    """Yield each new veto of the governor since the last decision, with its env.

    Args:
        frame: the columns of `decision_columns`.
        before: those of the decision before.
        slots: names of the S slots.
    """
    if "governor.veto" not in frame:
        return
    vetoes = frame["governor.veto"]
    new = vetoes * (vetoes != before.get("governor.veto", np.zeros_like(vetoes)))
    for env, slot in np.argwhere(new.any(axis=1)).tolist():
        for reason in np.unique(new[env, :, slot]).tolist():
            if reason:
                ops = [Op(op).name for op in np.flatnonzero(new[env, :, slot] == reason).tolist()]
                yield env, GovernorVeto(slot=slots[slot], ops=ops, reason=VetoReason(reason).name.lower())


def shapley_event(columns: Mapping[str, NDArray[Any]]) -> ShapleyComputed:
    """Event of the worth of the round's seeds, see `shapley_columns`."""
    value, half_width = columns["shapley.value"], columns["shapley.half_width"]
    interaction = columns["shapley.interaction"]
    return ShapleyComputed(
        value=nullable(value, np.isnan(value)),
        half_width=nullable(half_width, np.isnan(half_width)),
        coalitions=columns["shapley.coalitions"].tolist(),
        interaction=nullable(interaction, np.isnan(interaction)),
    )


def round_event(
    outcome: HostFrame,
    episodes: EpisodeTotals,
    test_accuracy: NDArray[np.floating[Any]] | None,
    *,
    epochs: int,
    times: PhaseTimes,
    stalls: StallCounts,
    seeds: Mapping[str, int],
) -> RoundFinished:
    """The `round.finished` event.

    Args:
        outcome: of the last epoch, `val_accuracy` and `parameters` [N].
        episodes: what their rewards add up to.
        test_accuracy: [N], where it was measured.
        epochs: finished in the round, by this boot.
        times: seconds that it took them; its phases are those since the last epoch.
        stalls: counted over the round.
        seeds: of the round by outcome.
    """
    accuracy, parameters = outcome["val_accuracy"], outcome["parameters"]
    episode_return, final = episodes.total_return, shortest(accuracy)
    p10, p50, p90 = np.percentile(episode_return, (10, 50, 90)).tolist()
    return RoundFinished(
        seconds=times.seconds,
        env_epochs_per_second=len(episode_return) * epochs / times.seconds,
        return_mean=float(episode_return.mean()),
        return_p10=p10,
        return_p50=p50,
        return_p90=p90,
        accuracy_mean=float(accuracy.mean()),
        accuracy_best=final[int(accuracy.argmax())],
        best_env=int(accuracy.argmax()),
        test_accuracy_mean=None if test_accuracy is None else float(test_accuracy.mean()),
        test_accuracy_best=None if test_accuracy is None else float(test_accuracy.max()),
        parameters_mean=float(parameters.mean()),
        final_accuracy=final,
        final_return=episode_return.tolist(),
        phases=times.phases,
        reward_components=episodes.mean_components(),
        germinated=sum(seeds.values()),
        fossilized=seeds.get("FOSSILIZED", 0),
        pruned=seeds.get("PRUNED", 0),
        **asdict(stalls),
    )

"""Columns of an epoch for the host: the decision, and its outcome.

The loop transfers them together or apart, as it needs; the names do not collide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.hosts.gradients import ACTIVATIONS
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.reward.shapley import ShapleyValues
from esper_overwatch.trainer.seeds.table import SlotTable

from .collection.levels import LevelCode
from .transfer import HostFrame

STAGE_OF_GATE: dict[str, Stage] = {
    "G0": Stage.DORMANT,
    "G1": Stage.GERMINATED,
    "G2": Stage.TRAINING,
    "G3": Stage.BLENDING,
    "G5": Stage.HOLDING,
}
"""The stage in which a seed asks to pass each gate."""
LAYER_STATISTICS = (
    "grad_norm",
    "grad_rms",
    "grad_max",
    "zero_fraction",
    "nonfinite",
    "weight_norm",
    *ACTIVATIONS,
)
"""Columns [L, N] of the `layers` event."""


def decision_columns(
    *,
    stage_before: Tensor,
    stage_advanced: Tensor,
    table: SlotTable,
    actions: Tensor,
    gates: Mapping[str, Mapping[str, Tensor]],
    executed: Tensor | None = None,
    vetoes: Tensor | None = None,
    judgement: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Columns of the decision for the coming epoch.

    Args:
        stage_before: [N, S] stages in the epoch before.
        stage_advanced: [N, S] stages after the automatic transitions, before the actions.
        table: the slot table after the actions.
        actions: int64 [N, heads], op first, slot second.
        gates: for each gate its checks, bool [N, S], as they were when it was asked: by the automatic
            transitions, or by the policy's mask.
        executed: [N], which of the actions were; None where that was reported already.
        vetoes: [N, ops, S], what the governor forbids and why; None likewise.
        judgement: `Decision.likelihood` [N, 1 + ops] and V(s) [N]; None where no network decided.
    """
    columns = {
        "stage.before": stage_before,
        "stage.advanced": stage_advanced,
        "stage": table.stage,
        "blueprint": table.blueprint,
        "alpha": table.alpha,
        "epochs_in_stage": table.epochs_in_stage,
        "contribution.last": table.contribution,
        "interaction.last": table.interaction_sum(),
        "op": actions[:, 0],
        "slot": actions[:, 1],
        "heads": actions,
    }
    if executed is not None:
        columns["executed"] = executed
    if vetoes is not None:
        columns["governor.veto"] = vetoes
    if judgement is not None:
        columns["policy.likelihood"], columns["policy.value"] = judgement
    for gate in STAGE_OF_GATE:
        for check, passed in gates[gate].items():
            columns[f"gate.{gate}.{check}"] = passed
    return columns


def outcome_columns(
    *,
    measurements: Measurements,
    reward: Tensor,
    components: Mapping[str, Tensor],
    layers: Mapping[str, Tensor] | None = None,
    scaling: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Columns of an epoch's outcome.

    Args:
        measurements: as measured.
        components: [N] each; they sum to the reward.
        layers: per-layer statistics [L, N] by the names of `LAYER_STATISTICS`, where they were asked for.
        scaling: [N] `loss_scale` and `skipped_steps`, with fp16.
    """
    columns = {f.name: getattr(measurements, f.name) for f in fields(measurements)}
    columns["reward"] = reward
    columns |= {f"reward.{name}": value for name, value in components.items()}
    columns |= {f"amp.{name}": values for name, values in (scaling or {}).items()}
    columns |= {f"layer.{name}": (layers or {})[name] for name in LAYER_STATISTICS if layers}
    return columns


def final_columns(table: SlotTable, parameters: Tensor) -> dict[str, Tensor]:
    """Columns of an episode's end, after the governor has restored what failed in its last epoch.

    Args:
        parameters: [N], of the hosts as they are tested.
    """
    return {
        "final.stage": table.stage,
        "final.blueprint": table.blueprint,
        "final.alpha": table.alpha,
        "final.contribution.last": table.contribution,
        "final.parameters": parameters,
    }


def shapley_columns(shares: ShapleyValues) -> dict[str, NDArray[Any]]:
    """Columns of the seeds' worth at a round's end."""
    return {f"shapley.{name}": values for name, values in vars(shares).items()}


def shortest(values: NDArray[np.float32]) -> list[Any]:
    """Nested lists of the shortest decimals that are these numbers; as doubles they would have twice the
    digits. Numbers that are not finite stay as they are.
    """
    lists: list[Any] = orjson.loads(
        orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    )
    lost = ~np.isfinite(values)
    if not lost.any():
        return lists
    boxed = np.array(lists, dtype=object)
    boxed[lost] = values[lost]
    return boxed.tolist()  # type: ignore[no-any-return]


def nullable(values: NDArray[Any], absent: NDArray[np.bool_]) -> list[Any]:
    """Nested lists for an event, with None where `absent` is true; NaN elsewhere stays NaN."""
    if values.dtype == np.float32:
        values = np.array(shortest(values), dtype=object)
    if not absent.any():
        return values.tolist()  # type: ignore[no-any-return]
    boxed = values.astype(object)
    boxed[absent] = None
    return boxed.tolist()  # type: ignore[no-any-return]


@dataclass
class EpochGradients:
    """Norms and health in float64, NaN where there is no gradient, or the env's level leaves them out."""

    host_norm: NDArray[np.float64]
    host_health: NDArray[np.float64]
    seed_norm: NDArray[np.float64]
    seed_health: NDArray[np.float64]
    measured: bool

    @classmethod
    def of(
        cls, frame: HostFrame, level_N: NDArray[np.int8], tensorless_NS: NDArray[np.bool_]
    ) -> EpochGradients:
        """Select the gradients from an epoch's outcome.

        Args:
            frame: the columns of `outcome_columns`.
            level_N: levels of the envs.
            tensorless_NS: seeds of blueprints without tensors. Gates count the gradient that they do not have
                as 0 and healthy; it has not vanished. The gate of style GATE is a tensor of theirs.
        """
        wanted = level_N >= LevelCode.NORMAL

        def column(name: str) -> NDArray[np.float64]:
            values = frame[name].astype(np.float64)
            values[~wanted] = np.nan
            return values

        seed_norm, seed_health = column("seed_grad_norm"), column("seed_health")
        nothing = tensorless_NS & (seed_norm == 0.0) & (seed_health == 1.0)
        seed_norm[nothing] = seed_health[nothing] = np.nan
        return cls(
            column("host_grad_norm"), column("host_health"), seed_norm, seed_health, bool(wanted.any())
        )

    @property
    def ratio(self) -> NDArray[np.float64]:
        """[N, S] seed over host; NaN where either is not measured, not finite, or the host has none."""
        host = np.where(np.isfinite(self.host_norm) & (self.host_norm > 0.0), self.host_norm, np.nan)
        return np.where(np.isfinite(self.seed_norm), self.seed_norm, np.nan) / host[:, None]

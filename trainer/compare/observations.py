"""The control of a comparison: who decides by what a host shows loses where another host's is shown."""

from __future__ import annotations

import torch
from torch import Tensor

from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.observation import (
    BASE_COLUMNS,
    SLOT_COLUMNS,
    Observation,
    ObservationBuilder,
)
from esper_overwatch.trainer.seeds.table import SlotTable


def shuffle_measurements(seen: Observation, order: Tensor) -> Observation:
    """Env i sees what env `order[i]` measured: losses, accuracies, norms, contributions, and what is missing.

    What it has done stays its own: the stages of its slots, its growth, the time. Else a constant would lose,
    too, as it would act on slots that it does not have.

    Args:
        order: int64 [N].
    """
    base, slot = 2 * len(BASE_COLUMNS.measured), 2 * len(SLOT_COLUMNS.measured)
    return Observation(
        base=torch.cat([seen.base[order, :base], seen.base[:, base:]], -1),
        slot=torch.cat([seen.slot[order, ..., :slot], seen.slot[..., slot:]], -1),
        blueprint=seen.blueprint,
    )


class ShuffledMeasurements(ObservationBuilder):
    """Builds what another builder does, shuffled.

    Args:
        inner: the builder; its state is this one's.
        order: as `shuffle_measurements` has it.
    """

    def __init__(self, inner: ObservationBuilder, order: Tensor) -> None:
        self._inner, self._order = inner, order

    def begin_episode(self) -> None:
        self._inner.begin_episode()

    def record_action(self, op: Tensor, slot: Tensor) -> None:
        self._inner.record_action(op, slot)

    def observe(self, table: SlotTable, measurements: Measurements, epoch: int) -> Observation:
        return shuffle_measurements(self._inner.observe(table, measurements, epoch), self._order)

    def state_dict(self) -> dict[str, Tensor]:
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._inner.load_state_dict(state)

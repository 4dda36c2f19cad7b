"""Changes of a policy's observations by the controls of a comparison.

`ShuffledMeasurements` gives each env what another one measured: a policy that decides by what its host shows
loses by it, a constant does not. `RevealedTasks` shows each env's task, to see what not knowing it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.observation import (
    BASE_COLUMNS,
    SLOT_COLUMNS,
    Observation,
    ObservationBuilder,
)
from esper_overwatch.trainer.seeds.table import SlotTable


class ChangedObservations(ObservationBuilder):
    """Builds what another builder does, changed.

    Args:
        inner: the builder; its state is this one's.
        change: of each observation.
    """

    def __init__(self, inner: ObservationBuilder, change: Callable[[Observation], Observation]) -> None:
        self._inner, self._change = inner, change

    def begin_episode(self) -> None:
        self._inner.begin_episode()

    def record_action(self, op: Tensor, slot: Tensor) -> None:
        self._inner.record_action(op, slot)

    def observe(self, table: SlotTable, measurements: Measurements, epoch: int) -> Observation:
        return self._change(self._inner.observe(table, measurements, epoch))

    def state_dict(self) -> dict[str, Tensor]:
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._inner.load_state_dict(state)


def shuffle_measurements(order: Tensor) -> Callable[[Observation], Observation]:
    """Env i sees what env `order[i]` measured: losses, accuracies, norms, contributions, and what is missing.

    What it has done stays its own: the stages of its slots, its growth, the time. Else a constant would lose,
    too, as it would act on slots that it does not have.

    Args:
        order: int64 [N].
    """
    base, slot = 2 * len(BASE_COLUMNS.measured), 2 * len(SLOT_COLUMNS.measured)

    def change(seen: Observation) -> Observation:
        return Observation(
            base=torch.cat([seen.base[order, :base], seen.base[:, base:]], -1),
            slot=torch.cat([seen.slot[order, ..., :slot], seen.slot[..., slot:]], -1),
            blueprint=seen.blueprint,
        )

    return change


def reveal_tasks(tasks: Callable[[], Tensor]) -> Callable[[Observation], Observation]:
    """Each env's task as a one-hot code, in the columns that say what was not measured.

    These hold 1 before an episode's first epoch and 0 from then on, which the column `epoch` says as well: so
    nothing is lost, and the network is the same.

    Args:
        tasks: int64 [N] of the present episode, from 0.
    """
    first = len(BASE_COLUMNS.measured)

    def change(seen: Observation) -> Observation:
        base = seen.base.clone()
        codes = torch.arange(first, device=base.device)
        base[:, first : 2 * first] = (tasks().to(base.device).unsqueeze(1) == codes).to(base.dtype)
        return Observation(base=base, slot=seen.slot, blueprint=seen.blueprint)

    return change


class RevealedTasks(ChangedObservations):
    """See `reveal_tasks`.

    Args:
        population: whose envs draw the tasks.
        task_of_dataset: the task's number of each dataset of the mixture.
    """

    def __init__(
        self, inner: ObservationBuilder, population: Population, task_of_dataset: Sequence[int]
    ) -> None:
        numbers = torch.tensor(task_of_dataset)
        super().__init__(inner, reveal_tasks(lambda: numbers[population.tasks.places]))

"""What the policy sees of N hosts: a versioned layout of base and slot features.

Features come in two kinds. *Measured* ones (losses, accuracies, norms ...) may be absent: absent is NaN here,
each has a flag column for that, and the network normalises what is there and puts -1 elsewhere.
*Plain* ones (one-hot codes, fractions of the episode) are always there, within about -1..1, and stay as they
are. The blueprint of a slot travels as an index: the network learns an embedding of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from protocol.messages.vocabulary import Op, Stage
from trainer.measurements import Measurements
from trainer.seeds.table import SlotTable

LAYOUT_VERSION = 1
"""Changes whenever a column does; a checkpoint of another version is refused."""

NUM_HISTORY_EPOCHS = 3
"""Epochs before the last one whose validation loss and accuracy are shown."""

_BASE_MEASURED = (
    "train_loss",
    "val_loss",
    "train_accuracy",
    "val_accuracy",
    "host_grad_norm_log10",
    "host_health",
    *(f"val_loss_{k + 2}_ago" for k in range(NUM_HISTORY_EPOCHS)),
    *(f"val_accuracy_{k + 2}_ago" for k in range(NUM_HISTORY_EPOCHS)),
)
_BASE_PLAIN = (
    "epoch",
    "growth_log",
    *(f"share_{stage.name.lower()}" for stage in Stage),
    *(f"last_{op.name.lower()}" for op in Op),
    "last_executed",
)
_SLOT_MEASURED = (
    "contribution",
    "contribution_velocity",
    "accuracy_since_stage",
    "grad_norm_log10",
    "health",
)
_SLOT_PLAIN = (
    *(stage.name.lower() for stage in Stage),
    "alpha",
    "alpha_target",
    "moving",
    "ramp_left",
    "pruning",
    "contribution_age",
    "epochs_in_stage",
    "age",
    "embargo",
)


@dataclass(frozen=True)
class FeatureColumns:
    """Names of a feature matrix: measured ones, their "not measured" flags, plain ones."""

    measured: tuple[str, ...]
    plain: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.measured, *(f"no_{name}" for name in self.measured), *self.plain)


BASE_COLUMNS = FeatureColumns(_BASE_MEASURED, _BASE_PLAIN)
SLOT_COLUMNS = FeatureColumns(_SLOT_MEASURED, _SLOT_PLAIN)


@dataclass
class Observation:
    """What the policy sees of N envs (in a rollout, of T x N)."""

    base: Tensor
    """float32 [N, len(BASE_COLUMNS.names)]; NaN where not measured."""
    slot: Tensor
    """float32 [N, S, len(SLOT_COLUMNS.names)]; NaN where not measured."""
    blueprint: Tensor
    """int64 [N, S]; -1 where there is no seed."""


class ObservationBuilder:
    """Builds observations and keeps the short history that they show.

    Args:
        n: envs.
        s: slots.
        episode_epochs: T, the unit of every duration.
        host_parameters: of a host without seeds, the unit of growth.
        device: where the tensors live.
    """

    def __init__(
        self, n: int, s: int, *, episode_epochs: int, host_parameters: int, device: torch.device | str = "cpu"
    ) -> None:
        self._shape = (n, s)
        self._epochs = episode_epochs
        self._host_parameters = host_parameters
        self._device = device
        self.begin_episode()

    def begin_episode(self) -> None:
        """Forget the last episode."""
        n, _ = self._shape
        self._past = torch.full((2 * NUM_HISTORY_EPOCHS, n), math.nan, device=self._device)
        self._recent = torch.full((2, n), math.nan, device=self._device)
        self._last_op = torch.full((n,), -1, dtype=torch.int64, device=self._device)
        self._executed = torch.zeros(n, device=self._device)

    def record_executed(self, op: Tensor, executed: Tensor) -> None:
        """Remember the ops int64 [N] just taken and whether each took effect, bool [N]."""
        self._last_op, self._executed = op, executed.float()

    def observe(self, table: SlotTable, measurements: Measurements, epoch: int) -> Observation:
        """See the state in which the action of `epoch` (0-based) is chosen; once per epoch."""
        self._past = torch.cat(
            [
                self._recent[:1],
                self._past[: NUM_HISTORY_EPOCHS - 1],
                self._recent[1:],
                self._past[NUM_HISTORY_EPOCHS:-1],
            ]
        )
        self._recent = torch.stack([_loss(measurements.val_loss), measurements.val_accuracy])
        return Observation(
            base=_features(self._base_measured(measurements), self._base_plain(table, measurements, epoch)),
            slot=_features(_slot_measured(table, measurements), self._slot_plain(table)),
            blueprint=table.blueprint.clone(),
        )

    def _base_measured(self, measurements: Measurements) -> Tensor:
        now = [
            _loss(measurements.train_loss),
            _loss(measurements.val_loss),
            measurements.train_accuracy,
            measurements.val_accuracy,
            _log10(measurements.host_grad_norm),
            measurements.host_health,
        ]
        return torch.cat([torch.stack(now), self._past]).T

    def _base_plain(self, table: SlotTable, measurements: Measurements, epoch: int) -> Tensor:
        shares = _codes(table.stage, len(Stage)).mean(1)
        last_op = _codes(self._last_op, len(Op))
        growth = (measurements.parameters / self._host_parameters).clamp(min=1).log()
        time = torch.full_like(growth, epoch / self._epochs)
        return torch.cat([torch.stack([time, growth], 1), shares, last_op, self._executed[:, None]], 1)

    def _slot_plain(self, table: SlotTable) -> Tensor:
        moving = table.ramp_epochs > 0
        columns = [
            table.alpha,
            table.alpha_target,
            moving,
            (table.ramp_epochs - table.ramp_done) / self._epochs,
            table.pruning,
            table.contribution_age / self._epochs,
            table.epochs_in_stage / self._epochs,
            table.age / self._epochs,
            table.embargo / self._epochs,
        ]
        return torch.cat([_codes(table.stage, len(Stage)), torch.stack([c.float() for c in columns], -1)], -1)

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "past": self._past,
            "recent": self._recent,
            "last_op": self._last_op,
            "executed": self._executed,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._past, self._recent = state["past"].to(self._device), state["recent"].to(self._device)
        self._last_op, self._executed = state["last_op"].to(self._device), state["executed"].to(self._device)


def _slot_measured(table: SlotTable, measurements: Measurements) -> Tensor:
    since_stage = measurements.val_accuracy[:, None] - table.accuracy_at_stage
    columns = [
        table.contribution,
        table.contribution_velocity,
        since_stage,
        _log10(measurements.seed_grad_norm),
        measurements.seed_health,
    ]
    return torch.stack(columns, -1)


def _features(measured: Tensor, plain: Tensor) -> Tensor:
    return torch.cat([measured, measured.isnan().float(), plain], -1)


def _codes(index: Tensor, count: int) -> Tensor:
    """One-hot [..., count]; -1 is all zeros. (`one_hot` of torch reads its input back to check it.)"""
    return (index.unsqueeze(-1) == torch.arange(count, device=index.device)).float()


def _loss(loss: Tensor) -> Tensor:
    """Losses above 100 count as 100."""
    return loss.clamp(max=100.0).log1p()


def _log10(norm: Tensor) -> Tensor:
    """Logarithm of a norm; 0 counts as 1e-8, infinity as 1e8."""
    return norm.clamp(1e-8, 1e8).log10()

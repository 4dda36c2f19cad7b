"""The policy's observation of N hosts: a versioned layout of base and slot features.

docs/reference/training.md lists the columns, which come in two kinds. *Measured* ones (losses, accuracies,
norms ...) may be absent: absent is NaN here, each has a flag column for that, and the network normalises
what is there and puts -1 elsewhere. *Plain* ones (one-hot codes, fractions of the episode) are always there,
within about -1..1, and stay as they are. The blueprint of a slot travels as an index: the network learns an
embedding of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import Curve, Op, Stage, Style
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.seeds.table import SlotTable

LAYOUT_VERSION = 4
"""Changes whenever a column does; a checkpoint of another version is refused."""

NUM_HISTORY_EPOCHS = 3
"""Epochs before the last one whose validation loss and accuracy are shown."""

_BASE_MEASURED = (
    "train_loss",
    "val_loss",
    "train_accuracy",
    "val_accuracy",
    "val_accuracy_best",
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
)
_SLOT_MEASURED = (
    "contribution",
    "contribution_velocity",
    "accuracy_since_stage",
    "grad_norm_log10",
    "health",
    "interaction",
    "interaction_best",
    "new_weights_norm_log10",
    "new_weights_agreement",
    "new_kernel_norm_log10",
    "new_kernel_agreement",
)
_SLOT_PLAIN = (
    *(stage.name.lower() for stage in Stage),
    *(f"style_{style.name.lower()}" for style in Style),
    *(f"curve_{curve.name.lower()}" for curve in Curve),
    "tempo",
    "alpha",
    "alpha_target",
    "moving",
    "ramp_left",
    "pruning",
    "contribution_age",
    "epochs_in_stage",
    "age",
    "embargo",
    "parameters_log",
    "last_action",
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

_SHOWN = [i for i, name in enumerate(BASE_COLUMNS.measured) if not name.endswith("_ago")]
"""Columns that distinguish hosts, epoch by epoch; the others repeat earlier epochs."""
_GROWTH = [i for i, name in enumerate(SLOT_COLUMNS.measured) if name.startswith("new_")]
"""Columns of `hosts.growth_score`."""


@dataclass
class Observation:
    """An observation of N envs (in a rollout, of T x N)."""

    base: Tensor
    """float32 [N, len(BASE_COLUMNS.names)]; NaN where not measured."""
    slot: Tensor
    """float32 [N, S, len(SLOT_COLUMNS.names)]; NaN where not measured."""
    blueprint: Tensor
    """int64 [N, S]; -1 where there is no seed."""

    def at(self, epoch: int) -> Observation:
        """Select one epoch of a rollout's observations [T, N, ...]."""
        return Observation(self.base[epoch], self.slot[epoch], self.blueprint[epoch])

    @classmethod
    def stack(cls, seen: Sequence[Observation]) -> Observation:
        """Observations [T, N, ...] of T epochs."""
        parts = zip(*((one.base, one.slot, one.blueprint) for one in seen), strict=True)
        return cls(*(torch.stack(part) for part in parts))

    def host_features(self) -> Tensor:
        """What hosts have shown so far, [N, F] in host memory, of observations [T, N, ...].

        Losses, accuracies and gradients of every epoch, and what slots would gain, as measured last.
        """
        epochs = self.base[..., _SHOWN].nan_to_num(0.0).transpose(0, 1).flatten(1)
        growth = self.slot[-1][..., _GROWTH].nan_to_num(0.0).flatten(1)
        return torch.cat([epochs, growth], 1).cpu()


class ObservationBuilder:
    """Builds observations and keeps the short history that they show.

    Args:
        s: slots.
        episode_epochs: T, the unit of every duration.
        host_parameters: of a host without seeds, the unit of growth.
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
        self._best = torch.full((n,), math.nan, device=self._device)
        self._last_op = torch.full((n,), -1, dtype=torch.int64, device=self._device)
        self._last_slot = torch.full((n,), -1, dtype=torch.int64, device=self._device)

    def record_action(self, op: Tensor, slot: Tensor) -> None:
        """Remember the ops just taken and their slots, int64 [N]; WAIT has none, whatever is given."""
        self._last_op, self._last_slot = op, torch.where(op == Op.WAIT, -1, slot)

    def observe(self, table: SlotTable, measurements: Measurements, epoch: int) -> Observation:
        """Observe the state in which the action of `epoch` (0-based) is chosen; once per epoch."""
        self._past = torch.cat(
            [
                self._recent[:1],
                self._past[: NUM_HISTORY_EPOCHS - 1],
                self._recent[1:],
                self._past[NUM_HISTORY_EPOCHS:-1],
            ]
        )
        self._recent = torch.stack([_loss(measurements.val_loss), measurements.val_accuracy])
        self._best = torch.fmax(self._best, measurements.val_accuracy)
        return Observation(
            base=_features(self._base_measured(measurements), self._base_plain(table, measurements, epoch)),
            slot=_features(_slot_measured(table, measurements), self._slot_plain(table, measurements)),
            blueprint=table.blueprint.clone(),
        )

    def _base_measured(self, measurements: Measurements) -> Tensor:
        now = [
            _loss(measurements.train_loss),
            _loss(measurements.val_loss),
            measurements.train_accuracy,
            measurements.val_accuracy,
            self._best,
            _log10(measurements.host_grad_norm),
            measurements.host_health,
        ]
        return torch.cat([torch.stack(now), self._past]).T

    def _base_plain(self, table: SlotTable, measurements: Measurements, epoch: int) -> Tensor:
        shares = _codes(table.stage, len(Stage)).mean(1)
        last_op = _codes(self._last_op, len(Op))
        growth = (measurements.parameters / self._host_parameters).clamp(min=1).log()
        time = torch.full_like(growth, epoch / self._epochs)
        return torch.cat([torch.stack([time, growth], 1), shares, last_op], 1)

    def _slot_plain(self, table: SlotTable, measurements: Measurements) -> Tensor:
        moving, occupied = table.ramp_epochs > 0, table.blueprint >= 0
        slots = torch.arange(table.shape[1], device=table.stage.device)
        codes = [
            _codes(table.stage, len(Stage)),
            _codes(torch.where(occupied, table.style, -1), len(Style)),
            _codes(torch.where(moving, table.curve, -1), len(Curve)),
        ]
        columns = [
            table.tempo / self._epochs,
            table.alpha,
            table.alpha_target,
            moving,
            (table.ramp_epochs - table.ramp_done) / self._epochs,
            table.pruning,
            table.contribution_age / self._epochs,
            table.epochs_in_stage / self._epochs,
            table.age / self._epochs,
            table.embargo / self._epochs,
            (measurements.seed_parameters / self._host_parameters).log1p(),
            slots == self._last_slot.unsqueeze(1),
        ]
        return torch.cat([*codes, torch.stack([c.float() for c in columns], -1)], -1)

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "past": self._past,
            "recent": self._recent,
            "best": self._best,
            "last_op": self._last_op,
            "last_slot": self._last_slot,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        state = {name: tensor.to(self._device) for name, tensor in state.items()}
        self._past, self._recent, self._best = state["past"], state["recent"], state["best"]
        self._last_op, self._last_slot = state["last_op"], state["last_slot"]


def _slot_measured(table: SlotTable, measurements: Measurements) -> Tensor:
    since_stage = measurements.val_accuracy[:, None] - table.accuracy_at_stage
    total = table.interaction_sum()
    largest = table.known_interactions().nan_to_num(-math.inf).amax(-1)
    columns = [
        table.contribution,
        table.contribution_velocity,
        since_stage,
        _log10(measurements.seed_grad_norm),
        measurements.seed_health,
        total,
        largest.masked_fill(total.isnan(), math.nan),
        *_growth(measurements.growth),
    ]
    return torch.stack(columns, -1)


def _growth(growth: Tensor) -> list[Tensor]:
    weights, weights_agreement, kernel, kernel_agreement = growth.unbind(-1)
    return [_log10(weights), weights_agreement, _log10(kernel), kernel_agreement]


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

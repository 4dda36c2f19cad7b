"""The life of seeds: gates, legal ops, what an action does, and what happens automatically.

One epoch calls, in this order: `advance` (automatic transitions), `legal` (what the policy may do), `apply`
(what it does; ramps then move by one epoch, so that the table's alpha is the one in force while the hosts
train). All of it is tensor arithmetic over [N, S]; nothing looks at a value from Python.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import (
    ALPHA_SPEEDS,
    ALPHA_TARGETS,
    BLENDED,
    HEAD_NAMES,
    ISOLATED,
    LIVE,
    TEMPOS,
    Op,
    Stage,
)
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.measurements import Measurements

from . import alpha
from .table import SlotTable, is_in

IMMATURE = (*ISOLATED, Stage.BLENDING)
"""Stages of a seed that `seeds.one_at_a_time` waits for."""

AUTOMATIC_GATES = ("G1", "G3")
"""Gates that seeds pass by themselves; the policy asks at the others."""

HEAD_VALUES: dict[str, tuple[int, ...] | tuple[float, ...]] = {
    "tempo": TEMPOS,
    "alpha_target": ALPHA_TARGETS,
    "alpha_speed": ALPHA_SPEEDS,
}
"""Values of a head's choices, where they are numbers."""

Checks = dict[str, Tensor]


@cache
def _values_of(head: str, device: torch.device) -> Tensor:
    """`HEAD_VALUES` of a head; copied to the device once, as each copy waits for it."""
    return torch.tensor(HEAD_VALUES[head]).to(device, non_blocking=True)


def passed(checks: Checks) -> Tensor:
    """bool [N, S]: every check of a gate holds."""
    return torch.stack(list(checks.values())).all(0)


class Lifecycle:
    """The rules of one run."""

    def __init__(self, config: Config) -> None:
        seeds = config.seeds
        self._strict = seeds.gates == "strict"
        self._limits = config.gates
        self.min_training_epochs = seeds.min_training_epochs or max(1, config.episode_epochs // 12)
        self._min_blending_epochs = seeds.min_blending_epochs
        self._embargo_epochs = seeds.embargo_epochs
        self._max_live = seeds.max_live
        self._one_at_a_time = seeds.one_at_a_time
        self._num_blueprints = len(seeds.blueprints)

    def gates(
        self, table: SlotTable, measurements: Measurements, blueprint: Tensor | None = None
    ) -> dict[str, Checks]:
        """Every check of every gate, as bool [N, S]; a signal that was not measured fails its checks.

        Args:
            blueprint: int64 [N], which one each env is to plant; None = any of the run's.
        """
        stage, epochs, limits = table.stage, table.epochs_in_stage, self._limits
        norm, healthy = measurements.seed_grad_norm, measurements.seed_health >= limits.min_health
        g2 = {
            "training": stage == Stage.TRAINING,
            "min_epochs": epochs >= self.min_training_epochs,
            "gradient_measured": ~norm.isnan(),
            "not_exploding": norm <= limits.max_gradient_norm,
            "healthy": healthy,
        }
        g3 = {
            "blending": stage == Stage.BLENDING,
            "alpha_at_one": table.alpha == 1.0,
            "not_moving": ~alpha.moving(table) & ~table.pruning,
        }
        g5 = {
            "holding": stage == Stage.HOLDING,
            "contribution_measured": ~table.contribution.isnan(),
            "healthy": healthy,
        }
        if self._strict:
            gain = measurements.val_accuracy.unsqueeze(1) - table.accuracy_at_stage
            g2["improved"] = gain >= limits.min_accuracy_gain
            host_norm = measurements.host_grad_norm.unsqueeze(1)
            g2["gradient_ratio"] = norm >= limits.min_gradient_ratio * host_norm
            g3["min_epochs"] = epochs >= self._min_blending_epochs
            g5["contributes"] = table.contribution >= limits.min_contribution
        return {
            "G0": self._planting_checks(stage, blueprint),
            "G1": {"germinated": stage == Stage.GERMINATED},
            "G2": g2,
            "G3": g3,
            "G5": g5,
        }

    def _planting_checks(self, stage: Tensor, blueprint: Tensor | None) -> Checks:
        """G0: the slot is free, the run has the blueprint, and the host leaves room for another seed."""
        present = torch.ones_like(stage[:, 0]) if blueprint is None else self._is_present(blueprint)
        checks = {
            "dormant": stage == Stage.DORMANT,
            "blueprint_present": present.bool().unsqueeze(1).expand_as(stage),
        }
        if self._max_live:
            live = is_in(stage, LIVE).sum(1, keepdim=True)
            checks["below_max_live"] = (live < self._max_live).expand_as(stage)
        if self._one_at_a_time:
            immature = is_in(stage, IMMATURE).any(1, keepdim=True)
            checks["others_mature"] = (~immature).expand_as(stage)
        return checks

    def _is_present(self, blueprint: Tensor) -> Tensor:
        """Mask of the codes of blueprints that the run has; bool, of the same shape."""
        return (blueprint >= 0) & (blueprint < self._num_blueprints)

    def legal(self, table: SlotTable, measurements: Measurements) -> Tensor:
        """bool [N, len(Op), S]: what may be done to which slot. WAIT is legal on every slot."""
        gates = self.gates(table, measurements)
        stage = table.stage
        mask = torch.zeros(stage.shape[0], len(Op), stage.shape[1], dtype=torch.bool, device=stage.device)
        mask[:, Op.WAIT] = True
        mask[:, Op.GERMINATE] = passed(gates["G0"])
        mask[:, Op.ADVANCE] = passed(gates["G2"])
        grafted = is_in(stage, (Stage.BLENDING, Stage.HOLDING))
        mask[:, Op.SET_ALPHA] = grafted & ~alpha.moving(table) & ~table.pruning
        mask[:, Op.PRUNE] = (is_in(stage, ISOLATED) | grafted) & ~table.pruning
        mask[:, Op.FOSSILIZE] = passed(gates["G5"])
        return mask

    def advance(self, table: SlotTable, measurements: Measurements) -> dict[str, Checks]:
        """The automatic transitions at the beginning of an epoch; ages count the epoch just finished.

        Returns:
            The checks of the gates that were asked for them, see `AUTOMATIC_GATES`, as they were then.
        """
        occupied = (table.stage != Stage.DORMANT).to(torch.int64)
        table.epochs_in_stage += occupied
        table.age += occupied
        landed = alpha.landed(table)
        table.ramp_epochs.masked_fill_(landed, 0)
        table.ramp_done.masked_fill_(landed, 0)
        gates = self.gates(table, measurements)

        faded = landed & table.pruning
        closed, waiting = table.stage == Stage.PRUNED, table.stage == Stage.EMBARGOED
        table.embargo.masked_fill_(closed, self._embargo_epochs)
        table.embargo -= waiting.to(torch.int64)
        _remove(table, faded)
        moves = {
            Stage.TRAINING: passed(gates["G1"]),
            Stage.HOLDING: passed(gates["G3"]),
            Stage.PRUNED: faded,
            Stage.EMBARGOED: closed,
            Stage.RESETTING: waiting & (table.embargo == 0),
            Stage.DORMANT: table.stage == Stage.RESETTING,
        }
        table.enter(moves, measurements.val_accuracy)
        return {gate: gates[gate] for gate in AUTOMATIC_GATES}

    def apply(self, table: SlotTable, actions: Tensor, legal: Tensor, measurements: Measurements) -> Tensor:
        """`execute`, then every ramp moves by one epoch."""
        executed = self.execute(table, actions, legal, measurements)
        alpha.step(table)
        return executed

    def execute(self, table: SlotTable, actions: Tensor, legal: Tensor, measurements: Measurements) -> Tensor:
        """Execute one action per env where it is legal.

        Args:
            actions: int64 [N, 8], one choice per head in the order of `HEAD_NAMES`.
            legal: as `legal` gave it for this table.

        Returns:
            bool [N]: which were executed; exactly those that are legal and plant no unknown blueprint.
        """
        head = {name: actions[:, i : i + 1] for i, name in enumerate(HEAD_NAMES)}
        envs = torch.arange(actions.shape[0], device=actions.device)
        executed = legal[envs, actions[:, 0], actions[:, 1]]
        executed = executed & ((actions[:, 0] != Op.GERMINATE) | self._is_present(head["blueprint"][:, 0]))
        slots = torch.arange(table.shape[1], device=actions.device)
        chosen = executed.unsqueeze(1) & (slots == head["slot"])

        def asked(op: Op) -> Tensor:
            return chosen & (head["op"] == op)

        def choice(name: str) -> Tensor:
            return _values_of(name, actions.device)[head[name]]

        target, speed = choice("alpha_target"), choice("alpha_speed")
        planted, blend, retarget = asked(Op.GERMINATE), asked(Op.ADVANCE), asked(Op.SET_ALPHA)
        # A grafted seed fades over `speed` epochs, frozen; another goes at once.
        fade = asked(Op.PRUNE) & is_in(table.stage, BLENDED) & (speed > 0)
        removed = asked(Op.PRUNE) & ~fade
        lowered = (fade | retarget & (target < 1.0)) & (table.stage == Stage.HOLDING)
        chosen_values = (head["blueprint"], head["style"], choice("tempo"))
        for value, column in zip(chosen_values, (table.blueprint, table.style, table.tempo), strict=True):
            torch.where(planted, value, column, out=column)
        table.pruning |= fade
        target, epochs = target.masked_fill(fade, 0.0), torch.where(blend, table.tempo, speed)
        alpha.start(table, blend | retarget | fade, target, epochs, head["alpha_curve"])
        _remove(table, removed)
        moves = {
            Stage.GERMINATED: planted,
            Stage.BLENDING: blend | lowered,
            Stage.PRUNED: removed,
            Stage.FOSSILIZED: asked(Op.FOSSILIZE),
        }
        table.enter(moves, measurements.val_accuracy)
        return executed


def _remove(table: SlotTable, where: Tensor) -> None:
    """Let nothing move in the slots of bool [N, S], which lose their seed."""
    table.pruning &= ~where
    for moving in (table.alpha, table.alpha_target, table.ramp_epochs, table.ramp_done):
        moving.masked_fill_(where, 0)

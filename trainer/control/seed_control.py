"""Seeds planted and pruned by the operator, through the gates that bind the policy.

The policy's decision for the coming epoch has been taken, carried out and kept for the rollout when the
operator acts; nothing of it is touched. To the policy the operator's act is part of the world between its
action and the next observation: the probabilities of its own actions stay what they were, so the update's
ratios are right, and the reward of that epoch is noisier by what the operator did. A ramp that the operator
begins moves from the next epoch on.

On several ranks every one of them takes part: the one that has the env acts, and says what came of it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch
from torch import Tensor

from protocol.commands import SeedGerminateParams, SeedPruneParams
from protocol.errors import RequestError

from .loop import TOPOLOGY, Trainer
from .ranks import World
from .seeds.stages import ALPHA_SPEEDS, HEAD_NAMES, TEMPOS, Op, Stage, Style
from .telemetry.columns import decision_columns
from .telemetry.transfer import Frame


class Act(msgspec.Struct, frozen=True):
    """What is to be done to one seed: choices of the policy's heads, by name."""

    env: int
    heads: dict[str, int]


class _Outcome(msgspec.Struct):
    """What came of an act, as the rank that has the env tells it."""

    stage: int
    refused: str = ""
    """Why nothing has changed."""


class Intervention:
    """Acts on the seeds of one run, between two epochs.

    Args:
        trainer: this rank's.
        world: all ranks.
    """

    def __init__(self, trainer: Trainer, world: World) -> None:
        self._trainer = trainer
        self._world = world
        self._envs = trainer.cfg.envs.count * world.size
        self._slots = list(trainer.population.slots)
        self._blueprints = list(trainer.cfg.seeds.blueprints)

    def check(self, params: SeedGerminateParams | SeedPruneParams) -> None:
        """Look at what is asked for, whatever the state of the seeds.

        Raises:
            RequestError: no such env, slot or blueprint.
        """
        if params.env >= self._envs:
            raise _invalid("env", f"env {params.env}: this run has envs 0 to {self._envs - 1}")
        if params.slot not in self._slots:
            raise _invalid("slot", f"no slot {params.slot!r}; there are {', '.join(self._slots)}")
        if isinstance(params, SeedGerminateParams) and params.blueprint not in self._blueprints:
            known = ", ".join(self._blueprints)
            raise _invalid("blueprint", f"no blueprint {params.blueprint!r}; there are {known}")

    @property
    def possible(self) -> bool:
        """An epoch of this episode is to come."""
        return 0 < self._trainer.epoch < self._trainer.cfg.episode_epochs

    def act_of(self, params: SeedGerminateParams | SeedPruneParams) -> Act:
        """What parameters that `check` has passed ask for."""
        if isinstance(params, SeedGerminateParams):
            heads = {
                "op": int(Op.GERMINATE),
                "blueprint": self._blueprints.index(params.blueprint),
                "style": int(Style[params.style]),
                "tempo": TEMPOS.index(params.tempo),
            }
        else:
            heads = {"op": int(Op.PRUNE), "alpha_speed": ALPHA_SPEEDS.index(params.epochs)}
        return Act(params.env, {**heads, "slot": self._slots.index(params.slot)})

    def carry_out(self, act: Act, see: Callable[[dict[str, Tensor]], Frame]) -> Stage:
        """Germinate or prune now; every rank of the run calls this with the same act.

        Args:
            see: takes the columns of `decision_columns` of this rank's envs, gives them on the host.

        Returns:
            The stage of the seed afterwards.

        Raises:
            RequestError: a gate forbids it; nothing has changed on any rank.
        """
        trainer, rows = self._trainer, self._world.rows(self._envs)
        assert trainer.decision is not None
        before, gates = trainer.table.stage.clone(), trainer.lifecycle.gates(trainer.table, trainer.signals)
        told = b""
        if act.env in rows:
            told = msgspec.json.encode(self._change(act, act.env - rows.start))
        (answer,) = filter(None, self._world.collect(told))
        outcome = msgspec.json.decode(answer, type=_Outcome)
        stage = Stage(outcome.stage)
        if outcome.refused:
            raise RequestError("wrong_state", outcome.refused, {"stage": stage.name})
        columns = decision_columns(
            stage_before=before,
            stage_advanced=before,
            table=trainer.table,
            actions=trainer.decision.actions,
            gates=gates,
        )
        columns |= {"style": trainer.table.style, "contribution_age": trainer.table.contribution_age}
        frame = see(columns)
        trainer.population.prepare(*(frame[name] for name in TOPOLOGY))
        return stage

    def _change(self, act: Act, row: int) -> _Outcome:
        """Act on one of this rank's envs, where the gates allow it."""
        trainer, slot = self._trainer, act.heads["slot"]
        table, signals = trainer.table, trainer.signals
        legal = trainer.lifecycle.legal(table, signals)
        if not bool(legal[row, act.heads["op"], slot]):
            stage = Stage(int(table.stage[row, slot]))
            leaving = " and on its way out" if bool(table.pruning[row, slot]) else ""
            return _Outcome(
                int(stage),
                f"env {act.env} slot {self._slots[slot]} is {stage.name}{leaving}: "
                f"{Op(act.heads['op']).name} is not possible there now",
            )
        assert trainer.decision is not None
        actions = torch.zeros_like(trainer.decision.actions)
        for name, choice in act.heads.items():
            actions[row, HEAD_NAMES.index(name)] = choice
        trainer.lifecycle.carry_out(table, actions, legal, signals)
        return _Outcome(int(table.stage[row, slot]))


def _invalid(field: str, message: str) -> RequestError:
    return RequestError("invalid_params", message, {"path": f"$.{field}"})

"""Seeds planted and pruned by the operator, through the gates that bind the policy.

The policy's decision for the coming epoch has been taken, carried out and kept for the rollout when the
operator acts; nothing of it is touched. To the policy the operator's act is part of the world between its
action and the next observation: the probabilities of its own actions stay what they were, so the update's
ratios are right, and the reward of that epoch is noisier by what the operator did. A ramp that the operator
begins moves from the next epoch on.
"""

from __future__ import annotations

from typing import Any

import torch

from protocol.commands import Params, SeedGerminateParams, SeedPruneParams
from protocol.errors import RequestError

from .loop import Trainer
from .observer import Observer
from .seeds.stages import ALPHA_SPEEDS, HEAD_NAMES, TEMPOS, Op, Stage, Style
from .telemetry.columns import decision_columns


class Intervention:
    """Acts on the seeds of one run, between two epochs.

    Args:
        trainer: whose seeds they are.
        observer: tells what was done.
    """

    def __init__(self, trainer: Trainer, observer: Observer) -> None:
        self._trainer = trainer
        self._observer = observer
        self._slots = list(trainer.population.slots)
        self._blueprints = list(trainer.cfg.seeds.blueprints)

    def check(self, params: SeedGerminateParams | SeedPruneParams) -> None:
        """Look at what is asked for, whatever the state of the seeds.

        Raises:
            RequestError: no such env, slot or blueprint.
        """
        envs = self._trainer.cfg.envs.count
        if params.env >= envs:
            raise _invalid("env", f"env {params.env}: this run has envs 0 to {envs - 1}")
        if params.slot not in self._slots:
            raise _invalid("slot", f"no slot {params.slot!r}; there are {', '.join(self._slots)}")
        if isinstance(params, SeedGerminateParams) and params.blueprint not in self._blueprints:
            known = ", ".join(self._blueprints)
            raise _invalid("blueprint", f"no blueprint {params.blueprint!r}; there are {known}")

    @property
    def possible(self) -> bool:
        """An epoch of this episode is to come."""
        return 0 < self._trainer.epoch < self._trainer.cfg.episode_epochs

    def carry_out(self, params: Params) -> dict[str, Any]:
        """Germinate or prune now.

        Raises:
            RequestError: a gate forbids it; nothing has changed.
        """
        if isinstance(params, SeedGerminateParams):
            heads = {
                "op": int(Op.GERMINATE),
                "blueprint": self._blueprints.index(params.blueprint),
                "style": int(Style[params.style]),
                "tempo": TEMPOS.index(params.tempo),
            }
        else:
            assert isinstance(params, SeedPruneParams)
            heads = {"op": int(Op.PRUNE), "alpha_speed": ALPHA_SPEEDS.index(params.epochs)}
        slot = self._slots.index(params.slot)
        stage = self._act(params.env, {**heads, "slot": slot})
        return {"env": params.env, "slot": params.slot, "stage": stage.name}

    def _act(self, env: int, heads: dict[str, int]) -> Stage:
        trainer = self._trainer
        table, signals, slot = trainer.table, trainer.signals, heads["slot"]
        legal = trainer.lifecycle.legal(table, signals)
        if not bool(legal[env, heads["op"], slot]):
            stage = Stage(int(table.stage[env, slot]))
            raise RequestError(
                "wrong_state",
                f"env {env} slot {self._slots[slot]} is {stage.name}"
                f"{' and on its way out' if bool(table.pruning[env, slot]) else ''}: "
                f"{Op(heads['op']).name} is not possible there now",
                {"stage": stage.name},
            )
        assert trainer.decision is not None
        before = table.stage.clone()
        gates = trainer.lifecycle.gates(table, signals)
        actions = torch.zeros_like(trainer.decision.actions)
        for name, choice in heads.items():
            actions[env, HEAD_NAMES.index(name)] = choice
        trainer.lifecycle.carry_out(table, actions, legal, signals)
        columns = decision_columns(
            stage_before=before,
            stage_advanced=before,
            table=table,
            actions=trainer.decision.actions,
            gates=gates,
        )
        columns |= {"style": table.style, "contribution_age": table.contribution_age}
        frame = self._observer.intervened(columns)
        trainer.population.prepare(
            frame["stage"], frame["blueprint"], frame["style"], frame["contribution_age"]
        )
        return Stage(int(frame["stage"][env, slot]))


def _invalid(field: str, message: str) -> RequestError:
    return RequestError("invalid_params", message, {"path": f"$.{field}"})

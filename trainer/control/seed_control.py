"""Seeds germinated and pruned by the operator, through the gates that bind the policy.

The policy's decision for the coming epoch has been taken, executed and kept for the rollout when the
operator acts; nothing of it is touched. To the policy the operator's act is part of the world between its
action and the next observation: the probabilities of its own actions stay what they were, so the update's
ratios are right, and the reward of that epoch is noisier by what the operator did. A ramp that the operator
begins moves from the next epoch on.

On several ranks all of them take part: the one that has the env acts, and sends the outcome to the others.
"""

from __future__ import annotations

import msgspec
import torch

from esper_overwatch.protocol.errors import RequestError
from esper_overwatch.protocol.messages.commands import SeedGerminateParams, SeedPruneParams
from esper_overwatch.protocol.messages.vocabulary import ALPHA_SPEEDS, HEAD_NAMES, TEMPOS, Op, Stage, Style
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.governor import VetoReason
from esper_overwatch.trainer.loop import Trainer
from esper_overwatch.trainer.telemetry.columns import decision_columns
from esper_overwatch.trainer.telemetry.transfer import HostFrame

_VETO_TEXTS = {
    VetoReason.UNDONE: "a rollback has just undone the same (governor.veto_epochs)",
    VetoReason.FORGETS: "without this seed the host would be back at a guess (governor.veto)",
}


class SeedAction(msgspec.Struct, frozen=True):
    """An action on one seed: choices of the policy's heads, by name."""

    env: int
    heads: dict[str, int]


class _Outcome(msgspec.Struct):
    """The outcome of an action, sent by the rank that has the env."""

    stage: int
    refused: str = ""
    """Why nothing has changed."""


class SeedControl:
    """Acts on the seeds of one run, between two epochs.

    Args:
        trainer: this rank's.
        world: all ranks.
    """

    def __init__(self, trainer: Trainer, world: ProcessGroup) -> None:
        self._trainer = trainer
        self._world = world
        self._envs = trainer.cfg.envs.count * world.size
        self._slots = list(trainer.population.slots)
        self._blueprints = list(trainer.cfg.seeds.blueprints)

    def check(self, params: SeedGerminateParams | SeedPruneParams) -> None:
        """Check that env, slot and blueprint exist, whatever the state of the seeds.

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
    def is_possible(self) -> bool:
        """True if an epoch of this episode is still to come."""
        return 0 < self._trainer.epoch < self._trainer.cfg.episode_epochs

    def action_of(self, params: SeedGerminateParams | SeedPruneParams) -> SeedAction:
        """The action of parameters that `check` has passed."""
        if isinstance(params, SeedGerminateParams):
            heads = {
                "op": int(Op.GERMINATE),
                "blueprint": self._blueprints.index(params.blueprint),
                "style": int(Style[params.style]),
                "tempo": TEMPOS.index(params.tempo),
            }
        else:
            heads = {"op": int(Op.PRUNE), "alpha_speed": ALPHA_SPEEDS.index(params.epochs)}
        return SeedAction(params.env, {**heads, "slot": self._slots.index(params.slot)})

    def execute(self, action: SeedAction) -> tuple[Stage, HostFrame]:
        """Germinate or prune now; every rank of the run calls this with the same action.

        Returns:
            The stage of the seed afterwards, and the columns of `decision_columns` of this rank's envs.

        Raises:
            RequestError: a gate forbids it; nothing has changed on any rank.
        """
        trainer, rows = self._trainer, self._world.rows(self._envs)
        assert trainer.decision is not None
        before, gates = (
            trainer.table.stage.clone(),
            trainer.lifecycle.gates(trainer.table, trainer.measurements),
        )
        encoded = b""
        if action.env in rows:
            encoded = msgspec.json.encode(self._change(action, action.env - rows.start))
        (result,) = filter(None, self._world.all_gather_bytes(encoded))
        outcome = msgspec.json.decode(result, type=_Outcome)
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
        frame = trainer.to_host(columns)
        trainer.set_topology(frame)
        return stage, frame

    def _change(self, action: SeedAction, row: int) -> _Outcome:
        """Act on one of this rank's envs, where the gates allow it."""
        trainer, slot = self._trainer, action.heads["slot"]
        table, measurements = trainer.table, trainer.measurements
        legal, vetoes = trainer.legal_actions(trainer.measurements)
        veto = VetoReason(int(vetoes[row, action.heads["op"], slot]))
        if veto:
            return _Outcome(
                int(table.stage[row, slot]),
                f"env {action.env} slot {self._slots[slot]}: the governor forbids "
                f"{Op(action.heads['op']).name} now: {_VETO_TEXTS[veto]}",
            )
        if not bool(legal[row, action.heads["op"], slot]):
            stage = Stage(int(table.stage[row, slot]))
            leaving = " and on its way out" if bool(table.pruning[row, slot]) else ""
            return _Outcome(
                int(stage),
                f"env {action.env} slot {self._slots[slot]} is {stage.name}{leaving}: "
                f"{Op(action.heads['op']).name} is not possible there now{self._crowded(action, row)}",
            )
        assert trainer.decision is not None
        actions = torch.zeros_like(trainer.decision.actions)
        for name, choice in action.heads.items():
            actions[row, HEAD_NAMES.index(name)] = choice
        trainer.lifecycle.execute(table, actions, legal, measurements)
        return _Outcome(int(table.stage[row, slot]))

    def _crowded(self, action: SeedAction, row: int) -> str:
        """Name the rule about the host's other seeds that keeps a dormant slot closed; empty where none
        does."""
        trainer, slot = self._trainer, action.heads["slot"]
        checks = trainer.lifecycle.gates(trainer.table, trainer.measurements)["G0"]
        failed = {name for name, holds in checks.items() if not bool(holds[row, slot])}
        if action.heads["op"] != Op.GERMINATE or "dormant" in failed:
            return ""
        rules = {"below_max_live": "seeds.max_live", "others_mature": "seeds.one_at_a_time"}
        return f" ({', '.join(sorted(rules[name] for name in failed))})"


def _invalid(field: str, message: str) -> RequestError:
    return RequestError("invalid_params", message, {"path": f"$.{field}"})

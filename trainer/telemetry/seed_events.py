"""Events of seeds: stages that they entered and who caused it; verdicts of gates, new or needed; their ends.

Actions and seeds have ids that are the same in every event and in a resumed run: `r3e17n5` is what was chosen
in round 3 after 17 epochs for env 5, `r3e17n5s0` the seed planted then in its first slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import SeedEnded, SeedGate, SeedStage
from esper_overwatch.protocol.messages.vocabulary import GATE_OF_OP, WITH_SEED, Initiator, Stage
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.seeds.lifecycle import AUTOMATIC_GATES

from .columns import STAGE_OF_GATE
from .transfer import HostFrame

Mask = NDArray[np.bool_]
Codes = NDArray[np.int64]
_OF_LIFE = (*WITH_SEED, Stage.PRUNED)
"""The stages of a seed's life; the others are those of an empty slot."""
_UNDONE = Stage.DORMANT.name
_ENDS = (Stage.FOSSILIZED.name, Stage.PRUNED.name, _UNDONE)


def action_id(round: int, epoch: int, env: int) -> str:
    """Identifies a policy's choice for an env.

    Args:
        epoch: finished in the round when it chose.
    """
    return f"r{round}e{epoch}n{env}"


class SeedEvents:
    """Emits `seed.stage`, `seed.gate` and `seed.ended`.

    Args:
        emitter: where they go.
        slots: names of the S slots.
        blueprints: names of the B blueprints.
        parameters: [S][B] parameters of a seed by slot and blueprint.
    """

    def __init__(
        self,
        emitter: Emitter,
        slots: Sequence[str],
        blueprints: Sequence[str],
        parameters: Sequence[Sequence[int]],
        envs: int,
    ) -> None:
        self._emitter = emitter
        self._slots = slots
        self._blueprints = blueprints
        self._parameters = parameters
        self._verdict = np.zeros((envs, len(slots)), dtype=np.int64)
        """[N, S] the last reported evaluation: number of the gate + 1 << 32, and one bit per check."""
        self._checks: dict[str, list[str]] = {}
        """Names of the checks by gate, as the first frame has them."""
        self._last: NDArray[Any] | None = None
        """[N, S] stages after the last decision; what differs from them in the next was put back."""
        self._seeds: dict[tuple[int, int], list[SeedEnded]] = {}
        """Seeds of this round by env and slot, the newest last: what their events would say now."""
        self._clock = (0, 0)
        self._command: str | None = None

    def restart(self) -> None:
        """A round begins: no seeds."""
        self._last = None
        self._verdict[:] = 0
        self._seeds.clear()

    def emit_changes(
        self,
        frame: HostFrame,
        by: Initiator = "policy",
        *,
        clock: tuple[int, int],
        command: str | None = None,
    ) -> tuple[Codes, Codes]:
        """Emit what changed, in the order in which it did.

        Args:
            frame: the columns of `decision_columns`.
            by: whose actions they are.
            clock: round, and the epochs of it that are finished.
            command: id of the operator's, where they are the operator's.

        Returns:
            int64 [N, S] twice, the gates that were asked and those that were passed: bit 3 is G3.
        """
        self._clock, self._command = clock, command
        before, advanced, after = frame["stage.before"], frame["stage.advanced"], frame["stage"]
        if self._last is not None:
            self._stages(frame, self._undo(frame, self._last), before, "governor")
        self._last = after
        self._verdict[before == Stage.DORMANT] = 0
        planted = (advanced == Stage.DORMANT) & (after == Stage.GERMINATED)
        asked, passed = np.zeros_like(self._verdict), np.zeros_like(self._verdict)

        def ask(gate: str, where: Mask) -> None:
            nonlocal asked, passed
            number = int(gate[1:])
            asked |= where.astype(np.int64) << number
            passed |= (where & self._report(frame, gate, where, by)).astype(np.int64) << number

        for gate in AUTOMATIC_GATES if by == "policy" else ():
            ask(gate, before == STAGE_OF_GATE[gate])
        self._stages(frame, before, advanced, "auto")
        for env, slot in np.argwhere(planted).tolist():
            self._plant(env, slot, int(frame["blueprint"][env, slot]))
        ask("G0", planted)
        for gate in ("G2", "G5") if by == "policy" else ():
            ask(gate, advanced == STAGE_OF_GATE[gate])
        self._stages(frame, advanced, after, by)
        return asked, passed

    def emit_undone(self, frame: HostFrame, clock: tuple[int, int]) -> None:
        """Emit what the governor has put back in an episode's last epoch, after which nothing is decided.

        Args:
            frame: the columns of `final_columns`, and the governor's.
            clock: round, and the epochs of it that are finished.
        """
        self._clock, self._command = clock, None
        prefix = "final."
        final = {name.removeprefix(prefix): frame[name] for name in frame if name.startswith(prefix)}
        if self._last is not None:
            self._stages(final, self._undo(frame, self._last), final["stage"], "governor")
        self._last = final["stage"]

    def record_contributions(self, contribution: NDArray[np.floating[Any]]) -> None:
        """An epoch was measured: [N, S], NaN where it was not."""
        for env, slot in np.argwhere(~np.isnan(contribution)).tolist():
            seed = self._newest(env, slot)
            if seed is not None and seed.how != Stage.PRUNED.name:
                seed.contribution = _decimal(contribution[env, slot])

    def emit_ends(self, epoch: int) -> list[Counter[str]]:
        """Emit `seed.ended` of each seed of the round, in the order of the envs.

        Args:
            epoch: after which the episode is over.

        Returns:
            Each env's seeds by how they ended.
        """
        outcomes: list[Counter[str]] = [Counter() for _ in self._verdict]
        for (env, _), seeds in sorted(self._seeds.items()):
            for seed in seeds:
                if seed.how not in _ENDS:
                    seed.ended = epoch
                self._emit(seed, env)
                outcomes[env][seed.how] += 1
        return outcomes

    def state_dict(self) -> dict[str, Any]:
        return {
            "verdict": self._verdict.tolist(),
            "last": None if self._last is None else self._last.tolist(),
            "seeds": [[*place, *map(asdict, own)] for place, own in self._seeds.items()],
        }

    def load_state_dict(self, state: dict[str, Any], round: int) -> None:
        """Go on from `state_dict`; one of 0.2.0 knows birth and stage of its seeds, without the undone."""
        self._verdict = np.array(state["verdict"], dtype=np.int64)
        self._last = None if state["last"] is None else np.array(state["last"])
        self._clock = round, 0
        self._seeds = {
            (env, slot): [SeedEnded(**seed) for seed in seeds] for env, slot, *seeds in state.get("seeds", [])
        }
        stages = {(env, slot): own for env, slot, *own in state.get("outcomes", [])}
        for env, slot, *births in state.get("births", []):
            for born, stage in zip(births, stages[env, slot], strict=True):
                self._plant(env, slot, -1, born).how = stage

    def _plant(self, env: int, slot: int, blueprint: int, born: int | None = None) -> SeedEnded:
        """Enter a new seed.

        Args:
            blueprint: -1 = not known.
            born: epochs finished when it was planted, None = now.
        """
        round_, now = self._clock
        born = now if born is None else born
        seed = SeedEnded(
            seed=f"{action_id(round_, born, env)}s{slot}",
            slot=self._slots[slot],
            blueprint=None if blueprint < 0 else self._blueprints[blueprint],
            parameters=0 if blueprint < 0 else self._parameters[slot][blueprint],
            born=born,
            ended=born,
            how=Stage.GERMINATED.name,
        )
        self._seeds.setdefault((env, slot), []).append(seed)
        return seed

    def _newest(self, env: int, slot: int) -> SeedEnded | None:
        """The newest seed in a slot that no rollback has undone."""
        return next((one for one in reversed(self._seeds.get((env, slot), ())) if one.how != _UNDONE), None)

    def _action_id(self, env: int, by: Initiator) -> str | None:
        return action_id(*self._clock, env) if by == "policy" else None

    def _undo(self, frame: HostFrame, stage: NDArray[Any]) -> NDArray[Any]:
        """Emit the end of seeds planted after the epoch that a rolled back env was put back to.

        Returns:
            The stages [N, S] without them.
        """
        stage = stage.copy()
        for env in np.flatnonzero(frame.get("governor.ill", np.zeros(0))).tolist():
            restored = int(frame["governor.restored"][env])
            for slot in range(len(self._slots)):
                for seed in self._seeds.get((env, slot), ()):
                    if seed.how != _UNDONE and seed.born >= restored:
                        self._emit_undone(env, seed)
                        stage[env, slot] = Stage.DORMANT
        return stage

    def _emit_undone(self, env: int, seed: SeedEnded) -> None:
        event = SeedStage(
            slot=seed.slot,
            from_stage=seed.how,
            to_stage=_UNDONE,
            blueprint=None,
            alpha=0.0,
            by="governor",
            seed=seed.seed,
        )
        self._emit(event, env)
        seed.how, seed.ended = _UNDONE, self._clock[1]

    def _emit(self, event: SeedStage | SeedGate | SeedEnded, env: int) -> None:
        """Emit an event without the fields that are None: readers take them for that, and there are many."""
        for name in [name for name, value in vars(event).items() if value is None]:
            if hasattr(type(event), name):  # it has a default
                delattr(event, name)
        self._emitter.emit(event, env=env)

    def _stages(
        self,
        frame: HostFrame,
        before: NDArray[Any],
        after: NDArray[Any],
        by: Initiator,
    ) -> None:
        for env, slot in np.argwhere(before != after).tolist():
            stage = Stage(int(after[env, slot]))
            seed = self._newest(env, slot)
            # A slot that is freed and planted in one epoch has its new blueprint already.
            blueprint = -1 if stage is Stage.DORMANT else int(frame["blueprint"][env, slot])
            contribution = _decimal(frame["contribution.last"][env, slot])
            if seed is not None and stage in _OF_LIFE:
                seed.how, seed.ended = stage.name, self._clock[1]
                seed.contribution = seed.contribution if np.isnan(contribution) else contribution
            self._emit(
                SeedStage(
                    slot=self._slots[slot],
                    from_stage=Stage(int(before[env, slot])).name,
                    to_stage=stage.name,
                    blueprint=None if blueprint < 0 else self._blueprints[blueprint],
                    alpha=_decimal(frame["alpha"][env, slot]),
                    by=by,
                    parameters=0 if blueprint < 0 else self._parameters[slot][blueprint],
                    contribution=None if np.isnan(contribution) else contribution,
                    seed=None if seed is None else seed.seed,
                    action=self._action_id(env, by),
                    command=self._command if by == "operator" else None,
                ),
                env,
            )

    def _report(self, frame: HostFrame, gate: str, where: Mask, by: Initiator) -> Mask:
        """Emit a gate's verdicts that an action needed or that are new; bool [N, S], what all checks say."""
        checks = self._checks.setdefault(gate, _checks_of(frame, gate))
        verdict = np.full_like(self._verdict, (int(gate[1:]) + 1) << 32)
        for i, check in enumerate(checks):
            verdict += frame[f"gate.{gate}.{check}"].astype(np.int64) << i
        needs = np.isin(frame["op"], [op for op, asks in GATE_OF_OP.items() if asks == gate])
        needed = needs[:, None] & (frame["slot"][:, None] == np.arange(where.shape[1])) & (by == "policy")
        reported = where & (needed | (verdict != self._verdict))
        self._verdict[where] = verdict[where]
        passed: Mask = np.all([frame[f"gate.{gate}.{check}"] for check in checks], axis=0)
        for env, slot in np.argwhere(reported).tolist():
            seed = self._newest(env, slot)
            event = SeedGate(
                slot=self._slots[slot],
                gate=gate,
                passed=bool(passed[env, slot]),
                checks={check: bool(frame[f"gate.{gate}.{check}"][env, slot]) for check in checks},
                seed=None if seed is None else seed.seed,
                action=self._action_id(env, by) if needed[env, slot] else None,
                command=self._command if by == "operator" else None,
            )
            if seed is not None:
                seed.gates_failed.pop(gate, None)
                seed.gates_failed |= {gate: list(event.failed)} if event.failed else {}
            self._emit(event, env)
        return passed


def _decimal(value: np.floating[Any]) -> float:
    """The shortest decimal that is this number, as in `epoch`."""
    return float(str(value))


def _checks_of(frame: HostFrame, gate: str) -> list[str]:
    """The checks of a gate by the frame's columns, in a fixed order."""
    prefix = f"gate.{gate}."
    return sorted(column.removeprefix(prefix) for column in frame if column.startswith(prefix))

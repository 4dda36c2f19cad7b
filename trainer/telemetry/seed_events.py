"""Events of seeds: the stages that they entered and who caused it; verdicts of gates, new or needed.

Actions and seeds have ids that are the same in every event and in a resumed run: `r3e17n5` is what was chosen
in round 3 after 17 epochs for env 5, `r3e17n5s0` the seed planted then in its first slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import SeedGate, SeedStage
from esper_overwatch.protocol.messages.vocabulary import GATE_OF_OP, WITH_SEED, Initiator, Stage
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.seeds.lifecycle import AUTOMATIC_GATES

from .columns import STAGE_OF_GATE
from .transfer import HostFrame

Mask = NDArray[np.bool_]
Codes = NDArray[np.int64]
_OF_LIFE = (*WITH_SEED, Stage.PRUNED)
"""The stages of a seed's life; the others are those of an empty slot."""


def action_id(round: int, epoch: int, env: int) -> str:
    """Identifies a policy's choice for an env.

    Args:
        epoch: finished in the round when it chose.
    """
    return f"r{round}e{epoch}n{env}"


@dataclass
class SeedTally:
    """Seeds that germinated, fossilised or were pruned in a round."""

    germinated: int = 0
    fossilized: int = 0
    pruned: int = 0


@dataclass
class _Seed:
    """One seed of this round."""

    planted: int
    """Epochs finished when it was planted."""
    stage: str = Stage.GERMINATED.name
    """The newest of its life: one with a seed, or PRUNED."""


class SeedEvents:
    """Emits `seed.stage` and `seed.gate`.

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
        self._planted: dict[tuple[int, int], list[_Seed]] = {}
        """Seeds of this round by env and slot, the newest last."""
        self._undone: dict[int, int] = {}
        """Seeds of this round that rollbacks have undone, by env."""
        self._clock = (0, 0)
        self._command: str | None = None
        self.tally = SeedTally()

    def restart(self) -> None:
        """A round begins: no seeds, nothing done."""
        self.tally = SeedTally()
        self._last = None
        self._verdict[:] = 0
        self._planted.clear()
        self._undone.clear()

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
            self._forget_undone(frame)
            self._stages(frame, self._last, before, "governor")
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
            self._planted.setdefault((env, slot), []).append(_Seed(clock[1]))
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
            self._forget_undone(frame)
            self._stages(final, self._last, final["stage"], "governor")
        self._last = final["stage"]

    def outcomes(self, env: int) -> dict[str, int]:
        """Seeds of this round by where they stand; DORMANT are those that rollbacks have undone."""
        stages = [seed.stage for (owner, _), seeds in self._planted.items() if owner == env for seed in seeds]
        stages += [Stage.DORMANT.name] * self._undone.get(env, 0)
        return dict(sorted(Counter(stages).items()))

    def state_dict(self) -> dict[str, Any]:
        return {
            "verdict": self._verdict.tolist(),
            "tally": asdict(self.tally),
            "last": None if self._last is None else self._last.tolist(),
            "births": [[*place, *(seed.planted for seed in own)] for place, own in self._planted.items()],
            "outcomes": [[*place, *(seed.stage for seed in own)] for place, own in self._planted.items()],
            "undone": list(self._undone.items()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._verdict = np.array(state["verdict"], dtype=np.int64)
        self.tally = SeedTally(**state["tally"])
        self._last = None if state["last"] is None else np.array(state["last"])
        self._planted = {
            (env, slot): [_Seed(epoch) for epoch in epochs] for env, slot, *epochs in state["births"]
        }
        for env, slot, *stages in state["outcomes"]:
            for seed, stage in zip(self._planted[env, slot], stages, strict=True):
                seed.stage = stage
        self._undone = dict(map(tuple, state["undone"]))

    def _seed_id(self, env: int, slot: int) -> str | None:
        """Identifies the newest seed in a slot."""
        seeds = self._planted.get((env, slot))
        return f"{action_id(self._clock[0], seeds[-1].planted, env)}s{slot}" if seeds else None

    def _action_id(self, env: int, by: Initiator) -> str | None:
        return action_id(*self._clock, env) if by == "policy" else None

    def _forget_undone(self, frame: HostFrame) -> None:
        """Seeds planted after the epoch that a rolled back env was put back to have never been."""
        for env in np.flatnonzero(frame.get("governor.ill", np.zeros(0))).tolist():
            restored = int(frame["governor.restored"][env])
            for (owner, _), seeds in self._planted.items():
                if owner == env:
                    kept = [seed for seed in seeds if seed.planted < restored]
                    self._undone[env] = self._undone.get(env, 0) + len(seeds) - len(kept)
                    seeds[:] = kept

    def _stages(
        self,
        frame: HostFrame,
        before: NDArray[Any],
        after: NDArray[Any],
        by: Initiator,
    ) -> None:
        for env, slot in np.argwhere(before != after).tolist():
            stage = Stage(int(after[env, slot]))
            if by != "governor":
                self.tally.germinated += stage is Stage.GERMINATED
                self.tally.fossilized += stage is Stage.FOSSILIZED
                self.tally.pruned += stage is Stage.PRUNED
            seeds = self._planted.get((env, slot))
            if seeds and stage in _OF_LIFE:
                seeds[-1].stage = stage.name
            # A slot that is freed and planted in one epoch has its new blueprint already.
            blueprint = -1 if stage is Stage.DORMANT else int(frame["blueprint"][env, slot])
            contribution = float(frame["contribution.last"][env, slot])
            self._emitter.emit(
                SeedStage(
                    slot=self._slots[slot],
                    from_stage=Stage(int(before[env, slot])).name,
                    to_stage=stage.name,
                    blueprint=None if blueprint < 0 else self._blueprints[blueprint],
                    alpha=float(frame["alpha"][env, slot]),
                    by=by,
                    parameters=0 if blueprint < 0 else self._parameters[slot][blueprint],
                    contribution=None if np.isnan(contribution) else contribution,
                    seed=self._seed_id(env, slot),
                    action=self._action_id(env, by),
                    command=self._command if by == "operator" else None,
                ),
                env=env,
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
            self._emitter.emit(
                SeedGate(
                    slot=self._slots[slot],
                    gate=gate,
                    passed=bool(passed[env, slot]),
                    checks={check: bool(frame[f"gate.{gate}.{check}"][env, slot]) for check in checks},
                    seed=self._seed_id(env, slot),
                    action=self._action_id(env, by) if needed[env, slot] else None,
                    command=self._command if by == "operator" else None,
                ),
                env=env,
            )
        return passed


def _checks_of(frame: HostFrame, gate: str) -> list[str]:
    """The checks of a gate by the frame's columns, in a fixed order."""
    prefix = f"gate.{gate}."
    return sorted(column.removeprefix(prefix) for column in frame if column.startswith(prefix))

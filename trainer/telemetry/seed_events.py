"""Events of seeds: each stage that they entered and who caused it, each gate whose verdict changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.messages.events import SeedGate, SeedStage
from protocol.messages.vocabulary import Actor, Stage
from protocol.server.emitter import Emitter

from .columns import GATE_OF_STAGE
from .transfer import HostFrame


@dataclass
class SeedTally:
    """What the seeds of a round have done."""

    germinated: int = 0
    fossilized: int = 0
    pruned: int = 0


class SeedEvents:
    """Emits `seed.stage` and `seed.gate`.

    Args:
        emitter: where they go.
        slots: names of the S slots.
        blueprints: names of the B blueprints.
        parameters: [S][B] parameters of a seed by slot and blueprint.
        envs: N.
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
        """[N, S] the last reported evaluation: number of the gate << 32, and one bit per check; 0 = none."""
        self._gates: list[tuple[str, list[str]]] = []
        """Gates and their checks, as the first frame names them."""
        self._last: NDArray[Any] | None = None
        """[N, S] stages after the last decision; what differs from them in the next was put back."""
        self.tally = SeedTally()

    def restart(self) -> None:
        """A round begins: no seeds, nothing done."""
        self.tally = SeedTally()
        self._last = None
        self._verdict[:] = 0

    def emit_changes(self, frame: HostFrame, by: Actor = "policy") -> None:
        """Emit what changed, in the order in which it did.

        Args:
            frame: the columns of `decision_columns`.
            by: whose actions they are.
        """
        before, advanced = frame["stage.before"], frame["stage.advanced"]
        if self._last is not None:
            self._stages(frame, self._last, before, "governor")
        self._last = frame["stage"]
        self._stages(frame, before, advanced, "auto")
        self._verdicts(frame, advanced)
        self._stages(frame, advanced, frame["stage"], by)

    def state_dict(self) -> dict[str, Any]:
        return {
            "verdict": self._verdict.tolist(),
            "tally": asdict(self.tally),
            "last": None if self._last is None else self._last.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._verdict = np.array(state["verdict"], dtype=np.int64)
        self.tally = SeedTally(**state["tally"])
        self._last = None if state["last"] is None else np.array(state["last"])

    def _stages(
        self,
        frame: HostFrame,
        before: NDArray[Any],
        after: NDArray[Any],
        by: Actor,
    ) -> None:
        for env, slot in np.argwhere(before != after).tolist():
            stage = Stage(int(after[env, slot]))
            if by != "governor":
                self.tally.germinated += stage is Stage.GERMINATED
                self.tally.fossilized += stage is Stage.FOSSILIZED
                self.tally.pruned += stage is Stage.PRUNED
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
                ),
                env=env,
            )

    def _verdicts(self, frame: HostFrame, stage: NDArray[Any]) -> None:
        self._gates = self._gates or _checks_by_gate(frame)
        verdict = np.zeros_like(self._verdict)
        for number, (gate, checks) in enumerate(self._gates, start=1):
            bits = np.full_like(verdict, number << 32)
            for i, check in enumerate(checks):
                bits += frame[f"gate.{gate}.{check}"].astype(np.int64) << i
            verdict = np.where(stage == GATE_OF_STAGE[gate], bits, verdict)
        for env, slot in np.argwhere((verdict != self._verdict) & (verdict != 0)).tolist():
            gate, checks = self._gates[(int(verdict[env, slot]) >> 32) - 1]
            results = {check: bool(frame[f"gate.{gate}.{check}"][env, slot]) for check in checks}
            passed = all(results.values())
            self._emitter.emit(
                SeedGate(slot=self._slots[slot], gate=gate, passed=passed, checks=results), env=env
            )
        self._verdict = verdict


def _checks_by_gate(frame: HostFrame) -> list[tuple[str, list[str]]]:
    """The gates that seeds wait at and their checks, by the frame's columns, in a fixed order."""
    found: dict[str, list[str]] = {}
    for column in sorted(frame):
        if column.startswith("gate."):
            _, gate, check = column.split(".", 2)
            found.setdefault(gate, []).append(check)
    return list(found.items())

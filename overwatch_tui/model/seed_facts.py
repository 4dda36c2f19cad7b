"""Facts about one slot of an env in a round: packed stages and gates, and the numbers of its epochs.

A long run fills thousands of such places. As objects a fact takes half a KiB, packed a sixth of it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec

from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import Context, SeedGate, SeedStage, spec_of

COLUMNS = 6
"""Numbers of an epoch: epoch, time, number of its event, alpha, contribution, gradient norm."""
_LENGTH_BYTES = 4
_STAGE, _GATE = 0, 1
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class SeedFacts:
    """Facts about one slot of an env in a round: the fields of its events that a seed's life consists of.

    Args:
        owner: the only one that may change them.
    """

    __slots__ = ("_numbers_known", "_packed", "numbers", "owner")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.numbers = array("d")
        self._numbers_known = array("q")
        """Numbers of the events, in the order of arrival."""
        self._packed = bytearray()

    def __len__(self) -> int:
        return len(self._numbers_known)

    def copy(self, owner: object) -> SeedFacts:
        twin = SeedFacts(owner)
        twin.numbers, twin._numbers_known = self.numbers[:], self._numbers_known[:]
        twin._packed = self._packed[:]
        return twin

    def add(self, event: Event) -> None:
        """Take in a stage or a gate, once."""
        if event.seq in self._numbers_known:
            return
        data: SeedStage | SeedGate = event.data
        if isinstance(data, SeedStage):
            kind, values = _STAGE, _stage_values(data)
        else:
            kind, values = _GATE, _gate_values(data)
        packed = _pack((kind, event.seq, event.ts, event.ctx.epoch, values))
        self._numbers_known.append(event.seq)
        self._packed += len(packed).to_bytes(_LENGTH_BYTES, "little") + packed

    def events(self, round_: int, env: int, slot: str) -> Iterator[Event]:
        """The stages and gates of this place, in the order in which they came."""
        at, packed = 0, bytes(self._packed)
        while at < len(packed):
            begin = at + _LENGTH_BYTES
            at = begin + int.from_bytes(packed[at:begin], "little")
            kind, seq, ts, epoch, values = _unpack(packed[begin:at])
            data: Any = _stage(slot, *values) if kind == _STAGE else _gate(slot, *values)
            spec = spec_of(type(data))
            yield Event(seq, ts, spec.type, spec.stream, 1, Context(round=round_, epoch=epoch, env=env), data)


def _stage_values(data: SeedStage) -> tuple[Any, ...]:
    words = (data.from_stage, data.to_stage, data.blueprint, data.by, data.seed)
    return *words, data.alpha, data.parameters, data.contribution


def _stage(
    slot: str, from_: str, to: str, blueprint: str | None, by: Any, seed: str | None, *rest: Any
) -> SeedStage:
    alpha, parameters, contribution = rest
    return SeedStage(
        slot=slot,
        from_stage=sys.intern(from_),
        to_stage=sys.intern(to),
        blueprint=None if blueprint is None else sys.intern(blueprint),
        by=by,
        seed=seed,
        alpha=alpha,
        parameters=parameters,
        contribution=contribution,
    )


def _gate_values(data: SeedGate) -> tuple[Any, ...]:
    """Gate, verdict and failed checks."""
    return data.gate, data.passed, [check for check, passed in data.checks.items() if not passed]


def _gate(slot: str, gate: str, passed: bool, failed: list[str]) -> SeedGate:
    return SeedGate(
        slot=slot, gate=sys.intern(gate), passed=passed, checks={sys.intern(f): False for f in failed}
    )

"""The closed sets of names that all three packages use: stages, ops, styles, levels, severities, streams.

Standard library only. A `Literal` is what messages are typed with; the tuple beside it is made from it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, get_args

Stream = Literal["life", "metric", "trace", "log"]
STREAMS: tuple[Stream, ...] = get_args(Stream)
Level = Literal["OFF", "MINIMAL", "NORMAL", "DEBUG"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Telemetry levels, the least first."""
Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
SEVERITY_RANK: dict[str | None, int] = {None: -1, **{name: rank for rank, name in enumerate(SEVERITIES)}}
"""The mildest first; None, no trouble at all, comes before them."""
RunState = Literal["STARTING", "TRAINING", "PAUSED", "STOPPING"]
RunKindName = Literal["training", "published"]
"""Who trains: `esper-daemon`, or a loop of its user's own that calls `esper_overwatch.publish`."""
Initiator = Literal["policy", "auto", "operator", "governor"]
"""Who moved a seed from one stage to the next."""


class Stage(IntEnum):
    """Where a seed is in its life; the value is the code in tensors and on the wire."""

    DORMANT = 0
    GERMINATED = 1
    TRAINING = 2
    BLENDING = 3
    HOLDING = 4
    FOSSILIZED = 5
    PRUNED = 6
    EMBARGOED = 7
    RESETTING = 8


LEGAL_EDGES: frozenset[tuple[Stage, Stage]] = frozenset(
    [
        (Stage.DORMANT, Stage.GERMINATED),
        (Stage.GERMINATED, Stage.TRAINING),
        (Stage.TRAINING, Stage.BLENDING),
        (Stage.BLENDING, Stage.HOLDING),
        (Stage.HOLDING, Stage.BLENDING),
        (Stage.HOLDING, Stage.FOSSILIZED),
        (Stage.GERMINATED, Stage.PRUNED),
        (Stage.TRAINING, Stage.PRUNED),
        (Stage.BLENDING, Stage.PRUNED),
        (Stage.HOLDING, Stage.PRUNED),
        (Stage.PRUNED, Stage.EMBARGOED),
        (Stage.EMBARGOED, Stage.RESETTING),
        (Stage.RESETTING, Stage.DORMANT),
    ]
)

ISOLATED = (Stage.GERMINATED, Stage.TRAINING)
"""The seed runs and learns, the host does not notice (straight-through)."""
BLENDED = (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
"""The seed's output reaches the host's."""
LIVE = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
"""The seed's fate is open."""
WITH_SEED = (*LIVE, Stage.FOSSILIZED)
"""The slot holds a seed."""


class Op(IntEnum):
    """What the policy does to one slot."""

    WAIT = 0
    GERMINATE = 1
    ADVANCE = 2
    SET_ALPHA = 3
    PRUNE = 4
    FOSSILIZE = 5


class Style(IntEnum):
    """How a seed's output is blended into the host's."""

    ADD = 0
    MULTIPLY = 1
    GATE = 2


StyleName = Literal["ADD", "MULTIPLY", "GATE"]


class Curve(IntEnum):
    """The course of alpha between two values."""

    LINEAR = 0
    COSINE = 1
    SIGMOID_GENTLE = 2
    SIGMOID = 3
    SIGMOID_SHARP = 4


Tempo = Literal[3, 5, 8]
TEMPOS: tuple[int, ...] = get_args(Tempo)
"""Epochs of the blend that follows ADVANCE, chosen at germination."""
ALPHA_TARGETS: tuple[float, ...] = (0.5, 0.7, 1.0)
AlphaSpeed = Literal[0, 3, 5, 8]
ALPHA_SPEEDS: tuple[int, ...] = get_args(AlphaSpeed)
"""Epochs of a ramp asked for by SET_ALPHA or PRUNE; 0 lands at once."""

HEAD_NAMES: tuple[str, ...] = (
    "op",
    "slot",
    "blueprint",
    "style",
    "tempo",
    "alpha_target",
    "alpha_speed",
    "alpha_curve",
)

HEADS_OF_OP: dict[Op, tuple[str, ...]] = {
    Op.WAIT: (),
    Op.GERMINATE: ("slot", "blueprint", "style", "tempo"),
    Op.ADVANCE: ("slot", "alpha_target", "alpha_curve"),
    Op.SET_ALPHA: ("slot", "alpha_target", "alpha_speed", "alpha_curve"),
    Op.PRUNE: ("slot", "alpha_speed", "alpha_curve"),
    Op.FOSSILIZE: ("slot",),
}
"""Which heads matter beside `op`; the others carry no log-probability and no gradient."""

GATE_OF_OP: dict[Op, str] = {Op.GERMINATE: "G0", Op.ADVANCE: "G2", Op.FOSSILIZE: "G5"}
"""The gate that an op has to pass."""

"""Names and codes of stages, ops and the other factors of an action: defined here, sent everywhere else."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


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
IS_ISOLATED, IS_BLENDED = (np.isin(list(Stage), stages) for stages in (ISOLATED, BLENDED))
"""The same as bool arrays, by stage."""


class Op(IntEnum):
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


class Curve(IntEnum):
    LINEAR = 0
    COSINE = 1
    SIGMOID_GENTLE = 2
    SIGMOID = 3
    SIGMOID_SHARP = 4


TEMPOS: tuple[int, ...] = (3, 5, 8)
"""Epochs of the blend that follows ADVANCE, chosen at germination."""
ALPHA_TARGETS: tuple[float, ...] = (0.5, 0.7, 1.0)
ALPHA_SPEEDS: tuple[int, ...] = (0, 3, 5, 8)
"""Epochs of a ramp asked for by SET_ALPHA or PRUNE; 0 lands at once."""

HEAD_NAMES: tuple[str, ...] = (
    "op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve",
)  # fmt: skip

HEADS_OF_OP: dict[Op, tuple[str, ...]] = {
    Op.WAIT: (),
    Op.GERMINATE: ("slot", "blueprint", "style", "tempo"),
    Op.ADVANCE: ("slot", "alpha_target", "alpha_curve"),
    Op.SET_ALPHA: ("slot", "alpha_target", "alpha_speed", "alpha_curve"),
    Op.PRUNE: ("slot", "alpha_speed", "alpha_curve"),
    Op.FOSSILIZE: ("slot",),
}
"""Which heads matter beside `op`; the others carry no log-probability and no gradient."""


def slot_names(rows: int, columns: int) -> list[str]:
    """`r0c0`, `r0c1`, … row-major."""
    return [f"r{r}c{c}" for r in range(rows) for c in range(columns)]

"""Names that are both an enum and a Literal say the same."""

from __future__ import annotations

from typing import get_args

from esper_overwatch.protocol.messages.vocabulary import (
    HEAD_NAMES,
    HEADS_OF_OP,
    LEGAL_EDGES,
    SEVERITIES,
    SEVERITY_RANK,
    Op,
    Stage,
    Style,
    StyleName,
)


def test_style_names_are_the_styles() -> None:
    assert get_args(StyleName) == tuple(style.name for style in Style)


def test_every_op_names_its_heads() -> None:
    assert set(HEADS_OF_OP) == set(Op)
    assert {head for heads in HEADS_OF_OP.values() for head in heads} == set(HEAD_NAMES) - {"op"}


def test_every_stage_can_be_entered_and_left() -> None:
    assert {a for a, _ in LEGAL_EDGES} == set(Stage) - {Stage.FOSSILIZED}
    assert {b for _, b in LEGAL_EDGES} == set(Stage)


def test_severities_rank_from_mild_to_critical() -> None:
    assert sorted(SEVERITIES, key=SEVERITY_RANK.__getitem__) == ["info", "warning", "critical"]
    assert SEVERITY_RANK[None] < SEVERITY_RANK["info"]

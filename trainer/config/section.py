"""Building blocks of option sections: a node of the tree, and options that are bounded numbers."""

from __future__ import annotations

from msgspec import Meta, Struct


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node of the tree: unknown keys are errors."""


def count(description: str, *, ge: int = 1, le: int = 1_000_000) -> Meta:
    return Meta(ge=ge, le=le, description=description)


def number(description: str, *, ge: float = 0.0, le: float = 1e9) -> Meta:
    return Meta(ge=ge, le=le, description=description)

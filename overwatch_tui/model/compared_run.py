"""A run whose curves are laid over those of the run that is watched."""

from __future__ import annotations

from dataclasses import dataclass, field

from .curves import Curves


@dataclass
class ComparedRun:
    """One that is drawn under a letter, by the time since it began."""

    mark: str
    """Its letter; the run that is watched is `a`."""
    name: str
    begin: int
    """When it began, microseconds."""
    curves: Curves = field(default_factory=Curves)

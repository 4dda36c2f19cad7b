"""Cases of a product that `make nightly` runs, and neither the default tests nor CI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def nightly(*values: object) -> Any:
    """The arguments of a parametrized test, or of a fixture, with the marker."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def mostly_nightly(cases: Iterable[Any], *always: object) -> list[Any]:
    """The cases, all but some with the marker."""
    found = list(cases)
    assert set(always) <= set(found), "each of these is a case"
    return [case if case in always else nightly(case) for case in found]

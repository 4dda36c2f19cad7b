"""A case of a product that `make nightly` runs, and neither the default tests nor CI."""

from __future__ import annotations

from typing import Any

import pytest


def nightly(*values: object) -> Any:
    """The arguments of a parametrized test, or of a fixture, with the marker."""
    return pytest.param(*values, marks=pytest.mark.nightly)

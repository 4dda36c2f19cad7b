"""The table of mutants fits the code, and its runner tells a mutant that is seen from one that is not."""

from __future__ import annotations

import pytest

from .__main__ import ROOT
from .table import CHAOS, MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_applies_to_the_code_of_today(mutant: Mutant) -> None:
    compile(mutant.applied(ROOT), mutant.file, "exec")
    assert all(killer == CHAOS or (ROOT / killer).exists() for killer in mutant.killers)

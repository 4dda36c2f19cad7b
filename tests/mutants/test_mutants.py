"""The table of mutants fits the code, and its runner tells a mutant that is seen from one that is not."""

from __future__ import annotations

import pytest

from .__main__ import ROOT
from .table import CHAOS, MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_applies_to_the_code_of_today(mutant: Mutant) -> None:
    compile(mutant.applied(ROOT), mutant.file, "exec")
    assert all(killer == CHAOS or (ROOT / killer).exists() for killer in mutant.killers)


def test_the_page_has_a_row_for_each_mutant() -> None:
    page = (ROOT / "docs/lab/mutants.md").read_text()
    rows = [line.split("`")[1:4:2] for line in page.splitlines() if line.startswith("| `")]
    assert rows == [[mutant.name, mutant.file] for mutant in MUTANTS]

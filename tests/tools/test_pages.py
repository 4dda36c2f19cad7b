"""The pages made of the tests' markers are up to date, and every fault has a test."""

from __future__ import annotations

from types import ModuleType

import pytest

from tools import faults_page as faults
from tools import findings_page as findings
from tools.markers import holders


def test_every_fault_has_a_test_and_no_other() -> None:
    assert set(holders("fault")) == set(faults.FAULTS) == set(range(1, 47))


def test_every_finding_has_a_test_and_no_other() -> None:
    assert set(holders("finding")) == set(findings.FINDINGS)


@pytest.mark.parametrize("module", [faults, findings], ids=lambda module: module.__name__)
def test_the_page_is_up_to_date(module: ModuleType) -> None:
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), f"python -m {module.__name__}"

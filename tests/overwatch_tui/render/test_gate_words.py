"""Gates and rollbacks in words that a person reads."""

from __future__ import annotations

import pytest

from esper_overwatch.overwatch_tui.render.seed_row import gate_verdict
from esper_overwatch.protocol.messages.events import GovernorRollback
from esper_overwatch.trainer.config.load import load
from esper_overwatch.trainer.governor import RollbackReason
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.seeds.lifecycle import Lifecycle
from esper_overwatch.trainer.seeds.table import SlotTable


@pytest.mark.parametrize(
    ("failed", "text"),
    [
        ((), "ok"),
        (("healthy",), "fails: unhealthy gradients"),
        (("alpha_at_one", "not_moving"), "waits: alpha"),
        (("min_epochs", "healthy"), "fails: unhealthy gradients"),
        (("of_a_plugin",), "fails: of a plugin"),
    ],
)
def test_a_gate_says_what_it_waits_for_or_refuses(failed: tuple[str, ...], text: str) -> None:
    verdict, why, _ = gate_verdict(failed)
    assert (f"{verdict}: {why}" if why else verdict) == text


def test_every_check_of_every_gate_has_words() -> None:
    config = load(sets=["seeds.gates=strict", "seeds.max_live=2", "seeds.one_at_a_time=true"])
    gates = Lifecycle(config).gates(SlotTable.empty(1, 2), Measurements.unmeasured(1, 2))
    for checks in gates.values():
        for name in checks:
            assert gate_verdict((name,))[1] != name.replace("_", " "), name


@pytest.mark.parametrize("reason", ["lobotomy", *(r.name.lower() for r in RollbackReason if r)])
def test_rollbacks_of_every_version_have_words(reason: str) -> None:
    cause = GovernorRollback(reason=reason, loss=2.3, restored_epoch=1, penalty=0.0).cause
    assert " " in cause
    if reason in ("lobotomy", "collapse"):
        assert cause == "collapsed to chance"

"""The bars at top and bottom."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import pytest

from esper_overwatch.overwatch_tui.render.bars import header_line
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.summary import summary
from esper_overwatch.protocol.messages import events as ev
from tests.overwatch_tui.harness import events, folded, panel_inputs


@pytest.mark.parametrize(("last", "epoch"), [(ev.RoundStarted, 0), (ev.EpochFinished, 1)])
def test_epoch_is_of_the_round_beside_it(last: type, epoch: int) -> None:
    third = next(event for event in events() if event.ctx.round == 3 and isinstance(event.data, last))
    before = takewhile(lambda event: event is not third, events())
    made = panel_inputs(folded([*before, third]))
    assert f"round 3/400  epoch {epoch}/24" in plain(header_line(made, 120))
    assert (summary(made)["round"], summary(made)["epoch"]) == (3, epoch)


def test_an_escalation_is_named_before_the_next_epoch() -> None:
    begun = [event for event in events() if event.ctx.round < 3]
    made = panel_inputs(folded(begun))
    assert made.state.ctx.level == "NORMAL"
    asked = ev.TelemetryLevel(level="DEBUG", previous="NORMAL", reason="", epochs=5, command="a")
    made.state.fold(replace(begun[-1], stream="life", type="telemetry.level", seq=10**6, data=asked))
    assert " DEBUG 5ep" in plain(header_line(made, 120))

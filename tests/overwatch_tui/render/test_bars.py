"""The bars at top and bottom."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import pytest

from esper_overwatch.overwatch_tui.render.bars import header_line, incident_line
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.summary import summary
from esper_overwatch.protocol.messages import events as ev
from esper_overwatch.protocol.messages.events import Incident
from tests.overwatch_tui.harness import events, folded, panel_inputs
from tests.overwatch_tui.model.test_incidents import incident


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


LAST = events(rounds=1)[-1].ts
WIDE = incident(
    "b1-1",
    "critical",
    since=LAST - 40_000_000,
    scope="6 of 16 envs, 9 seeds, all lora",
    suspect="host.learning_rate 0.05 -> 0.5 by esper-tui, uid 1000",
    undo="param.set key=host.learning_rate value=0.05",
)
OTHER = incident("b1-2", "warning", since=LAST, title="policy moves too far", source="policy", scope="policy")
NOTED = incident("b1-3", "info", since=LAST, title="accuracy does not rise", scope="env03")
RATE = "host.learning_rate 0.05 -> 0.5"
ALL = "exploding gradients: 6 of 16 envs, 9 seeds, all lora 40s after"
QUIET = " ok no incident is open  │ noted: accuracy does not rise, env03  │ last epoch 0.2s ago"
FIRST_LINES: dict[str, tuple[list[Incident], dict[int, str]]] = {
    "one": (
        [WIDE],
        {
            80: f" CRIT  exploding gradients: 6/16 envs < {RATE}  n guide",
            120: f" CRIT  {ALL} {RATE}  n guide",
            200: f" CRIT  {ALL} {WIDE.suspect}  n guide",
        },
    ),
    "several": (
        [WIDE, OTHER, NOTED],
        {
            80: f" CRIT  exploding gradients: 6/16 envs < {RATE}  n guide",
            120: f" CRIT  {ALL} {RATE}  +1  n guide",
            200: f" CRIT  {ALL} {WIDE.suspect}  +1  n guide",
        },
    ),
    "noted": (
        [NOTED],
        {80: QUIET.rpartition("  │")[0], 120: QUIET, 200: QUIET},
    ),
}


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("name", FIRST_LINES)
def test_first_line_says_what_why_and_next(name: str, width: int) -> None:
    told, expected = FIRST_LINES[name]
    line = _first_line(told, width)
    assert len(line) <= width
    assert " ".join(line.split()) == " ".join(expected[width].split())


@pytest.mark.parametrize("width", [80, 120, 200])
def test_first_line_leads_on_from_what_is_seen(width: int) -> None:
    assert "2 list" in _first_line([WIDE], width, is_acked=True)
    line = _first_line([WIDE, OTHER], width, is_acked=True)
    assert "WARN policy moves too far: policy 0.0s" in " ".join(line.split()), "what nobody has seen"
    stale = _first_line([WIDE], width, state="stale", age_seconds=7.2)
    assert "STALE" in stale
    assert "exploding" not in stale
    assert "1 unacked before" in stale


def _first_line(told: list[Incident], width: int, *, is_acked: bool = False, **link: object) -> str:
    made = panel_inputs(folded(events(rounds=1)), **link)
    for each in told:
        made.state.incidents.fold(each)
    if is_acked:
        made.state.incidents.ack(WIDE.id, made.now)
    return plain(incident_line(made, width))

"""The panel of the PPO update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overwatch_tui.panels import policy
from overwatch_tui.render.view_state import ViewState
from protocol.messages.events import RoundFinished
from tests.overwatch_tui.harness import events, folded, panel_inputs


def drawn(type_: type, **changes: Any) -> str:
    """The panel after a run whose newest event of a type is another."""
    found = list(events(envs=4, rounds=1))
    at = max(i for i, event in enumerate(found) if isinstance(event.data, type_))
    state = folded([*found, replace(found[at], data=replace(found[at].data, **changes))])
    lines = policy.body(panel_inputs(state, ViewState(name="policy")), 110, 30).lines
    return "\n".join("".join(text for text, _ in line) for line in lines)


def test_components_of_the_return_are_shown_with_shares() -> None:
    paid = {"gain": 1.0, "rent": -0.2, "rollback": 0.0}
    shown = drawn(RoundFinished, return_mean=0.8, reward_components=paid)
    assert " return   +0.800 =  gain +1.000 125%  rent -0.200 -25%  rollback +0.000" in shown
    assert " return   " not in drawn(RoundFinished, return_mean=0.8), "an older run does not tell them"
    assert "gain +1.000" in drawn(RoundFinished, return_mean=0.0, reward_components=paid)

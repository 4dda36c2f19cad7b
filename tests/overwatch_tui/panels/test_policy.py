"""The policy's panel: what its update and its returns consist of, and how it fares on held-out hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from esper_overwatch.overwatch_tui.panels import policy
from esper_overwatch.overwatch_tui.render.signals import signal_of
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.protocol.messages.events import EvaluationFinished, RoundFinished
from tests.overwatch_tui.harness import after_all, draw, events, folded, panel_inputs

MEANS = {"return": 0.5, "accuracy": 0.8, "test_accuracy": 0.75, "added_parameters": 306.0, "fossilized": 2.0}
LEAD = {
    "no_growth": {"mean": 0.25, "low": 0.2, "high": 0.3},
    "constant": {"mean": -0.02, "low": -0.05, "high": 0.01},
}


def evaluation(kind: str, return_mean: float, **changed: Any) -> EvaluationFinished:
    told = EvaluationFinished(
        policy=kind,
        is_rival=kind != "ppo",
        hosts=40,
        seconds=12.0,
        return_mean=return_mean,
        accuracy_mean=0.8,
        test_accuracy_mean=0.75,
        added_parameters_mean=306.0,
        fossilized_mean=2.0,
        return_components={"gain": return_mean},
        op_fraction={"WAIT": 1.0},
        tasks={"digits": MEANS},
    )
    return replace(told, **changed)


def inputs(*told: EvaluationFinished, selected: bool = False) -> Any:
    found = list(events(envs=4, rounds=2))
    last = found[-1]
    for number, each in enumerate(told, 1):
        ctx = replace(last.ctx, round=10 * number)
        at = {"ts": last.ts + 20_000_000 * number, "seq": last.seq + number}
        found.append(replace(last, data=each, ctx=ctx, type="evaluation.finished", **at))
    view = ViewState()
    view.show_view("policy")
    if selected:
        view.select("policy", policy.HELD_OUT)
    return panel_inputs(folded(found), view)


def test_newest_evaluation_is_a_sentence_with_its_leads() -> None:
    first, last = evaluation("ppo", 0.25), evaluation("ppo", 0.5, leads=LEAD)
    text = draw(inputs(evaluation("no_growth", 0.1), first, last), 160, 40)
    assert " held-out PPO +0.50  test 75.0 after round 30: 0.25±0.05 above no_growth, level with" in text
    assert "level with constant (-0.02±0.03)" in text


def test_sentence_fits_eighty_columns() -> None:
    leads = {"fixed": {"mean": -0.06, "low": -0.09, "high": -0.03}, "no_growth": LEAD["no_growth"]}
    text = draw(inputs(evaluation("ppo", 0.74, leads=leads)), 80, 24)
    assert " held-out PPO +0.74 after r10: 0.06 below fixed, 0.25 above no_growth" in text
    text = draw(inputs(evaluation("ppo", 0.74, leads=LEAD)), 80, 24)
    assert " held-out PPO +0.74 after r10: 0.25 above no_growth, level with constant" in text


def test_curve_shows_the_rivals_as_levels_at_eighty_columns() -> None:
    rivals = evaluation("no_growth", 1.0), evaluation("fixed", 8.0)
    text = draw(inputs(*rivals, evaluation("ppo", 3.0), evaluation("ppo", 4.0)), 80, 24)
    head = next(line for line in text.splitlines() if "; held-out" in line)
    assert "return  p50; held-out PPO and rivals" in head
    chart = text[text.index(head) :]
    assert "+8.00" in chart, "the axis holds the rivals"
    assert all(name in chart[len(head) :] for name in ("PPO", "fixed", "no_growth"))


def test_without_an_evaluation_nothing_is_said_of_it() -> None:
    assert "held-out" not in draw(inputs(evaluation("no_growth", 0.1)), 160, 40)


def test_before_the_first_evaluation_its_round_is_told() -> None:
    made = inputs(evaluation("no_growth", 0.1), evaluation("fixed", 0.8))
    assert made.state.run is not None
    made.state.run = replace(made.state.run, config=made.state.run.config | {"evaluation": {"rounds": 10}})
    assert " held-out first after round 10  no_growth +0.10  fixed +0.80" in draw(made, 80, 24)


def test_its_row_opens_the_curves() -> None:
    made = inputs(evaluation("ppo", 0.25), evaluation("ppo", 0.5, leads=LEAD), selected=True)
    names = policy.charts(made)
    assert list(names) == [
        "evaluation.return",
        "evaluation.accuracy",
        "evaluation.parameters",
        "lead.no_growth",
        "lead.constant",
    ]
    labels = [signal_of(made.state, name).label for name in names]
    assert labels[0] == "held-out return"
    assert labels[3] == "lead in held-out return over no_growth"
    assert [made.history(name).last for name in names] == [0.5, 0.75, 306.0, 0.25, -0.02]


def drawn(type_: type, **changes: Any) -> str:
    """The panel after a run whose newest event of a type is another."""
    found = list(events(envs=4, rounds=1))
    at = max(i for i, event in enumerate(found) if isinstance(event.data, type_))
    state = folded([*found, after_all(found[at], data=replace(found[at].data, **changes))])
    lines = policy.body(panel_inputs(state, ViewState(name="policy")), 110, 30).lines
    return "\n".join("".join(text for text, _ in line) for line in lines)


def test_components_of_the_return_are_shown_with_shares() -> None:
    paid = {"gain": 1.0, "rent": -0.2, "rollback": 0.0}
    shown = drawn(RoundFinished, return_mean=0.8, reward_components=paid)
    assert " return   +0.800 =  gain +1.000 125%  rent -0.200 -25%" in shown
    assert " return   " not in drawn(RoundFinished, return_mean=0.8), "an older run does not tell them"
    assert "gain +1.000" in drawn(RoundFinished, return_mean=0.0, reward_components=paid)


def test_lead_of_a_daemon_that_tells_less_is_left_out() -> None:
    page = draw(inputs(evaluation("ppo", 0.7, leads={"fixed": {}, "random": {"mean": 0.25}})), 120, 20)
    assert "after round 10: +0.25 to random" in page
    assert "fixed" not in page


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"policy": "fixed"}, "no updates: the policy fixed is a rule"),
        ({"config": {"policy": {"learn": False}}}, "no updates: the policy stays as it is"),
        ({}, "no update yet"),
    ],
)
def test_policy_without_updates_shows_what_it_got(changes: dict[str, Any], told: str) -> None:
    made = inputs(evaluation("ppo", 0.5, leads=LEAD))
    state = made.state
    state.ppo, state.run = None, replace(state.run, **changes)
    page = draw(panel_inputs(state, made.view), 160, 40)
    assert told in page
    assert "held-out PPO +0.50" in page
    assert "returns  p10" in page

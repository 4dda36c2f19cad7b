"""The panel of one env."""

from __future__ import annotations

from dataclasses import replace

from esper_overwatch.overwatch_tui.panels import env, envs
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.messages.events import EpisodeFinished, EpochFinished
from tests.overwatch_tui.harness import after_all, events, folded, panel_inputs


def test_fp16_scale_and_skipped_steps_are_shown() -> None:
    found = list(events(envs=4, rounds=1))
    at = max(i for i, event in enumerate(found) if isinstance(event.data, EpochFinished))
    scaled = replace(found[at].data, loss_scale=[65536.0, 65536.0, 0.5, 65536.0], skipped_steps=[0, 0, 7, 0])

    def drawn(*more: Event) -> str:
        lines = env.body(panel_inputs(folded([*found, *more]), ViewState(env=2)), 110, 12).lines
        return "\n".join("".join(text for text, _ in line) for line in lines)

    plain, shown = drawn(), drawn(after_all(found[at], data=scaled))
    assert "fp16" not in plain
    assert "fp16 scale 0.50 skipped 7" in shown


def test_learning_rates_of_hosts_and_seeds_are_shown() -> None:
    found = list(events(envs=4, rounds=1))
    at = max(i for i, event in enumerate(found) if isinstance(event.data, EpochFinished))

    def drawn(host: float | None, seeds: float | None) -> str:
        data = replace(found[at].data, host_learning_rate=host, seed_learning_rate=seeds)
        state = folded([*found, after_all(found[at], data=data)])
        lines = env.body(panel_inputs(state, ViewState(env=2)), 110, 12).lines
        return "\n".join("".join(text for text, _ in line) for line in lines)

    assert " lr " not in drawn(None, None)
    assert " lr 2.5e-02 " in drawn(0.025, 0.025)
    assert " of seeds " not in drawn(0.025, 0.025)
    assert " lr 2.5e-02 of seeds 1.0e-03" in drawn(0.025, 0.001)


def test_a_decision_is_explained_where_a_network_took_it() -> None:
    found = list(events(envs=4, rounds=1))
    at = max(i for i, event in enumerate(found) if isinstance(event.data, EpochFinished))

    def drawn(**changes: object) -> str:
        data = replace(found[at].data, op=[4] * 4, action_slot=[1] * 4, **changes)
        state = folded([*found, after_all(found[at], data=data)])
        lines = env.detail(panel_inputs(state, ViewState(env=2)), 110, 30).lines
        return next(text for line in lines if "decided" in (text := "".join(part for part, _ in line)))

    by_op = [[0.41, 0.0, 0.0, 0.07, 0.52, 0.0]] * 4
    told = drawn(probability=[0.34] * 4, op_probability=by_op, value=[0.61] * 4)
    assert told.rstrip() == " decided PRUNE r0c1, p .34 (op .52), value +.61; else WAIT .41"
    assert drawn(probability=[], op_probability=[], value=[]).rstrip() == " decided PRUNE r0c1"


def test_last_episode_is_shown_with_its_round() -> None:
    found = list(events(envs=4, rounds=1))
    ended = EpisodeFinished(
        total_return=3.25,
        reward_components={"gain": 3.5, "rent": -0.25},
        accuracy=0.5,
        parameters=2000,
        added_parameters=1200,
        seeds={"FOSSILIZED": 1, "PRUNED": 2},
        rollbacks=3,
    )
    ctx = replace(found[-1].ctx, round=7, env=2)

    def drawn(env_: int) -> str:
        state = folded([*found, after_all(found[-1], data=ended, ctx=ctx)])
        lines = env.detail(panel_inputs(state, ViewState(env=env_)), 110, 30).lines
        return "\n".join("".join(text for text, _ in line) for line in lines)

    assert "episode (round 7)" not in drawn(1)
    line = next(one for one in drawn(2).splitlines() if "episode (round 7)" in one)
    assert "return +3.25  acc 50.0  params +1.2K  fossilized 1  pruned 2  rollbacks 3" in line
    assert "of which   gain +3.500  rent -0.250" in drawn(2)


def test_copies_of_a_host_are_told_as_such() -> None:
    inputs = panel_inputs(folded(list(events(envs=4, rounds=1))), ViewState(env=3))
    assert inputs.state.run is not None
    assert envs.title(inputs) == "ENVS 4"
    inputs.state.run = replace(inputs.state.run, config=inputs.state.run.config | {"envs": {"copies": 2}})
    assert envs.title(inputs) == "ENVS 4: 2 hosts, 2 copies each"
    first = "".join(part for part, _ in env.detail(inputs, 110, 30).lines[0])
    assert "host 1, copy 2 of 2" in first

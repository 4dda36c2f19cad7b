"""What lies behind details: layers, profile, configuration; and the host as a line of boxes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.panels import PANELS, layers, profile, system
from esper_overwatch.overwatch_tui.panels.env import host_lines
from esper_overwatch.overwatch_tui.render.lines import Line, plain
from esper_overwatch.overwatch_tui.render.theme import ASCII
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.protocol.messages import events as ev
from tests.overwatch_tui.harness import events, in_loop, panel_inputs, session, state
from tests.overwatch_tui.scenes import measured
from tests.overwatch_tui.test_app import press, shown


def text_of(lines: list[Line]) -> str:
    return "\n".join(map(plain, lines))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_host_names_blocks_and_what_lives_in_each_slot(width: int) -> None:
    lines = host_lines(panel_inputs(state(), ViewState(glyphs=ASCII)), 7, width)
    assert len(lines) == 1
    wanted = " block0-[r0c0 H8 conv_light]-block1-[r0c1 H14 depthwise]-block2-[r0c2 .]-head"
    assert plain(lines[0]).rstrip() == wanted


def test_host_of_many_slots_takes_more_lines_and_cuts_nothing() -> None:
    inputs = panel_inputs(state(envs=8, rounds=1, slots=10), ViewState())
    text = text_of(host_lines(inputs, 0, 80))
    assert all(f"[r0c{slot} " in text for slot in range(10))
    assert text.rstrip().endswith("head")
    assert len(text.splitlines()) > 1


@in_loop
async def test_env_page_draws_rows_of_slots_behind_their_block() -> None:
    names = ["r0c0", "r1c0", "r0c1"]
    found = [
        replace(event, data=replace(event.data, slots=names))
        if isinstance(event.data, ev.RunStarted)
        else event
        for event in events(rounds=1)
    ]
    app = OverwatchApp(session(found))
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "e", "0", "7", "enter")
        line = next(line for line in shown(app).splitlines() if "block0" in line)
        assert [word[:4] for word in line.replace("─", " ").split("[")[1:]] == names
        assert re.sub(r"\[[^]]*\]", "S", line).strip(" ─│") == "block0─S─S─block1─S─head"


def with_rates(known: State) -> State:
    copied = known.frozen_copy()
    assert copied.epoch is not None
    copied.epoch = replace(copied.epoch, host_learning_rate=0.5, seed_learning_rate=0.25)
    return copied


def test_layers_show_dead_share_and_update_ratio() -> None:
    view = ViewState(env=7)
    inputs = panel_inputs(with_rates(measured()), view)
    rows = {row.name: row for row in layers.layer_rows(inputs, 7)}
    assert rows["block0.conv.weight"].update == pytest.approx(0.5 * 0.57 / 10)
    assert rows["r0c0.conv_light.weight"].update == pytest.approx(0.25 * 1.57 / 10)
    assert (rows["head.out"].zero, rows["head.out"].norm, rows["head.out"].weight) == (1.0, None, None)
    text = text_of(layers.body(inputs, 80, 19).lines)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "100.0" in next(line for line in text.splitlines() if "head.out" in line)


def test_layers_sort_by_each_column_both_ways() -> None:
    view = ViewState(env=7)
    inputs = panel_inputs(with_rates(measured()), view)
    for column, name in enumerate(layers.ORDERS[1:], 1):
        assert view.cycle_order("layers", len(layers.ORDERS)) == column
        values = [getattr(row, name) for row in layers.layer_rows(inputs, 7)]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=True), name
        assert values[: len(known)] == known, "what was not measured comes last"
        assert view.cycle_order("layers", len(layers.ORDERS)) == column
        assert [getattr(row, name) for row in layers.layer_rows(inputs, 7)] == values[::-1]
    assert view.cycle_order("layers", len(layers.ORDERS)) == 0


def test_profile_sorts_and_shows_the_whole_path() -> None:
    view = ViewState()
    inputs = panel_inputs(measured(), view)
    assert inputs.state.profile is not None
    text = text_of(profile.body(inputs, 80, 19).lines)
    assert inputs.state.profile.path in text.replace("\n  ", "").replace(" ", "")
    assert "tensorboard --logdir /var/lib/esper/runs/digits-7f3a/traces" in text
    assert next(row["name"] for row in profile.operators(inputs)) == "aten::conv2d"
    view.orders["profile"] = (profile.ORDERS.index("calls"), False)
    assert [row["calls"] for row in profile.operators(inputs)] == [840, 420, 20]
    view.orders["profile"] = (profile.ORDERS.index("name"), True)
    assert next(row["name"] for row in profile.operators(inputs)) == "aten::relu_"


def test_a_long_setting_is_shown_whole_when_selected() -> None:
    known = measured().frozen_copy()
    assert known.run is not None
    value = "x" * 70 + "END"
    known.run = replace(known.run, config={"host": {"name": value}, "seed": 1})
    view = ViewState(name="machine", detail=True)
    view.select("system", "host.name")
    text = text_of(system.detail(panel_inputs(known, view), 80, 19).lines)
    assert value in text.replace("\n", "").replace(" ", "")
    view.select("system", "seed")
    assert "END" not in text_of(system.detail(panel_inputs(known, view), 80, 19).lines)


@in_loop
async def test_layers_and_profile_are_panels_once_measured() -> None:
    app = OverwatchApp(session(events(rounds=1)))
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "4")
        assert "Tab: drift" in shown(app, "box-views")
        app.session.state.layers = measured().layers
        app.session.state.layers_ctx = measured().layers_ctx
        app.session.state.profile = measured().profile
        await press(pilot, "tab", "tab")
        assert "LAYERS of env" in shown(app)
        assert "block0.conv.weight" in shown(app)
        await press(pilot, "s", "s", "s")
        assert "by rms" in shown(app)
        await press(pilot, "s")
        assert "by rms turned" in shown(app)
        await press(pilot, "escape", "5")
        assert "LAYERS" not in shown(app)
        PANELS.show(app.session.view, "profile")
        await press(pilot, "j")
        assert "aten::relu_" in shown(app)
        assert "perfetto" in shown(app)
        await press(pilot, "1", "enter")
        assert "layers measured in round 1, epoch 24  :show layers" in shown(app)

"""The table of panels: names, keys and places."""

from __future__ import annotations

import copy

import pytest

from esper_overwatch.overwatch_tui.panels import PANELS, VIEWS, seeds
from esper_overwatch.overwatch_tui.render.layout import (
    MIN_WIDTH,
    THREE_COLUMNS,
    TWO_COLUMNS,
    compose_screen,
    main_columns,
)
from esper_overwatch.overwatch_tui.render.panel import Panel, PanelTable, Place
from esper_overwatch.overwatch_tui.render.view_state import Scroll, ViewState
from tests.overwatch_tui.harness import panel_inputs, state


def test_names_keys_and_places_are_unique() -> None:
    panels = list(PANELS)
    keys = [panel.key for panel in panels if panel.key]
    assert len({panel.name for panel in panels}) == len(panels)
    assert len(set(keys)) == len(keys) == len(VIEWS)
    assert all(panel.tab[1] for panel in PANELS.views)
    for num_columns in (1, 2, 3):
        places = [panel.place[num_columns - 1] for panel in panels if panel.place[num_columns - 1]]
        assert len(set(places)) == len(places)
        assert {place[0] for place in places} == set("abc"[:num_columns])


def test_columns_follow_the_places_and_the_width() -> None:
    renderer = PANELS["empty"].renderer
    table = PanelTable(
        Panel("low", renderer, Place("a2", "b2", "c2")),
        Panel("high", renderer, Place("a1", "a1", "b1")),
        Panel("right", renderer, Place("", "b1", "c1")),
        Panel("left", renderer, Place("", "", "a1")),
        Panel("nowhere", renderer),
    )
    assert main_columns(table, MIN_WIDTH) == [(MIN_WIDTH, ["high", "low"])]
    assert [names for _, names in main_columns(table, TWO_COLUMNS)] == [["high"], ["right", "low"]]
    widths, names = zip(*main_columns(table, THREE_COLUMNS), strict=True)
    assert sum(widths) == THREE_COLUMNS
    assert names == (["left"], ["high"], ["right", "low"])


@pytest.mark.parametrize("detail", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_drawing_changes_neither_view_nor_state(view: str, detail: bool) -> None:
    chosen = ViewState(name=view, focus=view, detail=detail, env=3)
    inputs = panel_inputs(state().frozen_copy(), chosen)
    before = copy.deepcopy((chosen, inputs.state))
    compose_screen(PANELS, inputs, inputs, 120, 40)
    assert (chosen, inputs.state.log, inputs.state.last_round) == (
        before[0],
        before[1].log,
        before[1].last_round,
    )


def test_next_drawing_begins_where_the_last_one_was() -> None:
    inputs = panel_inputs(state(), ViewState(env=15, sort="env"))
    layout = compose_screen(PANELS, inputs, inputs, 80, 12)
    scroll = layout.scroll["envs"]
    assert scroll.start + scroll.height == 16
    inputs.view.keep(layout.scroll, layout.env)
    inputs.view.env = scroll.start
    assert compose_screen(PANELS, inputs, inputs, 80, 12).scroll["envs"] == scroll
    inputs.view.env = 0
    assert compose_screen(PANELS, inputs, inputs, 80, 12).scroll["envs"] == Scroll(
        0, scroll.height, scroll.top
    )


def test_detail_of_a_seed_selects_its_env() -> None:
    view = ViewState(name="seeds", focus="seeds", detail=True, env=15)
    inputs = panel_inputs(state(), view)
    third = seeds.keys(inputs)[2]
    view.select("seeds", third)
    layout = compose_screen(PANELS, inputs, inputs, 80, 24)
    view.keep(layout.scroll, layout.env)
    assert view.env == third[0] != 15


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("detail", [False, True])
def test_a_screen_of_one_column_is_drawn(view: str, detail: bool) -> None:
    """F8 writes the screen whatever its size."""
    inputs = panel_inputs(state(), ViewState(name=view, focus=view, detail=detail))
    for width, height in ((1, 1), (2, 3), (1, 24), (80, 1)):
        compose_screen(PANELS, inputs, inputs, width, height)

"""The help of a view: its fields and diagnosis before all that can be done."""

from __future__ import annotations

import pytest

from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.panels.field_help import FIELD_HELP
from esper_overwatch.overwatch_tui.render.lines import plain, sign_cuts
from esper_overwatch.overwatch_tui.render.theme import ASCII
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.screens.line_widget import LinePanel
from esper_overwatch.overwatch_tui.screens.palette import PaletteScreen
from tests.overwatch_tui.harness import events, in_loop, session
from tests.overwatch_tui.test_app import SMALL, app_of, press


def test_every_panel_explains_its_fields() -> None:
    for table in (PANELS, PANELS.of(is_published=True)):
        assert {name for view in table.views for name in view.one} <= set(FIELD_HELP)
    for view in PANELS.views:
        assert FIELD_HELP[view.one[0]].diagnosis, view.name


@pytest.mark.parametrize("view", PANELS.views, ids=lambda view: view.name)
@in_loop
async def test_help_of_a_view_is_whole_at_eighty_columns(view: object) -> None:
    name = view.one[0]  # type: ignore[attr-defined]
    app = app_of(session(events(rounds=1), ViewState(glyphs=ASCII)))
    async with app.run_test(size=SMALL) as pilot:
        PANELS.show(app.session.view, name)
        await press(pilot, "question_mark")
        assert isinstance(app.screen, PaletteScreen)
        lines = [plain(line) for line in sign_cuts(app.screen._list(80)[0], ASCII.cut)]
        words = " ".join(" ".join(lines).split())
        for field, meaning in (*FIELD_HELP[name].fields, *FIELD_HELP[name].diagnosis):
            assert " ".join(meaning.split()[-3:]) in words, (field, meaning)
        assert all(line.isascii() for line in lines)


@in_loop
async def test_help_begins_with_the_view_one_is_in() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        for key, first, other in (("4", "CONTRIB", "ratio max"), ("3", "ratio max", "CONTRIB")):
            await press(pilot, key, "question_mark")
            assert app.screen.query_one(LinePanel).region.size == SMALL, "it takes the whole screen"
            seen = "\n".join(plain(line) for line in app.screen.query_one(LinePanel).lines)
            assert first in seen
            assert other not in seen
            await press(pilot, "escape")

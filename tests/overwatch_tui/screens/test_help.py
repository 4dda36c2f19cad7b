"""The help of a view: its fields and diagnosis before the keys."""

from __future__ import annotations

import pytest

from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.panels.field_help import FIELD_HELP
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.theme import ASCII, UNICODE
from esper_overwatch.overwatch_tui.screens.help import HelpScreen, help_lines
from tests.overwatch_tui.harness import in_loop
from tests.overwatch_tui.test_app import SMALL, app_of, press


def test_every_view_explains_its_fields() -> None:
    for table in (PANELS, PANELS.of(is_published=True)):
        assert {name for view in table.views for name in view.one} <= set(FIELD_HELP)
    for view in PANELS.views:
        assert FIELD_HELP[view.one[0]].diagnosis, view.name


@pytest.mark.parametrize("name", FIELD_HELP)
def test_help_of_a_view_is_whole_at_eighty_columns(name: str) -> None:
    text = [plain(line) for line in help_lines(80, UNICODE, read_only=False, panel=name)]
    words = " ".join(" ".join(text).split())
    for field, meaning in (*FIELD_HELP[name].fields, *FIELD_HELP[name].diagnosis):
        assert " ".join(meaning.split()[-3:]) in words, (field, meaning)
    assert all(line.isascii() for line in map(plain, help_lines(80, ASCII, read_only=True, panel=name)))


@in_loop
async def test_help_begins_with_the_view_one_is_in() -> None:
    app = app_of()
    async with app.run_test(size=SMALL) as pilot:
        for key, first, other in (("4", "CONTRIB", "ratio max"), ("3", "ratio max", "CONTRIB")):
            await press(pilot, key, "question_mark")
            assert isinstance(app.screen, HelpScreen)
            seen = "\n".join(plain(line) for line in app.screen._panel.lines)
            assert first in seen
            assert other not in seen
            await press(pilot, "escape")


def test_views_are_those_of_the_kind_of_run() -> None:
    def views(*, is_published: bool) -> str:
        lines = map(plain, help_lines(80, UNICODE, read_only=False, is_published=is_published))
        return next(
            line.strip() for line in lines if line.strip().startswith("1") and " run problems" in line
        )

    assert views(is_published=False) == "12345     run problems policy seeds machine"
    assert views(is_published=True) == "1235      run problems metrics machine"

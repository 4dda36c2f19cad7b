"""The help of a view: its fields and diagnosis before the keys."""

from __future__ import annotations

import pytest

from esper_overwatch.overwatch_tui.panels import ALL_VIEWS, VIEWS
from esper_overwatch.overwatch_tui.panels.field_help import FIELD_HELP
from esper_overwatch.overwatch_tui.render.lines import plain
from esper_overwatch.overwatch_tui.render.theme import ASCII, UNICODE
from esper_overwatch.overwatch_tui.screens.help import HelpScreen, help_lines
from tests.overwatch_tui.harness import in_loop
from tests.overwatch_tui.test_app import SMALL, app_of, press


def test_every_view_explains_its_fields() -> None:
    assert set(ALL_VIEWS) <= set(FIELD_HELP)
    for name in VIEWS:
        assert FIELD_HELP[name].diagnosis, name


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
        for key, first, other in (("3", "HDRIFT", "ratio max"), ("4", "ratio max", "HDRIFT")):
            await press(pilot, key, "question_mark")
            assert isinstance(app.screen, HelpScreen)
            seen = "\n".join(plain(line) for line in app.screen._panel.lines)
            assert first in seen
            assert other not in seen
            await press(pilot, "escape")


def test_views_are_those_of_the_kind_of_run() -> None:
    def views(*, is_published: bool) -> str:
        lines = map(plain, help_lines(80, UNICODE, read_only=False, is_published=is_published))
        return next(line.strip() for line in lines if " log commands system pinned" in line)

    rest = "log commands system pinned"
    assert views(is_published=False) == f"123456789 main incidents drift policy seeds {rest}"
    assert views(is_published=True) == f"12346789  metrics incidents charts about {rest}"

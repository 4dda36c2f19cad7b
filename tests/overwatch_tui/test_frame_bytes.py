"""The bytes of a second of a live run, view by view, and that they show what the app has drawn."""

from __future__ import annotations

import pyte
import pytest

from tests.cases import nightly

from .frame_bytes import VIEW_KEYS, Watching
from .harness import in_loop
from .screens.test_shown_cells import visible_cells

KIB = 1024
SMALL, LARGE = (16, 120, 40), (64, 200, 60)
LIMITS = {SMALL: 10 * KIB, LARGE: 25 * KIB}
"""Bytes a second, by envs, columns and lines."""
BUSIEST = ("run", "seeds", "machine", "charts over all")


async def rate_of(watching: Watching, seconds: int) -> float:
    """Bytes a second; after each of them the terminal shows what the app shows."""
    sent = 0
    for _ in range(seconds):
        sent += len((await watching.second()).encode())
        assert_shows(watching.screen, watching.drawn())
    return sent / seconds


def assert_shows(screen: pyte.Screen, drawn: pyte.Screen) -> None:
    assert screen.display == drawn.display
    assert visible_cells(screen) == visible_cells(drawn)


@in_loop
async def test_charts_of_all_envs_take_few_bytes() -> None:
    watching = Watching(*SMALL)
    async with watching.running():
        await watching.press(*VIEW_KEYS["charts over all"])
        assert "over 16" in "".join(watching.screen.display)
        assert 0 < await rate_of(watching, 3) < LIMITS[SMALL] / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "size"),
    [
        *((view, LARGE) if view in BUSIEST else nightly(view, LARGE) for view in VIEW_KEYS),
        *(nightly(view, SMALL) for view in BUSIEST),
    ],
)
@in_loop
async def test_no_view_takes_more_bytes_than_its_limit(view: str, size: tuple[int, int, int]) -> None:
    watching = Watching(*size)
    async with watching.running():
        await watching.press(*VIEW_KEYS[view])
        assert_shows(watching.screen, watching.drawn())
        assert 0 < await rate_of(watching, 4) < LIMITS[size] / 2


@in_loop
async def test_redrawing_sends_the_whole_screen() -> None:
    watching = Watching(*SMALL)
    async with watching.running():
        watching.screen.erase_in_display(2)
        await watching.press("ctrl+l")
        assert_shows(watching.screen, watching.drawn())


@in_loop
async def test_a_page_over_the_screen_leaves_it_whole() -> None:
    watching = Watching(*SMALL)
    async with watching.running():
        await watching.press("question_mark")
        await watching.press("j", "j")
        assert_shows(watching.screen, watching.drawn())
        await watching.press("escape")
        assert_shows(watching.screen, watching.drawn())

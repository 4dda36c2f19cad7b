"""Draw the pictures of the terminal in the documentation: `python -m tools.terminal_pictures`.

They show the real run that the tests record (`python -m tests.overwatch_tui.record`), at a moment of its last
round; each is the screen that F8 writes.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import time
from pathlib import Path

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.render.export import self_contained
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.overwatch_tui.session import Session
from esper_overwatch.overwatch_tui.source.replay import ReplayFeed
from esper_overwatch.protocol.storage.folders import EVENTS_FILE
from tests.overwatch_tui.record import NAME, unpack

FOLDER = Path(__file__).parents[1] / "docs" / "img"
COLUMNS, LINES = 120, 40
MOMENT = ("colon", *"go_to r6e14", "enter")
"""Keys that lead there."""
PICTURES: dict[str, tuple[str, ...]] = {
    "main": ("1",),
    "env": ("1", "enter"),
    "problems": ("2",),
    "policy": ("3",),
    "seeds": ("4",),
    "machine": ("5",),
}
"""Name -> keys after the start."""


async def draw(folder: Path, keys: tuple[str, ...]) -> str:
    """The screen after these keys, as an SVG document.

    Args:
        folder: holds the run's folder.
        keys: Textual's names.
    """
    feed = ReplayFeed(folder / NAME / EVENTS_FILE, math.inf)
    app = OverwatchApp(Session(feed, ViewState()))
    async with app.run_test(size=(COLUMNS, LINES)) as pilot:
        while not feed.is_over:
            await pilot.pause()
        await pilot.press(*MOMENT)
        while app.session.cursor.is_seeking:
            await pilot.pause()
        app.session.view.message = ""
        await pilot.press(*keys)
        app.paint()
        await pilot.pause()
        return self_contained(app.export_screenshot(title=f"esper-tui {NAME}"))


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / NAME).mkdir()
        unpack(folder / NAME / EVENTS_FILE)
        for name, keys in PICTURES.items():
            path = FOLDER / f"terminal-{name}.svg"
            path.write_text(asyncio.run(draw(folder, keys)), encoding="utf-8")
            print(f"wrote {path.name}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""What frames send to a terminal: the app on a driver that keeps every byte, with a clock that a test moves.

`python -m tests.overwatch_tui.frame_bytes 64 200 60` prints the bytes of a second of each view, and with the
names of views after it those of each of their rows.
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyte
from rich.console import Console
from textual.app import App
from textual.drivers.headless_driver import HeadlessDriver

from esper_overwatch.overwatch_tui.app import OverwatchApp
from esper_overwatch.overwatch_tui.model.time_series import SECOND
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.view_state import ViewState
from esper_overwatch.protocol.client.items import LinkChanged, Reset
from esper_overwatch.protocol.codec.json_lines import Event, decode_line

from . import journal
from .harness import ListFeed, Session

JOINED_SECONDS = 90
"""So much of the run is known before the first frame that counts."""
_TO_ROW = re.compile(r"\x1b\[(\d+)(?:;\d+)?H")
PROFILED_SECONDS = 20
VIEW_KEYS = {
    **{view.name: [view.key] for view in PANELS.views},
    "env": ["enter"],
    "env charts": ["enter", "enter"],
    "charts over all": ["enter", "enter", "colon", *"overlay", "enter"],
    "drift charts": ["4", "tab", "enter"],
    "policy charts": ["3", "enter"],
    "system charts": ["5", "enter", "enter"],
    "smoothed": ["enter", "enter", "colon", *"smooth", "enter"],
    "logarithmic": ["enter", "enter", "colon", *"log_axis", "enter"],
}
"""What is pressed, from the main screen, to see what."""


class KeepingDriver(HeadlessDriver):
    """Of a terminal that takes everything, and has 256 colours."""

    def __init__(self, app: App[object], *, size: tuple[int, int]) -> None:
        super().__init__(app, size=size)
        self.written: list[str] = []

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        self.written.append(data)


class Watching:
    """A live run on a terminal, second by second."""

    def __init__(self, envs: int, columns: int, lines: int) -> None:
        self._events = map(decode_line, journal.endless(envs=envs))
        self._next: Event | None = None
        self.feed = ListFeed([LinkChanged("live"), Reset("run digits-7f3a, boot b1")])
        self.feed.clock = journal.START
        view = ViewState(rate=0.0001)
        self.app = OverwatchApp(Session(self.feed, view))
        self.app.console = Console(file=io.StringIO(), force_terminal=True, color_system="256")
        self.driver = KeepingDriver(self.app, size=(columns, lines))
        self.app._build_driver = lambda *_, **__: self.driver  # type: ignore[method-assign]
        self.app._terminal_is_full = lambda: False  # type: ignore[method-assign]
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.Stream(self.screen)
        self._size = columns, lines

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Watching]:
        """With a minute of the run known."""
        self._play(JOINED_SECONDS)
        async with self.app.run_test(size=self._size) as self.pilot:
            await self.pilot.pause()
            self.take()
            yield self

    def _play(self, seconds: float) -> None:
        assert self.feed.clock is not None
        self.feed.clock += int(seconds * SECOND)
        while True:
            if self._next is None:
                self._next = next(self._events)
            if self._next.ts > self.feed.clock:
                return
            self.feed.items.append(self._next)
            self._next = None

    def take(self) -> str:
        """What was written since the last call; the screen shows it."""
        data = "".join(self.driver.written)
        self.driver.written.clear()
        self._stream.feed(data)
        return data

    async def press(self, *keys: str) -> str:
        """What it takes to show what keys ask for."""
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self.take()

    async def second(self) -> str:
        """What it takes to show the next second."""
        self._play(1)
        self.app.session.needs_paint = True
        self.app.tick()
        await self.pilot.pause()
        return self.take()

    def drawn(self) -> pyte.Screen:
        """A terminal that was sent all of what the app shows now."""
        columns, lines = self._size
        screen = pyte.Screen(columns, lines)
        stream = pyte.Stream(screen)
        for y, strip in enumerate(self.app.screen._compositor.render_strips()):
            stream.feed(f"\x1b[{y + 1};1H{strip.render(self.app.console)}")
        return screen


def bytes_by_row(frames: list[str]) -> Counter[int]:
    """Of each row of the terminal, what all the frames sent for it."""
    found: Counter[int] = Counter()
    for frame in frames:
        parts = _TO_ROW.split(frame)
        for row, data in zip(parts[1::2], parts[2::2], strict=True):
            found[int(row)] += len(data.encode()) + len(row) + 4
    return found


async def profile(envs: int, columns: int, lines: int, views: list[str]) -> str:
    """Bytes by view, and by row of the views that are named."""
    found = []
    for view in views or VIEW_KEYS:
        watching = Watching(envs, columns, lines)
        async with watching.running():
            switch = len((await watching.press(*VIEW_KEYS[view])).encode())
            frames = [await watching.second() for _ in range(PROFILED_SECONDS)]
        rate = sum(len(frame.encode()) for frame in frames) / PROFILED_SECONDS
        found.append(f"{view:20} {rate / 1024:6.2f} KiB/s  to show it {switch / 1024:6.2f} KiB")
        if views:
            rows = sorted(bytes_by_row(frames).items())
            found += [
                f"{row:3} {count / PROFILED_SECONDS:6.0f} B/s {watching.screen.display[row - 1].rstrip()}"
                for row, count in rows
            ]
    return "\n".join(found)


if __name__ == "__main__":
    size = [int(each) for each in sys.argv[1:4]] or [64, 200, 60]
    print(asyncio.run(profile(size[0], size[1], size[2], sys.argv[4:])))

"""Keys that change how things are shown, or keep a picture of it."""

from __future__ import annotations

import time
from pathlib import Path

from overwatch_tui.screens.screenshot import self_contained

from .base import PaintedApp


class DisplayActions(PaintedApp):
    """Order, layout, window, rate, glyphs, pictures."""

    def action_sort(self) -> None:
        self.session.view.cycle_sort()
        self.show_message(f"envs by {self.session.view.sort}")
        self.paint()

    def action_reverse(self) -> None:
        self.session.view.is_reversed = not self.session.view.is_reversed
        self.paint()

    def action_env_layout(self) -> None:
        self.session.view.cycle_env_layout(self.session.state.num_envs)
        self.paint()

    def action_log_filter(self) -> None:
        self.session.view.cycle_log_filter()
        self.session.view.selected.pop("log", None)
        self.show_message(f"log: {self.session.view.log_filter}")
        self.paint()

    def action_zoom(self, by: int) -> None:
        inputs = self.body
        self.session.view.zoom(by, inputs.age)
        self.show_message(f"charts show {self.body.window_name}")
        self.paint()

    def action_rate(self) -> None:
        self.session.view.cycle_rate()
        self.show_message(f"{self.session.view.rate:g} frames per second")
        self.paint()

    def action_glyphs(self) -> None:
        self.session.view.toggle_glyphs()
        self.paint()

    def action_theme(self) -> None:
        """The next theme; its name is shown."""
        if not self.palette.colour:
            self.show_message("no theme: NO_COLOR or --no-color is given")
        else:
            self.show_theme(self.palette.next_name())
            self.show_message(f"theme {self.palette.name}")
        self.paint()

    def action_write_screen(self) -> None:
        """Write the screen as SVG and as text into the working directory."""
        width, height = self.size
        stem = Path(f"esper-{self.session.link.name or 'overwatch'}-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            svg = self.export_screenshot(title=f"esper-tui {self.session.link.name or ''}")
            stem.with_suffix(".svg").write_text(
                self_contained(svg, is_light=self.palette.is_light), encoding="utf-8"
            )
            text = self.screen_layout(width, height).text(width, height)
            stem.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            self.show_message(f"no screenshot: {stem}: {error.strerror}")
        else:
            self.show_message(f"wrote {stem}.svg and .txt")
        self.paint()

"""Keys that change how things are shown, or keep a picture of it."""

from __future__ import annotations

import re
import time

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
        """Write the screen as SVG and as text."""
        from esper_overwatch.overwatch_tui.screens.screenshot import self_contained

        width, height = self.size
        run = re.sub(r"[^\w.-]", "_", self.session.link.name or "overwatch")
        stem = f"esper-{run}-{time.strftime('%Y%m%d-%H%M%S')}"
        svg = self.export_screenshot(title=f"esper-tui {self.session.link.name or ''}")
        text = self.screen_layout(width, height).text(width, height)
        try:
            self.hand_over(f"{stem}.svg", self_contained(svg, is_light=self.palette.is_light))
            self.hand_over(f"{stem}.txt", text + "\n")
        except OSError as error:
            self.show_message(f"no screenshot: {stem}: {error.strerror}")
        else:
            done = "the browser has downloaded" if self.is_web else "wrote"
            self.show_message(f"{done} {stem}.svg and .txt")
        self.paint()

"""Keys that write a table, a chart or the whole screen into files."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

from esper_overwatch.overwatch_tui.render.export import (
    ChartRecorder,
    Record,
    as_csv,
    as_json,
    as_svg,
    as_text,
    curve_records,
    self_contained,
)
from esper_overwatch.overwatch_tui.render.lines import Line, plain
from esper_overwatch.overwatch_tui.render.panel import PanelInputs

from .moves import MoveActions

MIN_WIDTH = 180
"""Columns of a drawing: no column of a table is left out for want of room."""


_DONE = "wrote "


class ExportActions(MoveActions):
    """Tables, charts and pictures of the screen as files."""

    def action_export(self, *suffixes: str) -> None:
        """Write the panel that moves act on into the working folder, a file for each suffix."""
        name = "pins" if self.session.view.charts.names else self._panel()
        has_colour = self.session.view.has_colour and "svg" in suffixes
        view = replace(self.session.view, scroll={}, has_colour=has_colour)
        body = self.body
        recorder = ChartRecorder(body.state, view, body.link, body.now)
        lines = self._drawing(name, recorder)
        records = [] if view.detail and recorder.drawn else self.panels[name].records(recorder)
        if not records and recorder.drawn:
            records = curve_records(recorder)
        stem = f"esper-{self._run_name()}-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        said, *more = (self._write(f"{stem}.{suffix}", name, records, lines) for suffix in suffixes)
        also = [f" and .{suffix}" for suffix, text in zip(suffixes[1:], more, strict=True) if _is_done(text)]
        self.say("".join([said, *also]) if _is_done(said) else said)

    def _drawing(self, name: str, inputs: PanelInputs) -> list[Line]:
        """The panel with all its rows."""
        renderer = self.panels[name]
        is_detail = inputs.view.detail and renderer.detail is not None
        draw = renderer.detail if is_detail and renderer.detail is not None else renderer.body
        height = self.size.height if is_detail else max(self.size.height, len(renderer.keys(inputs)) + 20)
        lines = draw(inputs, max(MIN_WIDTH, self.size.width), height).lines
        while lines and not plain(lines[-1]).strip():
            lines = lines[:-1]
        return lines

    def _write(self, file: str, name: str, records: Sequence[Record], lines: Sequence[Line]) -> str:
        """Write the file of a panel; returns its path, or the reason why it was not written."""
        suffix = file.rpartition(".")[2]
        if suffix in ("csv", "json") and not records:
            return f"{name} has neither rows nor curves to write as {suffix.upper()}: take text or SVG"
        if suffix == "csv":
            text = as_csv(records)
        elif suffix == "json":
            text = as_json(records)
        elif suffix == "txt":
            text = as_text(lines)
        else:
            drawn = as_svg(lines, self.palette, f"{self._run_name()} {name}")
            text = self_contained(drawn, is_light=self.palette.is_light)
        try:
            return f"{_DONE}{self.hand_over(file, text)}"
        except OSError as error:
            return f"not written: {file}: {error.strerror}"

    def action_write_screen(self) -> None:
        width, height = self.size
        stem = f"esper-{self._run_name()}-{time.strftime('%Y%m%d-%H%M%S')}"
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

    def _run_name(self) -> str:
        return re.sub(r"[^\w.-]", "_", self.session.link.name or "overwatch")


def _is_done(said: str) -> bool:
    return said.startswith(_DONE)

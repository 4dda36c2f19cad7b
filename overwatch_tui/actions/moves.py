"""Keys that choose what is shown: view, panel, row, env."""

from __future__ import annotations

from typing import Any

from overwatch_tui.panels import PANELS, VIEWS
from overwatch_tui.render.layout import main_columns

from .base import PaintedApp


class MoveActions(PaintedApp):
    """Moving between views, panels, rows and envs."""

    def _panel(self) -> str:
        """The panel that moves act on."""
        view = self.session.view
        if view.name == "envs" and self.session.state.is_published:
            return "metrics"
        return view.focus if view.name == "envs" else view.name

    def action_digit(self, digit: int) -> None:
        view = self.session.view
        if view.typing is not None:
            self._type_digit(digit)
        else:
            for panel in PANELS.views:
                if panel.key == str(digit):
                    view.show_view(panel.name)
        self.paint()

    def _type_digit(self, digit: int) -> None:
        """Another digit of an env's number; the env is selected as soon as no longer number exists."""
        view = self.session.view
        view.typing = f"{view.typing or ''}{digit}"
        last = self.session.state.num_envs - 1
        if int(view.typing) * 10 > last or len(view.typing) >= len(str(last)):
            self._take_typed()

    def _take_typed(self) -> None:
        view = self.session.view
        text, view.typing = view.typing, None
        if text and int(text) < self.session.state.num_envs:
            view.select("envs", int(text))
        elif text:
            self.show_message(f"env {text} does not exist: 0 to {self.session.state.num_envs - 1}")

    def action_next_panel(self, by: int) -> None:
        view = self.session.view
        view.detail = False
        shown = [
            name for _, names in main_columns(PANELS, self.size.width) for name in names if name in VIEWS
        ]
        if view.name == "envs" and len(main_columns(PANELS, self.size.width)) > 1:
            at = shown.index(view.focus) if view.focus in shown else 0
            view.focus = shown[(at + by) % len(shown)]
        else:
            view.show_view(VIEWS[(VIEWS.index(view.name) + by) % len(VIEWS)])
        self.paint()

    def action_enter(self) -> None:
        view = self.session.view
        if view.typing is not None:
            self._take_typed()
        elif view.detail:
            view.detail = False
        elif PANELS[self._panel()].renderer.detail is not None:
            view.focus = self._panel()
            view.detail = view.is_env_chosen = True
        self.paint()

    def action_step_back(self) -> None:
        self.session.view.step_back()
        self.session.view.selected.pop("log", None)
        self.paint()

    def action_move(self, by: int) -> None:
        name = self._panel()
        rows = PANELS[name].renderer.keys(self.body)
        view = self.session.view
        if name == "log":
            self._move_log(list(rows), by)
        elif rows:
            view.move_selection(name, rows, by)
        self.paint()

    def _move_log(self, rows: list[Any], by: int) -> None:
        """The log follows its end until a row is selected, and again from its last row on."""
        view = self.session.view
        if not rows:
            return
        if view.selected.get("log") is None:
            if by < 0:
                view.select("log", rows[max(0, len(rows) - 1 + by)])
            return
        view.move_selection("log", rows, by)
        if by > 0 and view.selected["log"] == rows[-1]:
            del view.selected["log"]

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 8))

    def action_env(self, by: int) -> None:
        self.session.view.move_selection("envs", PANELS["envs"].renderer.keys(self.body), by)
        self.paint()

    def action_type_env(self) -> None:
        self.session.view.typing = ""
        self.paint()

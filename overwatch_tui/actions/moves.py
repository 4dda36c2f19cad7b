"""Keys that choose what is shown: view, panel, row, env, and the moment of it."""

from __future__ import annotations

from typing import Any

from esper_overwatch.overwatch_tui.model.time_target import parse_target
from esper_overwatch.overwatch_tui.panels import PANELS
from esper_overwatch.overwatch_tui.render.layout import shown_panels
from esper_overwatch.overwatch_tui.render.panel import PanelTable
from esper_overwatch.overwatch_tui.render.view_state import MAIN_VIEW

from .base import PaintedApp


class MoveActions(PaintedApp):
    """Moving between views, panels, rows, envs and moments."""

    @property
    def panels(self) -> PanelTable:
        """Panels that a run of this kind has."""
        return PANELS.of(is_published=self.session.state.is_published)

    def _panel(self) -> str:
        """The panel that moves act on."""
        return self.panels.focused(self.session.view)

    def action_digit(self, digit: int) -> None:
        if digit == 0:
            self.action_to_end()
            return
        name = next((one.name for one in self.panels.views if one.key == str(digit)), None)
        if name is None:
            self.show_message(f"no such view: {digit}")
        else:
            self.session.view.show_view(name)
        self.paint()

    def action_show(self, name: str) -> None:
        """Show a view, or a panel of one."""
        if self.panels.view_with(name) is None:
            self.say(f"no such view or panel: {name}")
        else:
            self.panels.show(self.session.view, name)
            self.paint()

    def action_next_panel(self, by: int) -> None:
        """The next panel of the view; in a view of one panel the next view."""
        view, panels = self.session.view, self.panels
        shown = shown_panels(panels, self.body, self.size.width)
        if len(shown) > 1:
            at = shown.index(self._panel()) if self._panel() in shown else 0
            panels.show(view, view.name)
            view.focus = shown[(at + by) % len(shown)]
        else:
            names = [one.name for one in panels.views]
            view.show_view(names[(names.index(panels.view(view.name).name) + by) % len(names)])
        self.paint()

    def action_enter(self) -> None:
        """Open the detail of a row, from there its charts; of a row without detail its charts."""
        view, renderer = self.session.view, self.panels[self._panel()]
        if not view.charts.names:
            view.is_env_chosen = True
            if renderer.detail is not None and not view.detail:
                view.detail = True
            else:
                view.charts.names = tuple(renderer.charts(self.body))
        self.paint()

    def action_step_back(self) -> None:
        self.session.view.step_back(self._panel())
        self.session.view.selected.pop("log", None)
        self.paint()

    def action_move(self, by: int) -> None:
        name = self._panel()
        rows = self.panels[name].keys(self.body)
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

    def action_first_row(self) -> None:
        self.action_move(-1_000_000)

    def action_env(self, number: str) -> None:
        """Open the page of an env by its number."""
        count = self.session.state.num_envs
        if number.isdecimal() and int(number) < count:
            view = self.session.view
            view.show_view(MAIN_VIEW)
            view.select("envs", int(number))
            view.detail = True
            self.paint()
        else:
            self.say(f"env {number} does not exist: 0 to {count - 1}")

    def action_freeze(self) -> None:
        session = self.session
        session.cursor.hold(session.state, session.feed.now())
        self._moved("")

    def action_step_epochs(self, by: int) -> None:
        self._moved(self.session.cursor.step_by(by, "epoch"))

    def action_step_incidents(self, by: int) -> None:
        self._moved(self.session.cursor.step_by(by, "incident"))

    def action_to_end(self) -> None:
        cursor = self.session.cursor
        if not cursor.is_held and not self.session.link.is_replay:
            self._moved("this is live")
        else:
            self._moved(cursor.to_end())

    def action_speed(self, by: int) -> None:
        self._moved(self.session.cursor.change_speed(by))

    def action_go_to(self, text: str) -> None:
        """Go to the moment that a text names."""
        inputs, is_replay = self.session.shown_inputs(), self.session.link.is_replay
        now = inputs.now if is_replay or text.startswith(("-", "+")) else self.session.feed.now()
        try:
            target = parse_target(text, now, nearest=is_replay)
        except ValueError as error:
            self._moved(str(error))
        else:
            self._moved(self.session.cursor.go_to(target))

    def _moved(self, message: str) -> None:
        if message:
            self.show_message(message)
        self.session.show_cursor()
        self.paint()

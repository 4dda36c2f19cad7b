"""Keys of the time cursor: freeze, step, go to a moment, back to live, speed of a recording."""

from __future__ import annotations

import time

from esper_overwatch.overwatch_tui.model.time_target import EXAMPLES, parse_target

from .base import DOUBLE_PRESS_SECONDS
from .moves import MoveActions


class MomentActions(MoveActions):
    """Choosing the moment that every view shows."""

    _first_row_at = -DOUBLE_PRESS_SECONDS
    _before_first_row: dict[str, object] | None = None

    def action_freeze(self) -> None:
        session = self.session
        session.cursor.hold(session.state, session.feed.now())
        self._moved("")

    def action_step_epochs(self, by: int) -> None:
        self._moved(self.session.cursor.step_epochs(by))

    def action_step_incidents(self, by: int) -> None:
        self._moved(self.session.cursor.step_incidents(by))

    def action_to_end(self) -> None:
        cursor = self.session.cursor
        if not cursor.is_held and not self.session.link.is_replay:
            self._moved("this is live")
        else:
            self._moved(cursor.to_end())

    def action_speed(self, by: int) -> None:
        self._moved(self.session.cursor.change_speed(by))

    def action_digit(self, digit: int) -> None:
        if digit == 0 and self.session.view.typing is None:
            self.action_to_end()
        else:
            super().action_digit(digit)

    def action_first_row(self) -> None:
        """g: the first row; `t` after it goes to a moment instead."""
        view = self.session.view
        self._first_row_at = time.monotonic()
        selected, env, is_chosen = dict(view.selected), view.env, view.is_env_chosen
        self.action_move(-1_000_000)
        self._before_first_row = {"selected": selected, "env": env, "is_env_chosen": is_chosen}

    def action_go_to(self) -> None:
        """t after g: ask for a moment."""
        if self._before_first_row is None or time.monotonic() - self._first_row_at > DOUBLE_PRESS_SECONDS:
            self.say("no such key: t; g t goes to a time, ? helps")
            return
        view = self.session.view
        for name, value in self._before_first_row.items():
            setattr(view, name, value)
        self._before_first_row = None
        self.paint()
        from esper_overwatch.overwatch_tui.screens.input_line import InputLine

        self.push_screen(InputLine("go to ", lambda _: EXAMPLES, self.palette, view.glyphs), self._go_to)

    def _go_to(self, text: str | None) -> None:
        if not text:
            return
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

"""Keys of the time cursor: freeze, step, go to a moment, back to live, speed of a recording."""

from __future__ import annotations

from esper_overwatch.overwatch_tui.model.time_target import parse_target

from .moves import MoveActions


class MomentActions(MoveActions):
    """Choosing the moment that every view shows."""

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

    def action_digit(self, digit: int) -> None:
        if digit == 0:
            self.action_to_end()
        else:
            super().action_digit(digit)

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

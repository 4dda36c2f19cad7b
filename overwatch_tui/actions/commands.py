"""Keys that ask before they send a command to the daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overwatch_tui.screens.confirm import ConfirmScreen
from overwatch_tui.screens.questions import OF_TRAININGS, QUESTIONS

from .base import PaintedApp


class CommandActions(PaintedApp):
    """Questions, and the commands that follow them."""

    def action_ask(self, name: str) -> None:
        """Ask before a command is sent; see `screens.questions`."""
        link = self.session.link
        question = QUESTIONS[name](self.session.state)
        if name in OF_TRAININGS and self.session.state.is_published:
            self.show_message(f"a published run does not have the command {question.method}")
            self.paint()
            return
        if link.is_replay or link.state not in ("live", "slow", "stale"):
            self.show_message(f"{question.method}: not sent, no daemon is connected ({link.label})")
            self.paint()
            return
        screen = ConfirmScreen(
            question.text,
            f"run {link.name}: {question.consequence}",
            self.palette,
            self.session.view.glyphs,
        )
        self.push_screen(screen, self._when_confirmed(question.method, question.params))

    def _when_confirmed(self, method: str, params: dict[str, Any]) -> Callable[[bool | None], None]:
        def answer(yes: bool | None) -> None:
            if yes:
                self.session.send(method, params)
                self.session.view.message = ""
            else:
                self.show_message(f"{method}: not sent")
            self.paint()

        return answer

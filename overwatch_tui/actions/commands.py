"""Keys that ask before they send a command to the daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from esper_overwatch.overwatch_tui.model.loop_commands import read_loop_commands
from esper_overwatch.overwatch_tui.screens.questions import OF_TRAININGS, QUESTIONS, Question

from .base import PaintedApp

if TYPE_CHECKING:
    from esper_overwatch.overwatch_tui.screens.call import LoopCall


class CommandActions(PaintedApp):
    """Questions, and the commands that follow them."""

    @property
    def is_connected(self) -> bool:
        """True while a daemon is connected that can take a command."""
        link = self.session.link
        return not link.is_replay and link.state in ("live", "slow", "stale")

    def action_ask(self, name: str) -> None:
        """Ask before a command is sent; see `screens.questions`."""
        question = QUESTIONS[name](self.session.state)
        if self.session.view.read_only:
            self._refuse("read-only: this terminal sends no commands")
        elif name in OF_TRAININGS and self.session.state.is_published:
            self._refuse(f"a published run does not have the command {question.method}")
        else:
            self._confirm(question)

    def action_call(self) -> None:
        """Choose a command that the loop of a published run has registered."""
        from esper_overwatch.overwatch_tui.screens.call import CallScreen

        state, name = self.session.state, self.session.link.name or "the run"
        commands = read_loop_commands(state.loop_commands)
        if not state.is_published:
            self._refuse("c is for the commands of published runs; this run's have keys of their own")
        elif self.session.view.read_only:
            self._refuse("read-only: this terminal sends no commands")
        elif not commands:
            self._refuse(f"the loop of {name} has no commands so far")
        elif not self.is_connected:
            self._refuse(f"no daemon is connected that could take a command ({self.session.link.label})")
        else:
            self.push_screen(
                CallScreen(commands, name, self.palette, self.session.view.glyphs),
                partial(self._on_call, self.session.feed.run_id),
            )

    def _on_call(self, run_id: str | None, call: LoopCall | None) -> None:
        if call is not None and self.can_send(call.method, run_id):
            words = " ".join(f"{name}={json.dumps(value)}" for name, value in call.params.items())
            text = f"Send {call.method} {words}".rstrip() + "?"
            self._confirm(Question(call.method, call.params, text, "when the loop next looks for commands"))

    def _refuse(self, why: str) -> None:
        self.show_message(why)
        self.paint()

    def can_send(self, method: str, run_id: str | None) -> bool:
        """True if a command still reaches the run it was asked for; shows the reason where it does not.

        While a question is open, the run may end and the terminal follow another one.

        Args:
            method: name of the command.
            run_id: id of the run that was followed when the question was asked.
        """
        link = self.session.link
        if not self.is_connected:
            self._refuse(f"{method}: not sent, no daemon is connected ({link.label})")
        elif self.session.feed.run_id != run_id:
            self._refuse(f"{method}: not sent, another run is followed now: {link.name}")
        else:
            return True
        return False

    def _confirm(self, question: Question) -> None:
        from esper_overwatch.overwatch_tui.screens.confirm import ConfirmScreen

        if not self.can_send(question.method, self.session.feed.run_id):
            return
        if question.method == "stop":
            self.ask_name(lambda: self._send_stop(question.params))
            return
        screen = ConfirmScreen(
            question.text,
            f"run {self.session.link.name}: {question.consequence}",
            self.palette,
            self.session.view.glyphs,
        )
        self.push_screen(screen, self._when_confirmed(question.method, question.params))

    def ask_name(self, then: Callable[[], None]) -> None:
        """Have the run's name typed before what ends it is sent."""
        from esper_overwatch.overwatch_tui.screens.input_line import InputLine

        name, run_id = self.session.link.name or "", self.session.feed.run_id
        about = f"STOP the run? A checkpoint is saved first where it can. Type its name, {name}, and Enter"

        def check(text: str) -> str:
            return "" if text.strip() == name else f"not the run's name, {name}; Esc sends nothing"

        def take(text: str | None) -> None:
            if text is None:
                self.show_message("stop: not sent")
            elif self.can_send("stop", run_id):
                then()
            self.paint()

        glyphs = self.session.view.glyphs
        self.push_screen(InputLine("stop ", lambda _: about, self.palette, glyphs, check=check), take)

    def _send_stop(self, params: dict[str, Any]) -> None:
        self.session.send("stop", params)
        self.session.view.message = ""

    def _when_confirmed(self, method: str, params: dict[str, Any]) -> Callable[[bool | None], None]:
        run_id = self.session.feed.run_id

        def answer(yes: bool | None) -> None:
            if not yes:
                self.show_message(f"{method}: not sent")
            elif self.can_send(method, run_id):
                self.session.send(method, params)
                self.session.view.message = ""
            self.paint()

        return answer

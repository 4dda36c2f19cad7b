"""Keys that send a command to the daemon, and the question that each asks first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from esper_overwatch.overwatch_tui.model.state import State
from esper_overwatch.overwatch_tui.screens.box import ConfirmScreen
from esper_overwatch.overwatch_tui.screens.input_line import InputLine

from .base import PaintedApp

ESCALATE_EPOCHS = 5
PROFILE_EPOCHS = 2


class Question(NamedTuple):
    """A command and the question before it."""

    method: str
    params: dict[str, Any]
    text: str
    consequence: str


def _escalate(env: int | None) -> Question:
    return Question(
        "telemetry.escalate",
        {"level": "DEBUG", "epochs": ESCALATE_EPOCHS} | ({} if env is None else {"env": env}),
        f"Escalate telemetry{'' if env is None else f' of env {env}'} to DEBUG for {ESCALATE_EPOCHS} epochs?",
        "collects statistics of each layer; falls back automatically",
    )


def _profile(state: State) -> Question:
    if state.profiling is not None:
        return Question("profiler.stop", {}, "Stop the profiler?", "what it has recorded is written")
    return Question(
        "profiler.start",
        {"epochs": PROFILE_EPOCHS},
        f"Record a profile of the next {PROFILE_EPOCHS} epochs?",
        "writes a Chrome trace into the run's folder; slows these epochs",
    )


def _pause(state: State) -> Question:
    if state.run_state == "PAUSED":
        return Question("resume", {}, "Resume the training?", "it continues at once")
    if state.is_published:
        waits = "it waits at its next pause point until it is resumed"
        return Question("pause", {}, "Pause the loop?", waits)
    return Question("pause", {}, "Pause the training?", "it stops after this epoch until it is resumed")


def _checkpoint(state: State) -> Question:
    when = "when the loop next looks for commands" if state.is_published else "at the end of this epoch"
    return Question("checkpoint", {}, "Save a checkpoint?", when)


def _stop(state: State) -> Question:
    if state.is_published:
        return Question("stop", {}, "STOP the loop?", "it ends when it next looks for commands")
    return Question(
        "stop",
        {"mode": "after_epoch", "checkpoint": True},
        "STOP the run after this epoch?",
        "saves a checkpoint; continue with `esper-daemon start --resume NAME`",
    )


OF_TRAININGS = ("escalate", "profile")
"""Questions that no published run has; it may have the others at any time."""

QUESTIONS: dict[str, Callable[[State], Question]] = {
    "profile": _profile,
    "pause": _pause,
    "checkpoint": _checkpoint,
    "stop": _stop,
}
"""Questions by the name in the table of keys that depend on the state of the run."""


class CommandActions(PaintedApp):
    """Questions, and the commands that follow them."""

    @property
    def is_connected(self) -> bool:
        """True while a daemon is connected that can take a command."""
        link = self.session.link
        return not link.is_replay and link.state in ("live", "slow", "stale")

    def action_ask(self, name: str) -> None:
        """Ask one of the `QUESTIONS` before a command is sent."""
        view, state = self.session.view, self.session.state
        question = _escalate(view.opened_env) if name == "escalate" else QUESTIONS[name](state)
        if view.read_only:
            self.say("read-only: this terminal sends no commands")
        elif name in OF_TRAININGS and state.is_published:
            self.say(f"a published run does not have the command {question.method}")
        else:
            self._confirm(question)

    def can_send(self, method: str, run_id: str | None) -> bool:
        """True if a command still reaches the run that it was asked for; shows the reason if it does not.

        While a question is open, the run may end and the terminal follow another one.
        """
        link = self.session.link
        if not self.is_connected:
            self.say(f"{method}: not sent, no daemon is connected ({link.label})")
        elif self.session.feed.run_id != run_id:
            self.say(f"{method}: not sent, another run is followed now: {link.name}")
        else:
            return True
        return False

    def _confirm(self, question: Question) -> None:
        if not self.can_send(question.method, self.session.feed.run_id):
            return
        if question.method == "stop":
            self.ask_name(question.params)
            return
        screen = ConfirmScreen(
            question.text,
            f"run {self.session.link.name}: {question.consequence}",
            self.palette,
            self.session.view.glyphs,
        )
        run_id = self.session.feed.run_id

        def answer(yes: bool | None) -> None:
            if not yes:
                self.show_message(f"{question.method}: not sent")
            elif self.can_send(question.method, run_id):
                self.send_command(question.method, question.params)
            self.paint()

        self.push_screen(screen, answer)

    def send_command(self, method: str, params: dict[str, Any]) -> None:
        """Send it; the footer shows what becomes of it."""
        self.session.send(method, params)
        self.session.view.message = ""

    def ask_name(self, params: dict[str, Any]) -> None:
        """Ask for the run's name, then send `stop`."""
        name, run_id = self.session.link.name or "", self.session.feed.run_id
        about = f"STOP the run? A checkpoint is saved first where it can. Type its name, {name}, and Enter"

        def check(text: str) -> str:
            return "" if text.strip() == name else f"not the run's name, {name}; Esc sends nothing"

        def take(text: str | None) -> None:
            if text is None:
                self.show_message("stop: not sent")
            elif self.can_send("stop", run_id):
                self.send_command("stop", params)
            self.paint()

        glyphs = self.session.view.glyphs
        self.push_screen(InputLine("stop ", lambda _: about, self.palette, glyphs, check=check), take)

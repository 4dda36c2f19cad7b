"""The commands that keys send: what each asks before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from esper_overwatch.overwatch_tui.model.state import State

ESCALATE_EPOCHS = 5
PROFILE_EPOCHS = 2


class Question(NamedTuple):
    """A command and the question before it."""

    method: str
    params: dict[str, Any]
    text: str
    consequence: str
    """Consequence of a yes."""


def _escalate(_state: State) -> Question:
    return Question(
        "telemetry.escalate",
        {"level": "DEBUG", "epochs": ESCALATE_EPOCHS},
        f"Escalate telemetry to DEBUG for {ESCALATE_EPOCHS} epochs?",
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
        return Question(
            "pause", {}, "Pause the loop?", "it waits at its next pause point until it is resumed"
        )
    return Question("pause", {}, "Pause the training?", "it stops after this epoch until it is resumed")


def _checkpoint(state: State) -> Question:
    if state.is_published:
        return Question("checkpoint", {}, "Save a checkpoint?", "when the loop next looks for commands")
    return Question("checkpoint", {}, "Save a checkpoint?", "at the end of this epoch")


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
"""Those that no published run has; the others it may have at any time, when its loop asks for them."""

QUESTIONS: dict[str, Callable[[State], Question]] = {
    "escalate": _escalate,
    "profile": _profile,
    "pause": _pause,
    "checkpoint": _checkpoint,
    "stop": _stop,
}
"""By the name in the table of keys; what a key asks depends on the state of the run."""

"""A trial's run: `esper-daemon start` in a child process, and the evaluations that it tells of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from esper_overwatch.protocol.client.subscriber import Subscriber
from esper_overwatch.protocol.codec.json_lines import Event
from esper_overwatch.protocol.codec.text import clean_text
from esper_overwatch.protocol.errors import NameTaken
from esper_overwatch.protocol.journal.reader import JournalRange, read
from esper_overwatch.protocol.messages.events import EvaluationFinished, RunStopped
from esper_overwatch.protocol.messages.vocabulary import Stream
from esper_overwatch.protocol.runs import was_trained
from esper_overwatch.protocol.storage.folders import EVENTS_FILE, esper_home, open_private
from esper_overwatch.protocol.storage.lock import holder_of

from .space import Objective

CLIENT_NAME = "esper-daemon sweep"
LOOK_SECONDS = 0.5
"""Between two looks at a run that says nothing."""
_STREAM: Stream = "life"
_FIGURES = {"return": "return_mean", "test_accuracy": "test_accuracy_mean"}
"""Fields of an evaluation by objective."""


class JudgedRound(NamedTuple):
    """An evaluation of the run's policy after a round; the higher its value the better."""

    round: int
    value: float


class TrialRun:
    """Starts the run, or goes on with it where it has been trained before.

    Args:
        name: of the run.
        words: what follows the name on the command line of `start`.
        objective: what evaluations are compared by.
        log: file for what the child prints.

    Raises:
        NameTaken: another process trains it.
    """

    def __init__(self, name: str, words: Sequence[str], objective: Objective, log: Path) -> None:
        self.name, self._log = name, log
        self._figure = _FIGURES[objective]
        self._folder = esper_home() / "runs" / name
        if holder := holder_of(self._folder / "lock"):
            raise NameTaken(
                f"run {name} is trained by pid {holder.pid}; wait for its end, or: esper-daemon stop {name}"
            )
        with open(log, "wb", opener=open_private) as file:
            # A session of its own: Ctrl-C reaches the sweep alone, which then ends it in order.
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "esper_overwatch.trainer", "start", name, "--or-resume", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def judged_rounds(self, is_over: Callable[[], bool]) -> Iterator[JudgedRound]:
        """Evaluations as they come, until the process has ended; those of earlier boots, too.

        Args:
            is_over: asked now and then; true ends it early.
        """
        subscriber: Subscriber | None = None
        try:
            while self._child.poll() is None:
                if is_over():
                    return
                if subscriber is None:
                    subscriber = self._subscribe()
                    continue
                yield from self._judged(item for item in subscriber.drain() if isinstance(item, Event))
                subscriber.wait(LOOK_SECONDS)
        finally:
            if subscriber is not None:
                subscriber.close()
        yield from self._judged(self._journal())

    def _subscribe(self) -> Subscriber | None:
        """None until the child has opened its sockets, so that no other run of a like name is meant."""
        holder = holder_of(self._folder / "lock")
        if (
            holder is not None
            and holder.pid == self._child.pid
            and (self._folder / "connection.json").exists()
        ):
            return Subscriber(self.name, streams=(_STREAM,), client=CLIENT_NAME)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(LOOK_SECONDS)
        return None

    def _judged(self, events: Iterator[Event]) -> Iterator[JudgedRound]:
        for event in events:
            if isinstance(event.data, EvaluationFinished) and not event.data.is_rival:
                yield JudgedRound(event.ctx.round or 0, getattr(event.data, self._figure))

    def _journal(self) -> Iterator[Event]:
        if was_trained(self.name):
            yield from read(self._folder / EVENTS_FILE, on_bad=lambda *_: None, wanted=JournalRange(_STREAM))

    def stop(self) -> None:
        """End it in order, with a checkpoint; returns once it has ended."""
        if self._child.poll() is None:
            self._child.terminate()
        self._child.wait()

    def failure(self, rounds: int) -> str | None:
        """After its end: why it did not train all rounds; None if it did."""
        code = self._child.wait()
        if code != 0:
            return f"exit code {code}: {self._last_words()}"
        stops = [event.data for event in self._journal() if isinstance(event.data, RunStopped)]
        if stops and stops[-1].rounds < rounds:
            return f"stopped after round {stops[-1].rounds} of {rounds}"
        return None

    def _last_words(self) -> str:
        """The last line that the child has printed."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        return clean_text(said[-1].removeprefix("esper-daemon: ")) if said else f"see {self._log}"

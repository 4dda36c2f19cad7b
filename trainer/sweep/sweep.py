"""Runs the trials of a sweep, one after another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from esper_overwatch.protocol.errors import EsperError, NameTaken
from esper_overwatch.protocol.messages.events import EvaluationFinished
from esper_overwatch.protocol.runs import was_trained
from esper_overwatch.protocol.storage.lock import Lock, LockHeld
from esper_overwatch.trainer.config import load as settings

from .space import format_value
from .study import FAILED, FINISHED, PRUNED, SweepStudy, SweepTerms, Trial
from .trial_run import TrialRun

MAX_FAILURES = 3
"""Trials in a row whose failure ends a sweep."""

_FIGURES = {"return": "return_mean", "test_accuracy": "test_accuracy_mean"}
"""Fields of an evaluation by objective."""


class SweepFailed(EsperError):
    """Trial after trial has failed."""

    exit_code = 11


class Sweep:
    """Continues a study up to a number of trials.

    Args:
        study: whose.
        terms: of it.
        words: options of `start` for every trial, but for what `sets` has.
        sets: `key=value` texts for every trial.
        rounds: that a trial trains.
        say: prints a line.
    """

    def __init__(
        self,
        study: SweepStudy,
        terms: SweepTerms,
        words: Sequence[str],
        sets: Sequence[str],
        rounds: int,
        say: Callable[[str], None],
    ) -> None:
        self._study, self._terms, self._words, self._sets = study, terms, words, sets
        self._rounds, self._say = rounds, say
        self._is_interrupted = False

    def interrupt(self) -> None:
        """For a signal handler: end the run in order and leave its trial to be gone on with.

        Raises:
            KeyboardInterrupt: for the second time; leave now.
        """
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True

    def run(self, trials: int) -> bool:
        """Run the missing ones of `trials` trials; an interrupted one goes on from its newest checkpoint.

        Returns:
            True if all are done; else it was interrupted.

        Raises:
            NameTaken: another process has the sweep, or a run of its name is there.
            SweepFailed: `MAX_FAILURES` trials failed one after another.
        """
        with _held(self._study):
            failures = 0
            while self._wants_trial(trials):
                trial = self._begin()
                reason = self._run(trial)
                if self._is_interrupted:
                    return False
                failures = failures + 1 if reason else 0
                if failures == MAX_FAILURES:
                    raise SweepFailed(f"{failures} trials failed one after another; the last: {reason}")
        return True

    def _wants_trial(self, trials: int) -> bool:
        results = self._study.results()
        return len(results) < trials or any(result.state == "running" for result in results)

    def _begin(self) -> Trial:
        results = self._study.results()
        is_new = all(result.state != "running" for result in results)
        name = self._study.run_name(len(results) + 1)
        if is_new and was_trained(name):
            raise NameTaken(f"there is a run {name} already; choose another --name, or remove that run")
        trial = self._study.next_trial(self._terms)
        drawn = ", ".join(f"{key} = {format_value(value)}" for key, value in trial.options.items())
        self._say(f"{self._study.run_name(trial.number)}: {drawn}" + ("" if is_new else "; goes on"))
        return trial

    def _run(self, trial: Trial) -> str | None:
        """Train it to its end; why it failed, if it did."""
        name = self._study.run_name(trial.number)
        drawn = [f"{key}={format_value(value)}" for key, value in trial.options.items()]
        chosen = settings.drop_idle(self._terms.config, [*self._sets, *drawn])  # a draw may switch others off
        sets = [word for one in chosen for word in ("--set", one)]
        log = self._study.folder / f"{name}.log"
        run = TrialRun(name, [*self._words, *sets], log, self._study.name)
        try:
            reason, is_pruned = self._judge(trial, run)
        finally:
            run.stop()
        if is_pruned:
            trial.end(PRUNED)
        elif self._is_interrupted:
            return None
        else:
            reason = reason or run.failure(self._rounds)
            if reason is None and not trial.evaluations:
                reason = "was never evaluated"
            trial.end(FAILED if reason else FINISHED, reason or "")
        state = f"failed: {reason}" if reason else "pruned" if is_pruned else "finished"
        self._say(f"{name}: {state}{self._best_so_far()}")
        return reason

    def _judge(self, trial: Trial, run: TrialRun) -> tuple[str | None, bool]:
        """Report what it is worth until it ends; why it failed, and whether it is to be pruned."""
        for event in run.events(lambda: self._is_interrupted):
            round_ = event.ctx.round or 0
            if not isinstance(event.data, EvaluationFinished) or event.data.is_rival:
                continue
            if round_ in trial.evaluations:
                continue
            value: float = getattr(event.data, _FIGURES[self._terms.objective])
            if not math.isfinite(value):
                return f"its {self._terms.objective} after round {round_} is not a number", False
            trial.report(round_, value)
            self._say(
                f"{run.name}: {self._terms.objective} {value:.4g} after round {round_} of {self._rounds}"
            )
            if round_ < self._rounds and trial.should_be_pruned:
                return None, True
        return None, False

    def _best_so_far(self) -> str:
        best = self._study.best()
        return f"; best so far: {best.run}, {best.value:.4g}" if best is not None else ""


@contextmanager
def _held(study: SweepStudy) -> Iterator[None]:
    """Raises NameTaken where another process runs it."""
    path: Path = study.folder / "lock"
    try:
        lock = Lock(path)
    except LockHeld as held:
        raise NameTaken(f"sweep {study.name} is run by pid {held.holder.pid}") from None
    try:
        yield
    finally:
        lock.release()

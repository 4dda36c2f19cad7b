"""The trials of a sweep and what they found, as Optuna keeps them in a SQLite file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from esper_overwatch.protocol.errors import EsperError, FolderError, RunNotFound
from esper_overwatch.protocol.storage.folders import esper_home, make_private

from .space import Dimension, Objective

optuna.logging.set_verbosity(optuna.logging.ERROR)
FILE = "study.db"
RANDOM_TRIALS = 10
"""Trials drawn at random, before what was found guides the draws."""
TERMS, REASON = "terms", "reason"
"""Names under which the study keeps what it was begun with, and a trial why it failed."""
RUNNING, FINISHED, PRUNED, FAILED = "running", "finished", "pruned", "failed"
_STATES = {
    optuna.trial.TrialState.RUNNING: RUNNING,
    optuna.trial.TrialState.WAITING: RUNNING,
    optuna.trial.TrialState.COMPLETE: FINISHED,
    optuna.trial.TrialState.PRUNED: PRUNED,
    optuna.trial.TrialState.FAIL: FAILED,
}


class SweepMismatch(EsperError):
    """A sweep was begun with other options."""

    exit_code = 9


@dataclass(frozen=True)
class SweepTerms:
    """Common terms of a sweep's trials.

    Attributes:
        space: what varies.
        objective: measure that evaluations are compared by, the higher the better.
        startup: trials that must finish before one is pruned.
        seed: of the draws.
        config: the options of all trials, nested.
    """

    space: tuple[Dimension, ...]
    objective: Objective
    startup: int
    seed: int
    config: Mapping[str, Any]

    def to_builtins(self) -> dict[str, Any]:
        """Fields as JSON has them."""
        parts = vars(self) | {"space": {one.key: vars(one) for one in self.space}}
        parsed: dict[str, Any] = json.loads(json.dumps(parts))
        return parsed


@dataclass(frozen=True)
class TrialResult:
    """State of a trial.

    Attributes:
        number: from 1.
        state: running, finished, pruned or failed.
        value: of the newest evaluation; None where there was none.
        evaluations: values by round.
        options: what was drawn for it.
        reason: why it failed.
    """

    number: int
    run: str
    state: str
    value: float | None
    evaluations: dict[int, float]
    options: dict[str, Any]
    reason: str = ""


class SweepStudy:
    """A sweep's file.

    Args:
        folder: of the sweep, which has the name of its file's study.

    Raises:
        FolderError: the file cannot be read or written.
    """

    def __init__(self, folder: Path, study: optuna.Study) -> None:
        self.folder = folder
        self._study = study
        self.name = study.study_name

    @classmethod
    def create(cls, folder: Path, name: str, terms: SweepTerms) -> SweepStudy:
        """A new one, or that which is there and was begun so.

        Raises:
            FolderError: the folder cannot be used.
            SweepMismatch: it was begun with other options, which it says, or under another name.
        """
        make_private(folder, advice="choose another folder with --to", readable=True)
        try:
            storage = _storage(folder)
            names = optuna.get_all_study_names(storage)
            if names and name not in names:
                raise SweepMismatch(
                    f"{folder} holds the sweep {names[0]}; go on with it by --name {names[0]}, "
                    "or choose another folder with --to"
                )
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                direction="maximize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner(n_startup_trials=terms.startup),
            )
            before = study.user_attrs.get(TERMS)
            if before is None:
                study.set_user_attr(TERMS, terms.to_builtins())
        except SQLAlchemyError as error:
            raise FolderError(f"cannot use {folder / FILE}: {_first_line(error)}") from None
        if before is not None:
            _require_same(name, before, terms.to_builtins())
        return cls(folder, study)

    @classmethod
    def open(cls, folder: Path) -> SweepStudy:
        """The one in a folder.

        Raises:
            RunNotFound: there is none.
            FolderError: the file cannot be read.
        """
        if not (folder / FILE).is_file():
            raise RunNotFound(f"no sweep in {folder}; there are: {', '.join(list_sweeps()) or 'none'}")
        try:
            storage = _storage(folder)
            names = optuna.get_all_study_names(storage)
            studies = [optuna.load_study(study_name=name, storage=storage) for name in names]
        except (SQLAlchemyError, ValueError) as error:
            raise FolderError(f"cannot read {folder / FILE}: {_first_line(error)}") from None
        begun = [study for study in studies if TERMS in study.user_attrs]
        if not begun:
            raise RunNotFound(f"the sweep in {folder} was ended before it began; give its command again")
        if len(begun) > 1:
            raise FolderError(
                f"{folder} holds several sweeps: {', '.join(names)}; the command of each still shows its own"
            )
        return cls(folder, begun[0])

    @property
    def terms(self) -> dict[str, Any]:
        """See `SweepTerms.to_builtins`."""
        terms: dict[str, Any] = self._study.user_attrs[TERMS]
        return terms

    def results(self) -> list[TrialResult]:
        """All trials, in their order."""
        return [
            TrialResult(
                number=trial.number + 1,
                run=self.run_name(trial.number + 1),
                state=_STATES[trial.state],
                value=_newest(trial.intermediate_values),
                evaluations=dict(sorted(trial.intermediate_values.items())),
                options=trial.params,
                reason=trial.user_attrs.get(REASON, ""),
            )
            for trial in self._study.get_trials(deepcopy=False)
        ]

    def best(self) -> TrialResult | None:
        """The finished trial of the highest value, the earliest of equals; None where none has finished."""
        finished = [one for one in self.results() if one.state == FINISHED and one.value is not None]
        return max(finished, key=lambda one: one.value or 0.0, default=None)

    def run_name(self, number: int) -> str:
        """Name of a trial's run."""
        return f"{self.name}-{number}"

    def next_trial(self, terms: SweepTerms) -> Trial:
        """The one that was interrupted, or else a new one.

        What is drawn depends on the trial's number and on what earlier ones found, not on interruptions.
        """
        trials = self._study.get_trials(deepcopy=False)
        for known in trials:
            if known.state == optuna.trial.TrialState.RUNNING:
                if known.params.keys() != {dimension.key for dimension in terms.space}:
                    self._study.tell(known.number, state=optuna.trial.TrialState.FAIL)  # killed while drawing
                    continue
                # Optuna has no public name for the id that a trial is taken up by.
                return Trial(self._study, optuna.trial.Trial(self._study, known._trial_id))
        seed = (terms.seed + 1_000_003 * len(trials)) % 2**32
        self._study.sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed)
        distributions = {dimension.key: _distribution(dimension) for dimension in terms.space}
        return Trial(self._study, self._study.ask(distributions))


class Trial:
    """A trial that runs."""

    def __init__(self, study: optuna.Study, trial: optuna.trial.Trial) -> None:
        self._study, self._trial = study, trial
        self.number = trial.number + 1
        self.options: dict[str, Any] = trial.params
        frozen = study.get_trials(deepcopy=False)[trial.number]
        self.evaluations: dict[int, float] = dict(frozen.intermediate_values)
        """Values by round."""

    def report(self, round_: int, value: float) -> None:
        """Keep an evaluation's value."""
        if round_ not in self.evaluations:
            self._trial.report(value, round_)
            self.evaluations[round_] = value

    @property
    def should_be_pruned(self) -> bool:
        """True if its best value is below the median of the finished trials at the newest round."""
        return self._trial.should_prune()

    def end(self, state: str, reason: str = "") -> None:
        """End a trial as finished, pruned or failed, with the reason."""
        if reason:
            self._trial.set_user_attr(REASON, reason)
        if state == FINISHED:
            self._study.tell(self._trial, _newest(self.evaluations))
        else:
            by_name = {name: one for one, name in _STATES.items()}
            self._study.tell(self._trial, state=by_name[state])


def sweeps_folder() -> Path:
    """Folder of sweeps that were given none."""
    return esper_home() / "sweeps"


def list_sweeps() -> list[str]:
    """Names of those in `sweeps_folder`."""
    return sorted(path.parent.name for path in sweeps_folder().glob(f"*/{FILE}"))


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    if dimension.choices:
        return optuna.distributions.CategoricalDistribution(dimension.choices)
    if dimension.is_whole:
        return optuna.distributions.IntDistribution(
            int(dimension.low), int(dimension.high), log=dimension.log, step=int(dimension.step or 1)
        )
    return optuna.distributions.FloatDistribution(
        dimension.low, dimension.high, log=dimension.log, step=dimension.step
    )


def _newest(evaluations: Mapping[int, float]) -> float | None:
    return evaluations[max(evaluations)] if evaluations else None


def _storage(folder: Path) -> optuna.storages.RDBStorage:
    path = str(folder.absolute() / FILE)
    return optuna.storages.RDBStorage(URL.create("sqlite", database=path).render_as_string())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _require_same(name: str, before: Any, now: Any, key: str = "") -> None:
    """Raises SweepMismatch at the first difference."""
    if isinstance(before, dict) and isinstance(now, dict):
        for one in [*before, *(k for k in now if k not in before)]:
            _require_same(name, before.get(one), now.get(one), f"{key}.{one}" if key else one)
    elif before != now:
        what = key.removeprefix("config.")
        raise SweepMismatch(
            f"sweep {name} was begun with {what} = {_words(before)}, now {_words(now)}; "
            "give what it was begun with, or another --name"
        )


def _words(value: Any) -> str:
    return "nothing" if value is None else str(value) if not isinstance(value, dict) else "another range"

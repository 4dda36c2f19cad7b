"""Runs a comparison: computes the cells that its store does not hold yet, and puts the results together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.episode_table import EpisodeTable
from esper_overwatch.trainer.evaluation.held_out import HeldOutHosts

from .cells import CellStore
from .policy_words import PPO, SEARCHED, Word
from .progress import Progress
from .results import PolicyResult, summarise
from .steps import Step, Steps
from .workbench import Workbench

WAIT_SECONDS = 2.0
"""Between two looks at what other processes compute."""


@dataclass(frozen=True)
class ComparisonRequest:
    """The comparison asked for.

    Attributes:
        words: the policies.
        seeds: those that are trained have the seeds 1 to `seeds`.
        episodes: of each training, and of each search.
        held_out: hosts that all are played on.
    """

    words: tuple[Word, ...]
    seeds: int
    episodes: int
    held_out: HeldOutHosts


def compare(
    cfg: Config,
    data: Task,
    request: ComparisonRequest,
    store: CellStore,
    device: torch.device,
    progress: Progress,
) -> dict[str, Any]:
    """Compute what is missing; all figures, see `results.summarise`.

    Args:
        cfg: what is trained and searched with; its seed and rounds are replaced.
        data: its task.

    Raises:
        EsperError: a policy cannot be trained, read or played here.
    """
    bench = Workbench(cfg, data, request.held_out, device)
    steps = Steps(bench, request.episodes, store, progress)
    try:
        _check_words(request.words, cfg)
        _check_files(request.words, bench)
        plays = {word: _plays_of(word, request, steps, bench) for word in request.words}
        again = {
            word: _plays_of(word, request, steps, bench, search=2)
            for word in request.words
            if word == Word(word.base) and word.base in SEARCHED
        }
        every = [*plays.values(), *again.values()]
        _compute(_in_order(step for of_word in every for step in of_word), store, progress)
    finally:
        bench.close()
    results = [_result_of(word, of_word, again.get(word, ()), steps) for word, of_word in plays.items()]
    unseen = [task for task in bench.tasks if task not in bench.trained_tasks]
    return summarise(results, unseen) | {
        "seeds": request.seeds,
        "episodes": request.episodes,
        "host_parameters": bench.host_parameters,
    }


def _check_words(words: Iterable[Word], cfg: Config) -> None:
    """Refuse a policy that would plant after the last epoch."""
    for word in words:
        if word.epoch >= cfg.episode_epochs:
            raise ConfigError(
                f"--policy {word}: it would never plant; name an epoch from 0 to {cfg.episode_epochs - 1}"
            )


def _check_files(words: Iterable[Word], bench: Workbench) -> None:
    """Refuse a policy's file that does not fit now, not after hours, when it is its turn."""
    paths = [word.path for word in words if word.path is not None]
    if bench.cfg.policy.file and any(word.base == PPO for word in words):
        paths.append(Path(bench.cfg.policy.file))
    for path in paths:
        bench.saved_policy(path)


def _plays_of(
    word: Word, request: ComparisonRequest, steps: Steps, bench: Workbench, search: int = 1
) -> list[Step]:
    """A policy's episodes on the held-out hosts: of each seed, or once.

    Args:
        search: seed of the hosts that schedules are searched on.
    """
    seeds = range(1, request.seeds + 1)
    if word.base == PPO:
        return [steps.play(word, (steps.training(seed),), seed) for seed in seeds]
    if word.base == "bandit":
        return [steps.play(word, (steps.search("bandit", seed, word.epoch),), seed) for seed in seeds]
    if word.base == "static":
        of = Word(PPO) if Word(PPO) in request.words else Word("constant")
        others = _plays_of(of, request, steps, bench)
        return [steps.play(word, (other,), number) for number, other in enumerate(others, start=1)]
    if word.base in SEARCHED:
        return [steps.play(word, (steps.search(word.base, search),))]
    return [steps.play(word)]


def _in_order(plays: Iterable[Step]) -> Iterator[Step]:
    """All steps, each once, after what it needs."""
    seen: set[str] = set()
    for step in plays:
        for one in (*_in_order(step.needs), step):
            if one.cell.file not in seen:
                seen.add(one.cell.file)
                yield one


def _compute(steps: Iterator[Step], store: CellStore, progress: Progress) -> None:
    """Compute what is missing, beside other processes that do the same in this folder."""
    every = list(steps)
    missing = [step for step in every if store.load(step.cell) is None]
    progress.begin(sum(step.episodes for step in missing), len(every), len(every) - len(missing))
    while missing:
        mine = _compute_free(missing, store, progress)
        left = [step for step in missing if store.load(step.cell) is None]
        progress.leave_out(sum(step.episodes for step in missing if step not in (*left, *mine)))
        missing = left
        if missing and not mine:
            progress.wait_for([step.cell.name for step in missing])
            time.sleep(WAIT_SECONDS)


def _compute_free(missing: Sequence[Step], store: CellStore, progress: Progress) -> list[Step]:
    """Compute the steps that have what they need and that no other process computes; which these were."""
    mine = []
    for step in missing:
        if any(store.load(need.cell) is None for need in step.needs):
            continue
        with store.claim(step.cell) as is_free:
            if is_free and store.load(step.cell) is None:
                store.save(step.cell, step.compute(store.load_part(step.cell)))
                progress.end_step()
                mine.append(step)
    return mine


def _result_of(word: Word, plays: Sequence[Step], again: Sequence[Step], steps: Steps) -> PolicyResult:
    results = [steps.result(play) for play in plays]
    training: dict[str, Any] = {}
    if word.base == PPO:
        figures = [steps.result(play.needs[0]) for play in plays]
        training = {
            "episodes": figures[0]["episodes"],
            "seconds": [one["seconds"] for one in figures],
            "explained_variance_within": [_last_quarter(one["explained_variance_within"]) for one in figures],
        }
    tables = [EpisodeTable.from_builtins(result["table"]) for result in results]
    others = [steps.result(play) for play in again]
    second = [(EpisodeTable.from_builtins(other["table"]), str(other["note"])) for other in others]
    return PolicyResult(word, tables, str(results[0]["note"]), training, second)


def _last_quarter(values: Sequence[float | None]) -> float | None:
    """Mean over the last quarter of the updates; None where none is known."""
    known = [value for value in values[math.floor(0.75 * len(values)) :] if value is not None]
    return sum(known) / len(known) if known else None

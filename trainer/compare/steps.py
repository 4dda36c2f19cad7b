"""The cells of a comparison: what each is, what its result depends on, how it is computed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from esper_overwatch.protocol.storage.folders import esper_home
from esper_overwatch.protocol.version import __version__
from esper_overwatch.trainer.episode_table import EpisodeTable
from esper_overwatch.trainer.evaluation.frozen_policy import FrozenPolicy
from esper_overwatch.trainer.policy.saved_policy import PolicyMismatch

from .bandit import Bandit
from .cells import Cell, CellStore
from .frozen_policies import ScheduledPolicy, ShuffledPolicy, StaticPolicy
from .policy_words import PPO, RULES, SEARCHED, Word
from .progress import Progress
from .searches import TaskSearcher, pack, run_search, unpack
from .training import Training, configure_training
from .workbench import Workbench

FORMAT = 2
"""Version of the cells; those of another one are computed again."""
OF_HOSTS = ("task", "host", "amp", "seeds", "gates", "governor", "validation", "reward")
OF_TRAINING = (*OF_HOSTS, "policy", "ppo")
"""Sections of the configuration that results depend on; the others say how to compute and what to tell."""


@dataclass(frozen=True)
class Step:
    """A cell, and how it is computed.

    Attributes:
        episodes: that this takes.
        compute: what an interrupted process has saved of it -> the result.
        needs: steps whose results it takes.
    """

    cell: Cell
    episodes: int
    compute: Callable[[bytes | None], Mapping[str, Any]]
    needs: tuple[Step, ...] = ()


class Steps:
    """Makes the steps of a comparison.

    Args:
        bench: what they share.
        episodes: of each training, and of each search.
        store: of the results that steps need.
        progress: learns how far a step is.
    """

    def __init__(self, bench: Workbench, episodes: int, store: CellStore, progress: Progress) -> None:
        self._bench, self._episodes = bench, episodes
        self._store, self._progress = store, progress

    def training(self, seed: int) -> Step:
        """PPO, trained with a seed; what it has learnt is kept in the cell's second file."""
        bench, envs = self._bench, self._bench.cfg.envs.count
        cfg = configure_training(bench.cfg, seed, rounds=-(-self._episodes // envs))
        name, rounds = f"train-ppo-{seed}", cfg.rounds
        of = {"seed": seed, "rounds": rounds, "envs": envs, "copies": cfg.envs.copies}
        cell = self._cell(name, OF_TRAINING, **of)

        def compute(part: bytes | None) -> Mapping[str, Any]:
            run = self._run_name(cell, seed, part)
            training = Training(run, cfg, self._store.folder)
            self._progress.begin_step(name, rounds * envs, training.finished * envs)
            training.train(rounds, lambda finished: self._progress.advance(finished * envs))
            self._store.save_file(cell, pack(training.learnt()))
            return {"run": run, "episodes": rounds * envs} | training.figures()

        return Step(cell, rounds * envs, compute)

    def _run_name(self, cell: Cell, seed: int, part: bytes | None) -> str:
        """The name of a training's run: that with which it was begun, else one that no run has."""
        if part is not None:
            return part.decode()
        folder = re.sub(r"[^A-Za-z0-9_.-]", "-", self._store.folder.resolve().name).lstrip("-_.")[:40]
        name = f"{folder or 'compare'}-ppo-{seed}"
        names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
        free = next(name for name in names if not (esper_home() / "runs" / name).exists())
        self._store.save_part(cell, free.encode())
        return free

    def search(self, kind: str, seed: int, epoch: int = 0) -> Step:
        """The best schedule over all tasks, `constant`, or of each, `oracle`; or what `bandit` learns, whose
        episodes are kept in the cell's second file.

        Args:
            seed: of the hosts that are searched on.
            epoch: at which is planted.
        """
        bench, together = self._bench, self._bench.cfg.envs.count
        tasks = bench.tasks if kind == "oracle" else bench.trained_tasks
        schedule_KS = bench.schedules()
        name = f"search-{kind}-{seed}"
        of = {"seed": seed, "episodes": self._episodes, "envs": together, "tasks": list(tasks), "kind": kind}
        cell = self._cell(name, OF_HOSTS, **of, epoch=epoch)

        def save(part: bytes, played: int) -> None:
            self._store.save_part(cell, part)
            self._progress.advance(played)

        def compute(part: bytes | None) -> Mapping[str, Any]:
            by_task = TaskSearcher(len(tasks), schedule_KS, is_for_each=kind == "oracle")
            searcher = Bandit(schedule_KS, seed) if kind == "bandit" else by_task
            episodes = bench.search_episodes(seed, tasks)
            found = run_search(
                searcher,
                lambda hosts, choose: episodes.play_schedules(hosts, choose, schedule_KS, epoch),
                episodes=self._episodes,
                together=together,
                part=part,
                begin=partial(self._progress.begin_step, name, self._episodes),
                save=save,
            )
            figures = {"episodes": len(found["paid"]), "candidates": len(schedule_KS)}
            if kind == "bandit":
                self._store.save_file(cell, pack(found))
                return figures
            best, values = by_task.best, by_task.values
            return figures | {
                "plants": [schedule_KS[k].tolist() for k in best],
                "worth": [float(values.mean_GK[task, k]) for task, k in enumerate(best)],
                "tried": values.tried_GK.sum(1).tolist(),
            }

        return Step(cell, self._episodes, compute)

    def play(self, word: Word, needs: tuple[Step, ...] = (), seed: int | None = None) -> Step:
        """A policy's episodes on the held-out hosts."""
        bench, held_out = self._bench, self._bench.held_out
        label = str(word) if word.path is None else word.path.stem + f"+{word.control}" * bool(word.control)
        name = f"play-{label}" + ("" if seed is None else f"-{seed}")
        digest = _digest(word.path) if word.path else ""
        cell = self._cell(
            name,
            OF_HOSTS,
            policy=[
                digest or word.base,
                word.control,
                word.epoch,
                bench.cfg.policy.hidden,
                bench.cfg.policy.decision_epochs,
            ],
            needs=[need.cell.file for need in needs],
            held_out=asdict(held_out),
            tasks=list(bench.tasks),
        )

        def compute(_: bytes | None) -> Mapping[str, Any]:
            self._progress.begin_step(name, held_out.count)
            policy, note = self._policy(word, needs)
            if word.control == "shuffled":
                policy = ShuffledPolicy.of(policy)
            return {"table": bench.held_out_episodes.play(policy).to_builtins(), "note": note}

        return Step(cell, held_out.count, compute, needs)

    def result(self, step: Step) -> dict[str, Any]:
        """Result of a step that is done."""
        result = self._store.load(step.cell)
        assert result is not None, f"{step.cell.file} is computed before it is needed"
        return result

    def _cell(self, name: str, sections: Sequence[str], **also: Any) -> Cell:
        cfg = self._bench.cfg
        options = {section: msgspec.to_builtins(getattr(cfg, section)) for section in sections}
        if cfg.policy.file and "policy" in options:
            options["policy"]["file"] = _digest(Path(cfg.policy.file))  # a path may get another policy
        key = {"format": FORMAT, "version": __version__, "episode_epochs": cfg.episode_epochs, **options}
        return Cell(name, key | {"gamma": cfg.ppo.gamma, "of": also})  # it discounts what shapes a return

    def _policy(self, word: Word, needs: Sequence[Step]) -> tuple[FrozenPolicy, str]:
        """The policy to play, and in words what of it was chosen or loaded."""
        bench, results = self._bench, [self.result(need) for need in needs]
        if word.base in RULES:
            return FrozenPolicy(word.base), ""
        if word.base == PPO:
            return bench.network(unpack(self._store.load_file(needs[0].cell))), ""
        if word.base == "bandit":
            found, schedule_KS = unpack(self._store.load_file(needs[0].cell)), bench.schedules()
            bandit = Bandit(schedule_KS, seed=0)
            bandit.observe(range(len(found["paid"])), found)
            return ScheduledPolicy.by(
                lambda seen: schedule_KS[bandit.best(seen.host_features())], word.epoch
            ), ""
        if word.base == "static":
            table = EpisodeTable.from_builtins(results[0]["table"])
            policy = StaticPolicy.of(table.blueprint.tolist(), table.style.tolist())
            return policy, f"the seeds of {needs[0].cell.name}"
        if word.base in SEARCHED:
            plants, hosts = results[0]["plants"], range(bench.held_out.count)
            if word.base == "oracle":
                best = dict(zip(bench.tasks, plants, strict=True))
                note = "; ".join(f"{task}: {bench.label(best[task])}" for task in bench.tasks)
                return ScheduledPolicy.of(torch.tensor([best[bench.task_of_host(h)] for h in hosts])), note
            plant_NS = torch.tensor([plants[0] for _ in hosts])
            return ScheduledPolicy.of(plant_NS, word.epoch), bench.label(plants[0])
        assert word.path is not None
        return bench.saved_policy(word.path), word.base


def _digest(path: Path) -> str:
    """Digest of a policy's file, since a result depends on its content."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise PolicyMismatch(f"policy {path} cannot be read: {error.strerror}") from None

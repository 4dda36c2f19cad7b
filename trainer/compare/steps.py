"""The cells of a comparison: what each is, what its result depends on, how it is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from esper_overwatch.protocol.version import __version__
from esper_overwatch.trainer.episode_table import EpisodeTable
from esper_overwatch.trainer.evaluation.frozen_policy import FrozenPolicy
from esper_overwatch.trainer.policy.saved_policy import PolicyMismatch

from .cells import Cell, CellStore
from .frozen_policies import PlanPolicy, StaticPolicy, shuffled, told
from .halving import Halving, plan_rungs
from .plans import Plan, constant_schedules, halving_plans
from .policy_words import RULES, Word
from .progress import Progress
from .training import train_policy
from .workbench import SEARCH_SEED, Workbench, pack_weights, task_numbers, unpack_weights

FORMAT = 1
"""Version of the cells; those of another one are computed again."""
OF_HOSTS = ("task", "host", "amp", "seeds", "gates", "governor", "validation", "reward")
OF_TRAINING = (*OF_HOSTS, "policy", "teacher", "ppo")
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

    def training(self, control: str, seed: int) -> Step:
        """PPO, trained with a seed; its weights are kept in the cell's second file."""
        bench, is_told = self._bench, control == "told"
        name = f"train-ppo{'+told' if is_told else ''}-{seed}"
        envs = bench.cfg.envs.count
        rounds = -(-self._episodes // envs)
        cell = self._cell(name, OF_TRAINING, seed=seed, rounds=rounds, envs=envs)

        def compute(part: bytes | None) -> Mapping[str, Any]:
            figures, network = train_policy(
                bench.cfg,
                bench.data,
                bench.device,
                seed=seed,
                rounds=rounds,
                revealed=task_numbers(bench.data, bench.trained_tasks) if is_told else None,
                part=part,
                begin=partial(self._progress.begin_step, name, rounds * envs),
                save=partial(self._store.save_part, cell),
                report=self._progress.advance,
            )
            self._store.save_file(cell, pack_weights(network))
            return figures

        return Step(cell, rounds * envs, compute)

    def search(self, kind: str, tasks: Sequence[str], episodes: int) -> Step:
        """The best plan of a kind, `constant` or `halving`, for the mean over hosts of these tasks."""
        bench, blueprints = self._bench, self._bench.cfg.seeds.blueprints
        plans = {"constant": constant_schedules, "halving": halving_plans}[kind](bench.slots, len(blueprints))
        rungs = plan_rungs(len(plans), episodes, len(tasks))
        total = sum(rung.candidates * rung.hosts for rung in rungs)
        name = f"search-{kind}" + (f"-{tasks[0]}" if len(tasks) == 1 else "")
        cell = self._cell(name, OF_HOSTS, seed=SEARCH_SEED, episodes=episodes, tasks=list(tasks), kind=kind)

        def compute(part: bytes | None) -> Mapping[str, Any]:
            halving = Halving(len(plans)) if part is None else Halving.of(json.loads(part))
            self._progress.begin_step(name, total, halving.episodes)
            episodes = bench.search_episodes(tasks)

            def play(pairs: list[tuple[int, int]]) -> list[float]:
                return episodes.play_plans([plans[c] for c, _ in pairs], [host for _, host in pairs])

            def save() -> None:
                self._store.save_part(cell, json.dumps(halving.state).encode())
                self._progress.advance(halving.episodes)

            winner = halving.run(rungs, play, together=len(episodes), save=save)
            return {
                "plan": asdict(plans[winner]),
                "label": plans[winner].label(blueprints),
                "return": halving.mean(winner),
                "episodes": halving.episodes,
                "candidates": len(plans),
                "rungs": [asdict(rung) for rung in rungs],
            }

        return Step(cell, total, compute)

    def play(self, word: Word, needs: tuple[Step, ...] = (), seed: int | None = None) -> Step:
        """A policy's episodes on the held-out hosts."""
        bench, held_out = self._bench, self._bench.held_out
        control = f"+{word.control}" if word.control else ""
        label = word.path.stem if word.path else word.base
        name = f"play-{label}{control}" + ("" if seed is None else f"-{seed}")
        digest = _digest(word.path) if word.path else ""
        cell = self._cell(
            name,
            OF_HOSTS,
            policy=[digest or word.base, word.control, bench.cfg.policy.hidden],
            needs=[need.cell.file for need in needs],
            held_out=asdict(held_out),
            tasks=list(bench.tasks),
        )

        def compute(_: bytes | None) -> Mapping[str, Any]:
            self._progress.begin_step(name, held_out.count)
            policy, note = self._policy(word, needs)
            if word.control == "shuffled":
                policy = shuffled(policy)
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
        if word.base == "ppo":
            network = bench.network(unpack_weights(self._store.load_file(needs[0].cell)))
            if word.control == "told":
                numbers = task_numbers(bench.held_out_data, bench.trained_tasks)
                return told(network, numbers), "each host's task is shown to it"
            return FrozenPolicy.learned(network), ""
        if word.base == "static":
            table = EpisodeTable.from_builtins(results[0]["table"])
            policy = StaticPolicy.of(table.blueprint.tolist(), table.style.tolist())
            return policy, f"the seeds of {needs[0].cell.name}"
        if word.base == "oracle":
            best = {task: _plan(one) for task, one in zip(bench.tasks, results, strict=True)}
            labels = (f"{task}: {one['label']}" for task, one in zip(bench.tasks, results, strict=True))
            hosts = range(bench.held_out.count)
            return PlanPolicy.of([best[bench.task_of_host(host)] for host in hosts]), "; ".join(labels)
        if word.path is None:
            plan = _plan(results[0])
            return PlanPolicy.of([plan] * bench.held_out.count), str(results[0]["label"])
        return FrozenPolicy.learned(bench.saved_network(word.path)), word.base


def _digest(path: Path) -> str:
    """Digest of a policy's file, since a result depends on its content."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise PolicyMismatch(f"policy {path} cannot be read: {error.strerror}") from None


def _plan(result: Mapping[str, Any]) -> Plan:
    """The winner of a search."""
    return Plan(tuple(result["plan"]["blueprints"]), bool(result["plan"]["halves"]))

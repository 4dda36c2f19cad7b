"""Evaluation as part of training: the policy every few rounds, its rivals once, on the same hosts."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import torch
from msgspec.structs import replace

from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.compute.process_group import ProcessGroup
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.mixture import Mixture
from esper_overwatch.trainer.data.task import Task
from esper_overwatch.trainer.episode_table import EpisodeTable, PolicyEvaluation, lead_over
from esper_overwatch.trainer.policy.actor import CONSTANT, constant_rule
from esper_overwatch.trainer.policy.network import ActorCritic

from .episodes import HeldOutEpisodes, OnEpoch
from .frozen_policy import FrozenPolicy
from .held_out import HeldOutHosts


class Evaluator:
    """Plays policies on held-out hosts, at the end of rounds.

    In each of the first rounds it plays one rival, so that no round waits for all of them; what is not
    trained gives the same result whenever it is played, so once is enough.

    Args:
        cfg: of the run; `cfg.evaluation` says what is played when.
        data: what the run learns; held-out hosts of a mixture have instances of their own.
        execution: how the run's hosts are trained.
        process_group: the ranks that the held-out hosts are split over.

    Raises:
        ConfigError: the constant rival does not fit.
        EsperError: the hosts do not fit into the memory.
    """

    def __init__(
        self,
        cfg: Config,
        data: Task,
        device: torch.device,
        execution: Execution,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self._options, self._policy = cfg.evaluation, cfg.policy
        held_out = HeldOutHosts(self._options.seed, self._options.hosts)
        if isinstance(data, Mixture):
            data = held_out.load(cfg.task, device)
        if device.type == "cpu":
            chosen = None  # by rule, for this number of hosts
        else:
            chosen = replace(execution, group_size=min(execution.group_size, held_out.count))
        self._episodes = HeldOutEpisodes(cfg, data, held_out, device, chosen, process_group)
        self._rivals: dict[str, FrozenPolicy] = {
            kind: FrozenPolicy(kind) for kind in self._options.rivals if kind != self._policy.kind
        }
        if self._options.constant and self._policy.kind != CONSTANT:
            plants, blueprints = self._options.constant, cfg.seeds.blueprints
            constant_rule(plants, blueprints, self._episodes.slots, "evaluation.constant")
            self._rivals[CONSTANT] = FrozenPolicy.constant(*plants)
        self._played: dict[str, EpisodeTable] = {}
        """Episodes of the rivals, which are not trained, by kind."""
        self._best_return = -math.inf
        self._newest: dict[str, Any] | None = None
        """Newest evaluation of the run's policy, in figures, for readers of a checkpoint."""

    @property
    def has_judged(self) -> bool:
        """True if the run's policy was ever evaluated."""
        return self._best_return > -math.inf

    def evaluate(
        self,
        round_: int,
        network: ActorCritic | None,
        on_epoch: OnEpoch | None = None,
    ) -> list[PolicyEvaluation]:
        """Play what is due after a round: the next rival, the policy, both or none.

        Args:
            round_: finished, from 1.
            network: of the run's policy; None = it is a rule.
        """
        done = []
        rival = next((kind for kind in self._rivals if kind not in self._played), None)
        if rival is not None:
            begun = time.perf_counter()
            table = self._played[rival] = self._episodes.play(self._rivals[rival], on_epoch)
            done.append(PolicyEvaluation(rival, True, table, time.perf_counter() - begun))
        kind = self._policy.kind
        if round_ % self._options.rounds == 0 and kind not in self._played:
            begun = time.perf_counter()
            table = self._episodes.play(FrozenPolicy(kind, network, True, self._policy.constant), on_epoch)
            if network is None or not self._policy.learn:
                self._played[kind] = table
            done.append(self._judge(table, time.perf_counter() - begun))
            self._newest = self._figures(round_, done[-1])
        return done

    def _figures(self, round_: int, evaluation: PolicyEvaluation) -> dict[str, Any]:
        table = evaluation.table
        return {
            "round": round_,
            "hosts": self._options.hosts,
            "seed": self._options.seed,
            "return": float(table.episode_return.mean()),
            "test_accuracy": float(table.test_accuracy.mean()),
            "added_parameters": float(table.added_parameters.mean()),
            "leads": {rival: list(lead) for rival, lead in evaluation.leads.items()},
        }

    def _judge(self, table: EpisodeTable, seconds: float) -> PolicyEvaluation:
        mean_return = float(table.episode_return.mean())
        is_best = mean_return > self._best_return
        self._best_return = max(self._best_return, mean_return)
        leads = {kind: lead_over(table, self._played[kind]) for kind in self._rivals if kind in self._played}
        return PolicyEvaluation(self._policy.kind, False, table, seconds, leads, is_best)

    def state_dict(self) -> dict[str, Any]:
        """The episodes played, and the best return."""
        return {
            "hosts": self._signature,
            "played": json.dumps({kind: table.to_builtins() for kind, table in self._played.items()}),
            "best_return": self._best_return,
            "newest": self._newest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; start over where that was with other hosts or another schedule."""
        if state["hosts"] != self._signature:
            return
        played = json.loads(state["played"])
        self._played = {kind: EpisodeTable.from_builtins(parts) for kind, parts in played.items()}
        self._best_return, self._newest = state["best_return"], state.get("newest")

    @property
    def _signature(self) -> str:
        options = self._options
        return json.dumps([options.seed, options.hosts, options.constant])

    def close(self) -> None:
        """End the worker threads."""
        self._episodes.close()

"""Recorder of frames as events: what happened in an epoch, a round and an update, at the level in force.

An epoch is recorded in three steps: `record_decision` when seeds have moved and the policy has chosen,
`begin_epoch` before the hosts train, `record_outcome` when their measurements are on the host. The recorder
keeps the clock of events.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper_overwatch.protocol.messages.events import (
    Anomaly,
    EvaluationFinished,
    RoundFinished,
    RoundStarted,
    SystemSample,
)
from esper_overwatch.protocol.messages.thresholds import (
    THRESHOLDS,
    UPDATE_SIGNALS,
    Threshold,
    kl_limits,
    value_collapse_limits,
)
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, WITH_SEED, Initiator, Level, Stage
from esper_overwatch.protocol.server.emitter import Emitter
from esper_overwatch.trainer.config.anomaly_options import DriftConfig
from esper_overwatch.trainer.episode_table import PolicyEvaluation
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics

from .anomalies import CHECKS, AnomalyDetector, Limits, Scope
from .collection.levels import LevelCode
from .collection.plan import CollectionPlan
from .columns import EpochGradients
from .drift import DEFAULTS, DriftMonitor, Smoothing
from .episode_totals import EpisodeTotals
from .epoch_events import (
    epoch_event,
    layers_event,
    rollback_events,
    round_event,
    shapley_event,
    veto_events,
)
from .round_events import evaluation_event, update_event
from .seed_events import SeedEvents, action_id
from .signal_values import (
    MAX_UPDATE_TIMES,
    MIN_UPDATE_TIMES,
    EpochSignals,
    Pace,
    ReturnRecord,
    seconds_per_step,
    update_readings,
)
from .stall_counters import StallCounts
from .timer import PhaseTimes
from .transfer import HostFrame

NO_STALLS = StallCounts()
POLICY_SCOPES: tuple[Scope, ...] = ("policy", "head", "critic")
UPDATE_READINGS = {
    field: check.reading
    for field, signal in UPDATE_SIGNALS.items()
    for check in CHECKS
    if check.threshold == signal and check.scope in ("policy", "critic")
}
"""Readings by the field of `ppo.update` that they judge."""
_NO_SEED = ~np.isin(list(Stage), WITH_SEED)
"""Stages in which there is no seed in the slot."""


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """Sizes of the run and names of its columns."""

    envs: int
    slots: Sequence[str]
    blueprints: Sequence[str]
    seed_parameters: Sequence[Sequence[int]]
    """[S][B] parameters of a seed by slot and blueprint."""
    rounds: int
    """Rounds asked for; 0 = without an end."""
    host_parameters: int
    """Parameters of a host without seeds."""
    rent: Callable[[], float] = lambda: 0.0
    """Gives `reward.rent` as it is in force: it can be changed while the run trains."""
    steps: int = 1
    """Training steps of an epoch."""
    tasks: Callable[[int], Sequence[tuple[str, int]]] | None = None
    """Gives task and instance of each env in a round, where they draw them."""


class Recorder:
    """Turns frames into events and runs drift and anomaly checks on them.

    Args:
        emitter: the wire.
        shape: names of columns.
        plan: what is collected.
        drift: how the averages of gradients follow.
        thresholds: the table of limits.
    """

    def __init__(
        self,
        emitter: Emitter,
        shape: RunShape,
        plan: CollectionPlan,
        drift: DriftConfig = DEFAULTS,
        thresholds: Mapping[str, Threshold] = THRESHOLDS,
    ) -> None:
        self._emitter = emitter
        self._plan = plan
        self._collects = True
        self._shape = shape
        n, s = shape.envs, len(shape.slots)
        hosts = [f"env{env:02d}" for env in range(n)]
        seeds = [f"{host}.{slot}" for host in hosts for slot in shape.slots]
        heads = [f"policy.{head}" for head in HEAD_NAMES]
        self._thresholds = thresholds
        of_hosts = Smoothing(drift.host_momentum, drift.host_warmup)
        of_seeds = Smoothing(drift.seed_momentum, drift.seed_warmup)
        pools = {"env": (hosts, of_hosts), "seed": (seeds, of_seeds)}
        self._env_drift = DriftMonitor(pools, drift, thresholds)
        of_policy = Smoothing(drift.policy_momentum, drift.policy_warmup)
        policy = {"policy": ["policy"], "head": heads, "critic": ["critic"]}
        pools = {scope: (names, of_policy) for scope, names in policy.items()}
        self._policy_drift = DriftMonitor(pools, drift, thresholds)
        self._anomalies = AnomalyDetector(
            emitter,
            {"env": hosts, "seed": seeds, "head": heads},
            {"env": range(n), "seed": [env for env in range(n) for _ in range(s)]},
            thresholds,
        )
        self._signals = EpochSignals(n, shape.steps)
        self._update_pace = Pace(MAX_UPDATE_TIMES, MIN_UPDATE_TIMES)
        self._returns = ReturnRecord()
        self._seeds = SeedEvents(emitter, shape.slots, shape.blueprints, shape.seed_parameters, n)
        self._round = 0
        self._epoch = self._first_epoch = 0
        self._episodes = EpisodeTotals(n)
        self._decision: HostFrame = {}
        self._outcome: HostFrame = {}
        self._sample: SystemSample | None = None
        self._level_N = plan.level_by_env
        self._level: Level = plan.level

    @property
    def round(self) -> int:
        """The round that the clock of events shows."""
        return self._round

    @property
    def epoch(self) -> int:
        """Epochs of the round that are recorded."""
        return self._epoch

    def begin_round(self, round: int) -> None:
        """N fresh hosts begin an episode."""
        self._round, self._epoch, self._first_epoch = round, 0, 0
        self._episodes.restart()
        self._seeds.restart()
        self._signals.accuracy.restart()
        self._signals.rollbacks.restart()
        self._anomalies.remove_sources("env", np.ones(self._shape.envs, dtype=np.bool_))
        self._tick_clock(self._plan.level)
        self._emitter.emit(RoundStarted(rounds=self._shape.rounds))

    def record_decision(self, frame: HostFrame, by: Initiator = "policy", command: str | None = None) -> None:
        """Seeds have moved on and the policy, or the operator, has acted, for the coming epoch.

        Args:
            frame: the columns of `decision_columns`.
            by: who acted.
            command: id of the operator's command.
        """
        for env, veto in veto_events(frame, self._decision, self._shape.slots):
            self._emitter.emit(veto, env=env)
        stage, alpha = frame["stage"], frame["alpha"]
        alpha_before = self._decision.get("alpha", alpha)
        asked, passed = self._seeds.emit_changes(frame, by, clock=(self._round, self._epoch), command=command)
        if by == "operator":  # the policy's decision stands beside what the operator did
            asked = asked | self._decision.get("gates.asked", asked)
            passed = passed | self._decision.get("gates.passed", passed)
            frame = self._decision | frame
        self._decision = frame | {"gates.asked": asked, "gates.passed": passed}
        moved = (stage != frame["stage.before"]) & ~_NO_SEED[stage]
        if moved.any():
            self._env_drift.restart("seed", moved)
            self._anomalies.restart_warm_up("seed", moved)
        self._signals.accuracy.reset_best(np.any(alpha < alpha_before, axis=1))
        self._anomalies.remove_sources("seed", _NO_SEED[stage])

    def begin_epoch(self) -> None:
        """The epoch is about to be trained: its level is settled now."""
        self._level_N = self._plan.level_by_env
        self._level = self._plan.level
        self._collects = self._plan.is_due
        self._tick_clock(self._level)
        self._anomalies.remove_unmeasured("env", self._level_N)
        self._anomalies.remove_unmeasured("seed", np.repeat(self._level_N, len(self._shape.slots)))

    @property
    def accuracy_mean(self) -> float | None:
        """Mean accuracy of the hosts on the validation split after the newest epoch."""
        return float(self._outcome["val_accuracy"].mean()) if "val_accuracy" in self._outcome else None

    def record_outcome(
        self,
        frame: HostFrame,
        times: PhaseTimes,
        layer_names: Sequence[str] = (),
        learning_rates: tuple[float | None, float | None] = (None, None),
    ) -> None:
        """The epoch's outcome has arrived.

        Args:
            frame: the columns of `outcome_columns`, and of `final_columns` in an episode's last epoch.
            times: of the epoch.
            layer_names: names of the rows of the frame's `layer.*` columns, where it has them.
            learning_rates: of hosts and seeds in the epoch.
        """
        self._outcome = frame
        self._epoch += 1
        self._tick_clock(self._level)
        self._episodes.add_epoch(frame)
        self._seeds.record_contributions(frame["contribution"])
        for env, rollback in rollback_events(frame):
            self._emitter.emit(rollback, env=env)
        gradients = EpochGradients.of(frame, self._level_N, self._tensorless_seeds())
        if self._level != "OFF":
            actions = [action_id(self._round, self._epoch - 1, env) for env in range(self._shape.envs)]
            event = epoch_event(frame, self._decision, gradients, self._episodes.total_return, times, actions)
            host_rate, seed_rate = learning_rates
            self._emitter.emit(replace(event, host_learning_rate=host_rate, seed_learning_rate=seed_rate))
        self._signals.accuracy.reset_best(self._leaves_seeds_out(frame))
        sample, self._sample = self._sample, None
        readings = self._signals.epoch_readings(
            frame,
            self._decision,
            gradients,
            times,
            sample=sample,
            dropped=sum(self._emitter.dropped.values()),
        )
        limits: Limits = {}
        cost = None
        if gradients.measured and self._collects:
            begun = time.perf_counter()
            limits = self._report_drift(gradients, readings)
            cost = time.perf_counter() - begun
        if layer_names and self._level == "DEBUG":
            self._emitter.emit(layers_event(frame, layer_names, self._level_N))
        self._plan.record_cost(times.seconds, cost, times.phases.get("layers", 0.0))
        patterns = self._signals.accuracy.credit_patterns(frame["val_accuracy"], len(self._shape.slots))
        self._anomalies.check_all(readings, limits=limits, patterns=patterns)
        if "final.stage" in frame:
            self._finish_episode(frame)

    def _finish_episode(self, frame: HostFrame) -> None:
        """No decision follows an episode's last epoch: tell now what the governor has put back in it."""
        self._seeds.emit_undone(frame, clock=(self._round, self._epoch))
        self._anomalies.remove_sources("seed", _NO_SEED[frame["final.stage"]])
        parameters = np.where(frame["governor.ill"] > 0, frame["final.parameters"], frame["parameters"])
        self._outcome = frame | {"parameters": parameters}

    @property
    def has_raised(self) -> bool:
        """True if `take_raised` has something to return."""
        return self._anomalies.has_raised

    def take_raised(self) -> list[tuple[Anomaly, int | None]]:
        """Anomalies raised, or become worse, since the last call; each with its env, where it has one."""
        return self._anomalies.take_raised()

    def report_active_anomalies(self) -> None:
        """Tell of those that a resumed boot begins with: whoever follows a boot begins with none."""
        self._anomalies.emit_active()

    def record_update(self, statistics: UpdateStatistics) -> None:
        """The policy has learnt from the round."""
        readings: dict[str, Any] = dict(update_readings(statistics, self._thresholds))
        pace = self._update_pace.update(seconds_per_step(statistics))
        readings["system.slow_update"] = np.nan if self._signals.is_shared else pace
        if self._returns.are_rising(self._round, self._episodes.total_return):
            # It settles on what pays, and exploration is taken back by schedule: that is meant.
            readings["policy.entropy_collapse"] = readings["head.entropy_collapse"] = np.nan
        limits: Limits = {}
        if LevelCode[self._level] >= LevelCode.NORMAL:
            limits = self._report_policy_drift(statistics, readings)
        for scope in POLICY_SCOPES:
            self._anomalies.remove_unmeasured(scope, np.int8(LevelCode[self._level]))
        limits["policy.kl_spike"] = kl_limits(statistics.target_kl)
        limits["critic.value_collapse"] = value_collapse_limits(self._round, self._shape.rounds)
        self._anomalies.check_all(readings, limits=limits)
        if self._level != "OFF":
            in_force = {
                field: self._anomalies.limits_of(reading) for field, reading in UPDATE_READINGS.items()
            }
            self._emitter.emit(
                update_event(statistics, {f: limits for f, limits in in_force.items() if limits})
            )

    def record_shapley(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Record the worth of the round's seeds, see `shapley_columns`."""
        if self._level != "OFF":
            self._emitter.emit(shapley_event(columns))

    def record_evaluation(self, evaluation: PolicyEvaluation) -> EvaluationFinished:
        """A policy was played on held-out hosts; returns the event that reports it."""
        event = evaluation_event(evaluation)
        self._emitter.emit(event)
        return event

    def finish_round(
        self,
        times: PhaseTimes,
        test_accuracy: NDArray[np.floating[Any]] | None = None,
        stalls: StallCounts = NO_STALLS,
    ) -> RoundFinished:
        """The round is over, its update included; reports each env's episode.

        Returns the event that reports the round.

        Args:
            times: seconds of the round in this boot; its phases are those since the last epoch.
            test_accuracy: [N], where it was measured.
            stalls: counted over the round.
        """
        outcomes = self._seeds.emit_ends(self._epoch)
        tasks = self._shape.tasks(self._round) if self._shape.tasks else [(None, None)] * self._shape.envs
        for env, episode in enumerate(
            self._episodes.events(self._outcome, test_accuracy, self._shape.host_parameters, outcomes)
        ):
            task, instance = tasks[env]
            self._emitter.emit(replace(episode, task=task, instance=instance), env=env)
        summary = round_event(
            self._outcome,
            self._episodes,
            test_accuracy,
            epochs=self._epoch - self._first_epoch,
            times=times,
            stalls=stalls,
            seeds=sum(outcomes, Counter()),
        )
        self._emitter.emit(summary)
        if test_accuracy is not None:
            growth = self._outcome["parameters"] / self._shape.host_parameters - 1.0
            rent = self._shape.rent() * growth
            tested = test_accuracy.astype(np.float64)
            self._anomalies.check_all(self._returns.update(self._episodes.total_return, tested, rent))
        return summary

    def _leaves_seeds_out(self, frame: HostFrame) -> NDArray[np.bool_]:
        """[N], envs that were validated without some of their seeds (`reward.only_fossilized`)."""
        live = self._shape.host_parameters + frame["seed_parameters"].sum(1)
        left_out: NDArray[np.bool_] = frame["parameters"] < live
        return left_out

    def _tensorless_seeds(self) -> NDArray[np.bool_]:
        """[N, S], seeds of blueprints that have nothing to learn, as the decision has them."""
        blueprint = self._decision["blueprint"]
        counts = np.array(self._shape.seed_parameters)[np.arange(len(self._shape.slots)), blueprint]
        tensorless: NDArray[np.bool_] = (blueprint >= 0) & (counts == 0)
        return tensorless

    def record_sample(self, sample: SystemSample) -> None:
        """The machine was sampled; safe from another thread. The next epoch checks the newest sample."""
        self._sample = sample
        if self._plan.level != "OFF":
            self._emitter.emit(sample)

    def _tick_clock(self, level: Level) -> None:
        self._emitter.set_clock(round=self._round, epoch=self._epoch, level=level)

    def _report_drift(self, gradients: EpochGradients, readings: dict[str, Any]) -> Limits:
        """Publish the drift of hosts and seeds; adds their readings, returns the limits of the drift."""
        norm = np.concatenate([gradients.host_norm, gradients.seed_norm.reshape(-1)])
        health = np.concatenate([gradients.host_health, gradients.seed_health.reshape(-1)])
        event = self._env_drift.update(norm, health)
        if event is not None:
            self._emitter.emit(event)
        limits: Limits = {}
        for scope in ("env", "seed"):
            drift, drift_limits = self._env_drift.checks(scope)
            readings |= drift
            limits |= drift_limits
        return limits

    def _report_policy_drift(self, statistics: UpdateStatistics, readings: dict[str, Any]) -> Limits:
        """Report drift of the policy, its heads and the critic."""
        norm = np.array([statistics.grad_norm, *statistics.head_grad_norm, statistics.critic_grad_norm])
        event = self._policy_drift.update(norm, np.full_like(norm, np.nan))
        if event is not None:
            self._emitter.emit(event)
        limits: Limits = {}
        for scope in POLICY_SCOPES:
            drift, drift_limits = self._policy_drift.checks(scope)
            readings |= drift
            limits |= drift_limits
        return limits

    def state_dict(self) -> dict[str, Any]:
        return {
            "round": self._round,
            "epoch": self._epoch,
            **self._episodes.state_dict(),
            "seeds": self._seeds.state_dict(),
            "accuracy": self._signals.accuracy.state_dict(),
            "env_drift": self._env_drift.state_dict(),
            "policy_drift": self._policy_drift.state_dict(),
            "returns": self._returns.state_dict(),
            "return_means": list(self._returns.means.items()),
            "rollback_record": self._signals.rollbacks.state_dict(),
            "anomalies": self._anomalies.state_dict(),
            "outcome": {
                name: torch.from_numpy(self._outcome[name].copy())
                for name in ("val_accuracy", "parameters")
                if name in self._outcome
            },
            "decision": {name: torch.from_numpy(column.copy()) for name, column in self._decision.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._round, self._epoch = state["round"], state["epoch"]
        self._first_epoch = self._epoch
        self._tick_clock(self._level)  # an episode that is complete has no epoch left to begin
        self._episodes.load_state_dict(state)
        self._seeds.load_state_dict(state["seeds"], self._round)
        self._signals.accuracy.load_state_dict(state["accuracy"])
        self._env_drift.load_state_dict(state["env_drift"])
        self._policy_drift.load_state_dict(state["policy_drift"])
        self._returns.load_state_dict(state.get("returns", []))
        self._returns.means = dict(state.get("return_means", []))
        self._signals.rollbacks.load_state_dict(state.get("rollback_record", []))
        self._anomalies.load_state_dict(state["anomalies"])
        self._decision = {name: column.numpy() for name, column in state["decision"].items()}
        self._outcome = {name: column.numpy() for name, column in state["outcome"].items()}

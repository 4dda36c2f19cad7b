"""From frames to events: what happened in an epoch, a round and an update, told at the level in force.

An epoch is recorded in three steps: `decided` when seeds have moved and the policy has chosen, `epoch_begins`
before the hosts train, `finished` when their signals are on the host. The recorder keeps the clock of events.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.emitter import Emitter
from protocol.events import (
    Anomaly,
    EpochFinished,
    GovernorRollback,
    LayerStatistics,
    Level,
    PPOUpdate,
    RoundFinished,
    RoundStarted,
    ShapleyComputed,
    SystemSample,
)

from ..governor import Ill
from ..hosts.gradients import ACTIVATIONS
from ..seeds.stages import HEAD_NAMES, HEADS_OF_OP, IS_BLENDED, Op, Stage
from .anomalies import AnomalyDetector, Limits
from .columns import LAYER_STATISTICS, nullable
from .counters import Hindrances
from .drift import HOST, POLICY, SEED, DriftMonitor
from .levels import LevelCode, Levels
from .readings import (
    AccuracyRecord,
    Pace,
    gradient_readings,
    loss_readings,
    system_readings,
    update_readings,
    value_collapse_limits,
)
from .seed_events import By, SeedEvents
from .stride import Stride
from .transfer import Frame

NOT_COUNTED = Hindrances()
_NO_SEED = np.isin(list(Stage), (Stage.DORMANT, Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING))
"""By stage: there is no seed in the slot."""
_OP_HAS_SLOT = np.array(["slot" in HEADS_OF_OP[op] for op in Op])


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """What names the columns."""

    envs: int
    slots: Sequence[str]
    blueprints: Sequence[str]
    seed_parameters: Sequence[Sequence[int]]
    """[S][B] parameters of a seed by slot and blueprint."""
    rounds: int
    """Rounds asked for; 0 = without an end."""


class Recorder:
    """Turns frames into events and runs drift and anomaly checks on them.

    Args:
        emitter: the wire.
        shape: names of columns.
        levels: what is in force.
        stride: which epochs drift is told of.
    """

    def __init__(
        self, emitter: Emitter, shape: RunShape, levels: Levels, stride: Stride | None = None
    ) -> None:
        self._emitter = emitter
        self._stride = stride or Stride()
        self._collects = True
        self._shape = shape
        self._levels = levels
        n, s = shape.envs, len(shape.slots)
        hosts = [f"env{env:02d}" for env in range(n)]
        seeds = [f"{host}.{slot}" for host in hosts for slot in shape.slots]
        heads = [f"policy.{head}" for head in HEAD_NAMES]
        self._env_drift = DriftMonitor({"env": (hosts, HOST), "seed": (seeds, SEED)})
        self._policy_drift = DriftMonitor(
            {"policy": (["policy"], POLICY), "head": (heads, POLICY), "critic": (["critic"], POLICY)}
        )
        self._anomalies = AnomalyDetector(
            emitter,
            {"env": hosts, "seed": seeds, "head": heads},
            {"env": range(n), "seed": [env for env in range(n) for _ in range(s)]},
        )
        self._accuracy = AccuracyRecord(n)
        self._pace = Pace()
        self._seeds = SeedEvents(emitter, shape.slots, shape.blueprints, shape.seed_parameters, n)
        self._round = 0
        self._epoch = 0
        self._return = np.zeros(n)
        self._decision: Frame = {}
        self._outcome: Frame = {}
        self._sample: SystemSample | None = None
        self._dropped = 0
        self._level_N = levels.by_env
        self._level: Level = levels.level

    @property
    def round(self) -> int:
        """The round that the clock of events shows."""
        return self._round

    # --- a round -----------------------------------------------------------------------------------

    def round_started(self, round: int) -> None:
        """N fresh hosts begin an episode."""
        self._round, self._epoch = round, 0
        self._return[:] = 0.0
        self._seeds.restart()
        self._accuracy.restart()
        self._tick_clock(self._levels.level)
        self._emitter.emit(RoundStarted(rounds=self._shape.rounds))

    def decided(self, frame: Frame, by: By = "policy") -> None:
        """Seeds have moved on and the policy, or the operator, has acted, for the coming epoch.

        Args:
            frame: the columns of `decision_columns`.
            by: who acted.
        """
        stage, alpha = frame["stage"], frame["alpha"]
        alpha_before = self._decision.get("alpha", alpha)
        self._decision = frame
        self._seeds.tell(frame, by)
        moved = (stage != frame["stage.before"]) & ~_NO_SEED[stage]
        if moved.any():
            self._env_drift.restart("seed", moved)
        self._accuracy.forgive(np.any(alpha < alpha_before, axis=1))
        self._anomalies.retire("seed", _NO_SEED[stage])

    def epoch_begins(self) -> None:
        """The epoch is about to be trained: what is told of it is settled now."""
        self._level_N = self._levels.by_env
        self._level = self._levels.level
        self._collects = self._stride.due or self._levels.escalated
        self._tick_clock(self._level)

    @property
    def layer_envs(self) -> NDArray[np.bool_]:
        """[N] whose layers are to be collected in the coming epoch."""
        wanted = self._levels.debug_envs
        return wanted if self._stride.due or self._levels.escalated else np.zeros_like(wanted)

    def finished(
        self,
        frame: Frame,
        *,
        seconds: float,
        phases: dict[str, float],
        cpu_phases: dict[str, float] | None = None,
        gpu_phases: dict[str, float] | None = None,
        layer_names: Sequence[str] = (),
    ) -> None:
        """The epoch's outcome has arrived.

        Args:
            frame: the columns of `outcome_columns`.
            seconds: wall time of the epoch.
            phases: its parts, which sum to it.
            cpu_phases: CPU seconds of the process in those parts.
            gpu_phases: what the GPU worked in those of an earlier epoch, where that was sampled.
            layer_names: names of the rows of the frame's `layer.*` columns, where it has them.
        """
        self._outcome = frame
        self._epoch += 1
        self._tick_clock(self._level)
        self._return += frame["reward"]
        self._rollbacks(frame)
        gradients = _Gradients.of(frame, self._level_N)
        if self._level != "OFF":
            event = self._epoch_event(frame, gradients, seconds, phases)
            self._emitter.emit(replace(event, cpu_phases=cpu_phases or {}, gpu_phases=gpu_phases or {}))
        readings: dict[str, Any] = {
            "telemetry.queue_drops": self._newly_dropped(),
            "telemetry.share": phases.get("telemetry", 0.0) / seconds,
        }
        sample, self._sample = self._sample, None
        if sample is not None:
            readings |= system_readings(sample)
        limits: Limits = {}
        cost = None
        if gradients.measured:
            readings |= gradients.readings()
            if self._collects:
                begun = time.perf_counter()
                limits = self._tell_drift(gradients, readings)
                cost = time.perf_counter() - begun
        readings |= loss_readings(frame)
        readings |= self._accuracy.update(frame["val_accuracy"])
        blended = IS_BLENDED[self._decision["stage"]]
        readings |= self._accuracy.credit(frame["val_accuracy"], frame["contribution"], blended)
        readings |= self._pace.update(seconds)
        if layer_names and self._level == "DEBUG":
            self._emitter.emit(self._layers_event(frame, layer_names))
        if cost is not None and not self._levels.escalated:
            cost += phases.get("layers", 0.0)
        self._tell_stride(seconds, cost)
        self._anomalies.check_all(readings, limits=limits)

    def raised(self) -> list[tuple[Anomaly, int | None]]:
        """Anomalies raised, or become worse, since the last call; each with its env, where it has one."""
        return self._anomalies.take_raised()

    def updated(self, update: PPOUpdate) -> None:
        """The policy has learnt from the round."""
        readings: dict[str, Any] = dict(update_readings(update, HEAD_NAMES))
        if self._level != "OFF":
            self._emitter.emit(update)
        limits: Limits = {}
        if LevelCode[self._level] >= LevelCode.NORMAL:
            limits = self._tell_policy_drift(update, readings)
        limits["critic.value_collapse"] = value_collapse_limits(self._round, self._shape.rounds)
        self._anomalies.check_all(readings, limits=limits)

    def shapley(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """What the seeds of the round were found to be worth, see `shapley_columns`."""
        if self._level == "OFF":
            return
        value, half_width = columns["shapley.value"], columns["shapley.half_width"]
        self._emitter.emit(
            ShapleyComputed(
                value=nullable(value, np.isnan(value)),
                half_width=nullable(half_width, np.isnan(half_width)),
                coalitions=columns["shapley.coalitions"].tolist(),
            )
        )

    def round_finished(
        self,
        seconds: float,
        test_accuracy: NDArray[np.floating[Any]] | None = None,
        *,
        phases: dict[str, float] | None = None,
        hindrances: Hindrances = NOT_COUNTED,
    ) -> RoundFinished:
        """The round is over, its update included; returns the event that says so.

        Args:
            seconds: wall time of the round.
            test_accuracy: [N], where it was measured.
            phases: seconds since the last epoch, by phase.
            hindrances: counted over the round.
        """
        accuracy, parameters = self._outcome["val_accuracy"], self._outcome["parameters"]
        p10, p50, p90 = np.percentile(self._return, (10, 50, 90)).tolist()
        summary = RoundFinished(
            seconds=seconds,
            env_epochs_per_second=self._shape.envs * self._epoch / seconds,
            return_mean=float(self._return.mean()),
            return_p10=p10,
            return_p50=p50,
            return_p90=p90,
            accuracy_mean=float(accuracy.mean()),
            accuracy_best=float(accuracy.max()),
            best_env=int(accuracy.argmax()),
            test_accuracy_mean=None if test_accuracy is None else float(test_accuracy.mean()),
            test_accuracy_best=None if test_accuracy is None else float(test_accuracy.max()),
            parameters_mean=float(parameters.mean()),
            final_accuracy=accuracy.tolist(),
            final_return=self._return.tolist(),
            phases=phases or {},
            **asdict(hindrances),
            **asdict(self._seeds.tally),
        )
        self._emitter.emit(summary)
        return summary

    def system(self, sample: SystemSample) -> None:
        """The machine was looked at; safe from another thread. The next epoch checks the newest sample."""
        self._sample = sample
        if self._levels.level != "OFF":
            self._emitter.emit(sample)

    def never_evaluated(self) -> list[str]:
        """Signals of checks that have had no reading so far."""
        return self._anomalies.never_evaluated()

    def _rollbacks(self, frame: Frame) -> None:
        ill = frame.get("governor.ill")
        if ill is None:
            return
        for env in np.flatnonzero(ill).tolist():
            rollback = GovernorRollback(
                reason=Ill(int(ill[env])).name.lower(),
                loss=float(frame["train_loss"][env]),
                restored_epoch=int(frame["governor.restored"][env]),
                penalty=-float(frame["reward.rollback"][env]),
            )
            self._emitter.emit(rollback, env=env)

    # --- parts of an epoch -------------------------------------------------------------------------

    def _newly_dropped(self) -> int:
        """Events refused for want of room since the last call."""
        dropped, self._dropped = self._dropped, sum(self._emitter.dropped.values())
        return self._dropped - dropped

    def _tell_stride(self, seconds: float, cost: float | None) -> None:
        event = self._stride.finished(seconds, cost)
        if event is not None:
            self._emitter.emit(event)

    def _tick_clock(self, level: Level) -> None:
        self._emitter.clock(round=self._round, epoch=self._epoch, level=level)

    def _epoch_event(
        self, frame: Frame, gradients: _Gradients, seconds: float, phases: dict[str, float]
    ) -> EpochFinished:
        decision = self._decision
        op, blueprint, contribution = decision["op"], decision["blueprint"], frame["contribution"]
        return EpochFinished(
            seconds=seconds,
            train_loss=frame["train_loss"].tolist(),
            train_accuracy=frame["train_accuracy"].tolist(),
            val_loss=frame["val_loss"].tolist(),
            val_accuracy=frame["val_accuracy"].tolist(),
            reward=frame["reward"].tolist(),
            episode_return=self._return.tolist(),
            op=op.tolist(),
            action_slot=nullable(decision["slot"], ~_OP_HAS_SLOT[op]),
            host_grad_norm=nullable(gradients.host_norm, np.isnan(gradients.host_health)),
            host_health=nullable(gradients.host_health, np.isnan(gradients.host_health)),
            stage=decision["stage"].tolist(),
            epochs_in_stage=decision["epochs_in_stage"].tolist(),
            alpha=decision["alpha"].tolist(),
            blueprint=nullable(blueprint, blueprint < 0),
            contribution=nullable(contribution, np.isnan(contribution)),
            seed_grad_norm=nullable(gradients.seed_norm, np.isnan(gradients.seed_health)),
            seed_health=nullable(gradients.seed_health, np.isnan(gradients.seed_health)),
            seed_grad_ratio=nullable(gradients.ratio, np.isnan(gradients.ratio)),
            parameters=frame["parameters"].astype(np.int64).tolist(),
            reward_components={
                name.removeprefix("reward."): frame[name].tolist()
                for name in frame
                if name.startswith("reward.")
            },
            phases=phases,
        )

    def _tell_drift(self, gradients: _Gradients, readings: dict[str, Any]) -> Limits:
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

    def _tell_policy_drift(self, update: PPOUpdate, readings: dict[str, Any]) -> Limits:
        """The same for the policy, its heads and the critic."""
        heads = [update.head_grad_norm.get(head) for head in HEAD_NAMES]
        norm = np.array([update.grad_norm, *heads, update.critic_grad_norm], dtype=np.float64)
        event = self._policy_drift.update(norm, np.full_like(norm, np.nan))
        if event is not None:
            self._emitter.emit(event)
        limits: Limits = {}
        for scope in ("policy", "head", "critic"):
            drift, drift_limits = self._policy_drift.checks(scope)
            readings |= drift
            limits |= drift_limits
        return limits

    def _layers_event(self, frame: Frame, names: Sequence[str]) -> LayerStatistics:
        """A layer that did not run in an env (no such seed) has no zero fraction: it is not measured."""
        asked = self._level_N >= LevelCode.DEBUG
        absent = ~asked[None, :] | np.isnan(frame["layer.zero_fraction"])
        silent = ~asked[None, :] | np.isnan(frame["layer.activation_zero_fraction"])
        columns = {name: frame[f"layer.{name}"] for name in LAYER_STATISTICS}
        columns["nonfinite"] = np.where(absent, 0, columns["nonfinite"]).astype(np.int64)
        return LayerStatistics(
            layer=list(names),
            **{
                name: nullable(values, silent if name in ACTIVATIONS else absent)
                for name, values in columns.items()
            },
        )

    # --- across boots ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "round": self._round,
            "epoch": self._epoch,
            "return": self._return.tolist(),
            "seeds": self._seeds.state_dict(),
            "accuracy": self._accuracy.state_dict(),
            "env_drift": self._env_drift.state_dict(),
            "policy_drift": self._policy_drift.state_dict(),
            "anomalies": self._anomalies.state_dict(),
            "levels": self._levels.state_dict(),
            "stride": self._stride.state_dict(),
            "outcome": {
                name: torch.from_numpy(self._outcome[name].copy())
                for name in ("val_accuracy", "parameters")
                if name in self._outcome
            },
            "decision": {name: torch.from_numpy(column.copy()) for name, column in self._decision.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._round, self._epoch = state["round"], state["epoch"]
        self._return = np.array(state["return"])
        self._seeds.load_state_dict(state["seeds"])
        self._accuracy.load_state_dict(state["accuracy"])
        self._env_drift.load_state_dict(state["env_drift"])
        self._policy_drift.load_state_dict(state["policy_drift"])
        self._anomalies.load_state_dict(state["anomalies"])
        self._levels.load_state_dict(state["levels"])
        self._stride.load_state_dict(state["stride"])
        self._decision = {name: column.numpy() for name, column in state["decision"].items()}
        self._outcome = {name: column.numpy() for name, column in state["outcome"].items()}


@dataclass
class _Gradients:
    """Norms and health in float64, NaN where they are not measured or the env's level leaves them out."""

    host_norm: NDArray[np.float64]
    host_health: NDArray[np.float64]
    seed_norm: NDArray[np.float64]
    seed_health: NDArray[np.float64]
    measured: bool

    @classmethod
    def of(cls, frame: Frame, level_N: NDArray[np.int8]) -> _Gradients:
        wanted = level_N >= LevelCode.NORMAL

        def column(name: str) -> NDArray[np.float64]:
            values = frame[name].astype(np.float64)
            values[~wanted] = np.nan
            return values

        return cls(
            column("host_grad_norm"),
            column("host_health"),
            column("seed_grad_norm"),
            column("seed_health"),
            bool(wanted.any()),
        )

    @property
    def ratio(self) -> NDArray[np.float64]:
        """[N, S] seed over host; NaN where either is not measured, not finite, or the host has none."""
        host = np.where(np.isfinite(self.host_norm) & (self.host_norm > 0.0), self.host_norm, np.nan)
        return np.where(np.isfinite(self.seed_norm), self.seed_norm, np.nan) / host[:, None]

    def readings(self) -> dict[str, Any]:
        """What the checks look at."""
        return gradient_readings("env", self.host_norm, self.host_health) | gradient_readings(
            "seed", self.seed_norm.reshape(-1), self.seed_health.reshape(-1)
        )

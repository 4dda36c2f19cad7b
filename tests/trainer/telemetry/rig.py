"""A recorder on real parts: slot table, measurements, transfer, emitter and codec, fed by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from esper_overwatch.protocol.codec.json_lines import Event, decode_line, encode_event
from esper_overwatch.protocol.messages.events import RunStarted, SystemSample, spec_of
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES, Level, Op, Stage
from esper_overwatch.protocol.server.emitter import Emitted, Emitter
from esper_overwatch.protocol.server.incidents import IncidentKeeper
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.config.service_options import TelemetryConfig
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.policy.feature_statistics import FEATURE_GROUPS, STATISTICS
from esper_overwatch.trainer.policy.update_statistics import UpdateStatistics
from esper_overwatch.trainer.seeds.lifecycle import Lifecycle
from esper_overwatch.trainer.seeds.table import SlotTable
from esper_overwatch.trainer.telemetry.collection.plan import CollectionPlan
from esper_overwatch.trainer.telemetry.columns import decision_columns, outcome_columns
from esper_overwatch.trainer.telemetry.recorder import Recorder, RunShape
from esper_overwatch.trainer.telemetry.timer import PhaseTimes
from esper_overwatch.trainer.telemetry.transfer import HostFrame, Transfer
from tests.protocol.values import an_event

SLOTS = ("r0c0", "r0c1")
BLUEPRINTS = ("norm", "conv_light")
EPISODE = 24
STEPS = 12
"""Of an epoch."""
HOST_PARAMETERS = 200
Fault = Callable[[Measurements], None]


class Rig:
    """N envs whose seed in slot 0 trains and whose numbers are healthy unless a fault says otherwise."""

    def __init__(
        self,
        envs: int = 4,
        *,
        level: Level = "NORMAL",
        rounds: int = 20,
        seeded: bool = True,
        stride: int = 0,
        escalate_on: str = "off",
    ) -> None:
        torch.set_num_threads(1)
        self.n, self.s = envs, len(SLOTS)
        self.seeded = seeded
        self.emitter = Emitter()
        config = TelemetryConfig(level=level, escalate_on=escalate_on, stride=stride)
        self.plan = CollectionPlan(self.emitter, config, envs=envs, episode_epochs=EPISODE)
        self.transfer = Transfer()
        self.lifecycle = Lifecycle(Config())
        self.recorder = self.new_recorder(rounds)
        self.random = np.random.default_rng(5)
        self.table = SlotTable.empty(self.n, self.s)
        self.measurements = Measurements.unmeasured(self.n, self.s)
        self.round = self.epoch = 0
        self.skipped = torch.zeros(self.n, dtype=torch.int64)
        """Steps of each epoch that overflow fp16."""
        self.gain = torch.full((self.n,), 0.25)
        """What each epoch pays, beside the rent."""
        self.keeper = IncidentKeeper(self.emitter.emit, "rig0")
        self.keeper.observe(spec_of(RunStarted), [Emitted(0, started(self.n), None, self.emitter.context)])

    def new_recorder(self, rounds: int = 20, seed_parameters: Sequence[int] = (16, 80)) -> Recorder:
        shape = RunShape(
            envs=self.n,
            slots=SLOTS,
            blueprints=BLUEPRINTS,
            seed_parameters=[seed_parameters] * 2,
            rounds=rounds,
            host_parameters=HOST_PARAMETERS,
            steps=STEPS,
        )
        return Recorder(self.emitter, shape, self.plan)

    def begin_round(self) -> None:
        self.round, self.epoch = self.round + 1, 0
        self.table.reset()
        self.measurements = Measurements.unmeasured(self.n, self.s)
        self.recorder.begin_round(self.round)

    def decide(self, actions: torch.Tensor | None = None, *, restored: int = 0) -> None:
        """One epoch's decisions by the real rules; WAIT unless told, but for the seed in slot 0.

        Args:
            restored: the epoch whose snapshot all envs were put back to just before, where they were.
        """
        before = self.table.stage.clone()
        automatic = self.lifecycle.advance(self.table, self.measurements)
        advanced = self.table.stage.clone()
        gates = self.lifecycle.gates(self.table, self.measurements) | automatic
        legal = self.lifecycle.legal(self.table, self.measurements)
        if actions is None:
            actions = self.action(Op.GERMINATE if self.seeded and self.epoch == 0 else Op.WAIT)
        executed = self.lifecycle.apply(self.table, actions, legal, self.measurements)
        self.frame = self.transfer(
            decision_columns(
                stage_before=before,
                stage_advanced=advanced,
                table=self.table,
                actions=actions,
                gates=gates,
                executed=executed,
            )
        )
        if restored:
            codes = {"governor.ill": 1, "governor.restored": restored}
            self.frame |= {name: np.full(self.n, code) for name, code in codes.items()}
        self.recorder.record_decision(self.frame)

    def prune_and_plant_again(self) -> dict[str, Any]:
        """A seed is planted in each env, pruned, and a second decided on; the table before the pruning."""
        self.begin_round()
        self.decide(self.action(Op.GERMINATE))
        self.train()
        self.decide(self.action(Op.WAIT))
        self.train()
        before = self.table.state_dict()
        self.decide(self.action(Op.PRUNE))
        for _ in range(5):
            self.train()
            self.decide(self.action(Op.WAIT))
        self.train()
        self.decide(self.action(Op.GERMINATE))
        return before

    def action(self, op: Op, slot: int = 0, **heads: int) -> torch.Tensor:
        """[N, heads] the same action in every env."""
        values = {"op": int(op), "slot": slot, "blueprint": 1} | heads
        return torch.tensor([[values.get(name, 0) for name in HEAD_NAMES]] * self.n)

    def train(
        self,
        fault: Fault | None = None,
        *,
        telemetry: float = 0.001,
        seconds: float = 1.0,
        layers: dict[str, torch.Tensor] | None = None,
        ill: Sequence[bool] = (),
        cpu_seconds: float | None = None,
    ) -> None:
        """One epoch from its beginning to its outcome and the plan's end of it; `ill` envs are put back."""
        self.recorder.begin_epoch()
        frame = self.outcome(fault, layers)
        if any(ill):
            codes = np.array(ill, dtype=np.int64)
            frame |= {"governor.ill": codes, "governor.restored": codes, "reward.rollback": codes * 0.0}
        parts = {"train": 0.9, "telemetry": telemetry, "other": 0.1 - telemetry}
        phases = {name: seconds * part for name, part in parts.items()}
        names = [f"layer{i}" for i in range(len(layers["grad_norm"]))] if layers else ()
        cpu = {} if cpu_seconds is None else {"train": cpu_seconds}
        self.recorder.record_outcome(frame, PhaseTimes(seconds, phases, cpu), names)
        self.plan.end_epoch(())

    def outcome(self, fault: Fault | None = None, layers: dict[str, torch.Tensor] | None = None) -> HostFrame:
        """The frame of an epoch's outcome: healthy, but for the fault."""
        self.measurements = self.healthy_measurements()
        self.table.contribution.copy_(self.measurements.contribution)
        if fault is not None:
            fault(self.measurements)
        self.epoch += 1
        components = {"gain": self.gain, "rent": torch.full((self.n,), -0.05)}
        return self.transfer(
            outcome_columns(
                measurements=self.measurements,
                reward=components["gain"] + components["rent"],
                components=components,
                layers=layers,
                scaling={"loss_scale": torch.full((self.n,), 2.0**16), "skipped_steps": self.skipped},
            )
        )

    def run_epoch(self, fault: Fault | None = None, **kwargs: Any) -> None:
        """Train an epoch and decide about the next one; a new round where the old one is over."""
        if self.round == 0 or self.epoch == EPISODE:
            self.begin_round()
            self.decide()
        self.train(fault, **kwargs)
        if self.epoch < EPISODE:
            self.decide()

    def update(self, **changes: Any) -> None:
        self.recorder.record_update(dataclasses.replace(healthy_update(), **changes))

    def healthy_measurements(self) -> Measurements:
        def noisy(value: float, *shape: int, spread: float = 0.05) -> torch.Tensor:
            return torch.from_numpy(value * self.random.normal(1.0, spread, shape)).float()

        n, s = self.n, self.s
        progress = (self.epoch + 1) / EPISODE
        runs = (self.table.stage >= Stage.GERMINATED) & (self.table.stage <= Stage.FOSSILIZED)
        nan = torch.full((n, s), float("nan"))
        return Measurements(
            train_loss=noisy(2.3 - 2.0 * progress, n),
            train_accuracy=noisy(0.1 + 0.8 * progress, n, spread=0.001),
            val_loss=noisy(2.3 - 1.9 * progress, n),
            val_accuracy=noisy(0.1 + 0.8 * progress, n, spread=0.001),
            contribution=torch.where(self.table.stage >= Stage.BLENDING, noisy(0.05, n, s), nan),
            interaction=torch.full((n, s, s), float("nan")),
            host_grad_norm=noisy(1.0, n),
            host_health=torch.ones(n),
            seed_grad_norm=torch.where(runs, noisy(0.5, n, s), nan),
            seed_health=torch.where(runs, torch.ones(n, s), nan),
            growth=torch.full((n, s, 4), float("nan")),
            parameters=torch.full((n,), 274),
            seed_parameters=torch.zeros(n, s, dtype=torch.int64),
        )

    def take(self, type_: str | None = None) -> list[Event]:
        """Everything emitted since the last call, incidents included, through the codec and back."""
        events: list[Event] = []
        while drained := self.emitter.drain(10**6):
            for item in drained:
                self.keeper.observe(spec_of(type(item.event)), [item])
                ctx = dataclasses.replace(item.ctx, env=item.env)
                events.append(decode_line(encode_event(len(events), item.ns // 1000, ctx, item.event)))
        return [e for e in events if type_ is None or e.type == type_]


def started(envs: int) -> RunStarted:
    """The first event of a boot of the rig."""
    columns = {"slots": list(SLOTS), "blueprints": list(BLUEPRINTS)}
    return an_event(RunStarted, envs=envs, episode_epochs=EPISODE, rounds=0, **columns)


def healthy_update() -> UpdateStatistics:
    return UpdateStatistics(
        seconds=0.2,
        policy_loss=-0.02,
        value_loss=0.2,
        entropy=0.7,
        head_entropy=np.full(len(HEAD_NAMES), 0.7),
        approx_kl=0.008,
        clip_fraction=0.1,
        head_clip_fraction=np.full(len(HEAD_NAMES), 0.1),
        ratio_min=0.8,
        ratio_max=1.3,
        head_ratio_max=np.full(len(HEAD_NAMES), 1.3),
        explained_variance=0.6,
        explained_variance_within=0.2,
        grad_norm=1.0,
        head_grad_norm=np.full(len(HEAD_NAMES), 0.3),
        critic_grad_norm=0.8,
        advantage_mean=0.0,
        advantage_std=1.0,
        learning_rate=1e-3,
        entropy_coefficient=0.01,
        value_coefficient=0.5,
        epochs=4,
        minibatches=8,
        early_stop=False,
        skipped_nonfinite=0,
        op_fraction=np.full(len(Op), 1 / len(Op)),
        lstm_h_rms=0.4,
        lstm_c_rms=0.8,
        return_std=0.5,
        value_nrmse=0.7,
        observation_rms=1.0,
        observation_clipped=0.0,
        observation_missing=0.1,
        features=np.full((len(FEATURE_GROUPS), len(STATISTICS)), 0.1),
        target_kl=0.01,
    )


def machine(used: float = 0.3) -> SystemSample:
    """A sample of a machine whose memory is used to this share."""
    total = 8 * 2**30
    return an_event(SystemSample, memory_total=total, memory_used=int(used * total), disk_free=2**34)

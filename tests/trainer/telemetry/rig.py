"""A recorder on real parts: slot table, signals, transfer, emitter and codec, fed by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from protocol.emitter import Emitter
from protocol.encoding import encode_event
from protocol.events import Level, PPOUpdate, SystemSample
from protocol.wire import Event, decode_line
from trainer.config import Config
from trainer.seeds.lifecycle import Lifecycle
from trainer.seeds.stages import HEAD_NAMES, Op, Stage
from trainer.seeds.table import SlotTable
from trainer.signals import Signals
from trainer.telemetry.columns import decision_columns, outcome_columns
from trainer.telemetry.levels import Levels
from trainer.telemetry.recorder import Recorder, RunShape
from trainer.telemetry.transfer import Frame, Transfer

SLOTS = ("r0c0", "r0c1")
BLUEPRINTS = ("norm", "conv_light")
EPISODE = 24
Fault = Callable[[Signals], None]


class Rig:
    """N envs whose seed in slot 0 trains and whose numbers are healthy unless a fault says otherwise."""

    def __init__(
        self, envs: int = 4, *, level: Level = "NORMAL", rounds: int = 20, seeded: bool = True
    ) -> None:
        torch.set_num_threads(1)
        self.n, self.s = envs, len(SLOTS)
        self.seeded = seeded
        self.emitter = Emitter()
        self.levels = Levels(level, envs)
        self.transfer = Transfer()
        self.lifecycle = Lifecycle(Config())
        self.recorder = self.new_recorder(rounds)
        self.random = np.random.default_rng(5)
        self.table = SlotTable.empty(self.n, self.s)
        self.signals = Signals.unmeasured(self.n, self.s)
        self.round = self.epoch = 0

    def new_recorder(self, rounds: int = 20) -> Recorder:
        shape = RunShape(
            envs=self.n,
            slots=SLOTS,
            blueprints=BLUEPRINTS,
            seed_parameters=[[16, 80], [16, 80]],
            rounds=rounds,
        )
        return Recorder(self.emitter, shape, self.levels)

    # --- the loop, as short as it gets -------------------------------------------------------------

    def begin_round(self) -> None:
        self.round, self.epoch = self.round + 1, 0
        self.table.reset()
        self.signals = Signals.unmeasured(self.n, self.s)
        self.recorder.round_started(self.round)

    def decide(self, actions: torch.Tensor | None = None) -> None:
        """One epoch's decisions by the real rules; WAIT unless told, but for the seed in slot 0."""
        before = self.table.stage.clone()
        self.lifecycle.advance(self.table, self.signals)
        advanced = self.table.stage.clone()
        gates = self.lifecycle.gates(self.table, self.signals)
        legal = self.lifecycle.legal(self.table, self.signals)
        if actions is None:
            actions = self.action(Op.GERMINATE if self.seeded and self.epoch == 0 else Op.WAIT)
        self.lifecycle.apply(self.table, actions, legal, self.signals)
        self.frame = self.transfer(
            decision_columns(
                stage_before=before, stage_advanced=advanced, table=self.table, actions=actions, gates=gates
            )
        )
        self.recorder.decided(self.frame)

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
    ) -> None:
        """One epoch from its beginning to its outcome and the tick of the levels."""
        self.recorder.epoch_begins()
        frame = self.outcome(fault, layers)
        parts = {"train": 0.9, "telemetry": telemetry, "other": 0.1 - telemetry}
        phases = {name: seconds * part for name, part in parts.items()}
        names = [f"layer{i}" for i in range(len(layers["grad_norm"]))] if layers else ()
        self.recorder.finished(frame, seconds=seconds, phases=phases, layer_names=names)
        for event in self.levels.tick():
            self.emitter.emit(event)

    def outcome(self, fault: Fault | None = None, layers: dict[str, torch.Tensor] | None = None) -> Frame:
        """The frame of an epoch's outcome: healthy, but for the fault."""
        self.signals = self.healthy_signals()
        self.table.contribution.copy_(self.signals.contribution)
        if fault is not None:
            fault(self.signals)
        self.epoch += 1
        components = {"gain": torch.full((self.n,), 0.25), "rent": torch.full((self.n,), -0.05)}
        return self.transfer(
            outcome_columns(
                signals=self.signals,
                reward=components["gain"] + components["rent"],
                components=components,
                layers=layers,
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
        self.recorder.updated(dataclasses.replace(healthy_update(), **changes))

    # --- healthy numbers ---------------------------------------------------------------------------

    def healthy_signals(self) -> Signals:
        def noisy(value: float, *shape: int, spread: float = 0.05) -> torch.Tensor:
            return torch.from_numpy(value * self.random.normal(1.0, spread, shape)).float()

        n, s = self.n, self.s
        progress = (self.epoch + 1) / EPISODE
        runs = (self.table.stage >= Stage.GERMINATED) & (self.table.stage <= Stage.FOSSILIZED)
        nan = torch.full((n, s), float("nan"))
        return Signals(
            train_loss=noisy(2.3 - 2.0 * progress, n),
            train_accuracy=noisy(0.1 + 0.8 * progress, n, spread=0.001),
            val_loss=noisy(2.3 - 1.9 * progress, n),
            val_accuracy=noisy(0.1 + 0.8 * progress, n, spread=0.001),
            contribution=torch.where(self.table.stage >= Stage.BLENDING, noisy(0.05, n, s), nan),
            host_grad_norm=noisy(1.0, n),
            host_health=torch.ones(n),
            seed_grad_norm=torch.where(runs, noisy(0.5, n, s), nan),
            seed_health=torch.where(runs, torch.ones(n, s), nan),
            parameters=torch.full((n,), 274.0),
        )

    # --- what came out -----------------------------------------------------------------------------

    def take(self, type_: str | None = None) -> list[Event]:
        """Everything emitted since the last call, through the codec and back."""
        events = []
        for seq, item in enumerate(self.emitter.drain(10**6)):
            ctx = dataclasses.replace(item.ctx, env=item.env)
            events.append(decode_line(encode_event(seq, item.ns // 1000, ctx, item.event)))
        return [e for e in events if type_ is None or e.type == type_]


def healthy_update() -> PPOUpdate:
    return PPOUpdate(
        seconds=0.2,
        policy_loss=-0.02,
        value_loss=0.2,
        entropy=0.7,
        head_entropy=dict.fromkeys(HEAD_NAMES, 0.7),
        approx_kl=0.008,
        clip_fraction=0.1,
        ratio_min=0.8,
        ratio_max=1.3,
        explained_variance=0.6,
        grad_norm=1.0,
        head_grad_norm=dict.fromkeys(HEAD_NAMES, 0.3),
        critic_grad_norm=0.8,
        advantage_mean=0.0,
        advantage_std=1.0,
        learning_rate=1e-3,
        entropy_coefficient=0.01,
        epochs=4,
        minibatches=8,
        early_stop=False,
        skipped_nonfinite=0,
        op_fraction={op.name: 1 / len(Op) for op in Op},
        lstm_h_rms=0.4,
        lstm_c_rms=0.8,
        return_std=0.5,
        value_nrmse=0.7,
    )


def machine(used: float = 0.3) -> SystemSample:
    """A sample of a machine whose memory is used to this share."""
    total = 8 * 2**30
    return SystemSample(
        cpu_percent=100.0,
        rss=2**29,
        memory_total=total,
        memory_used=int(used * total),
        load1=1.0,
        cores=2,
        disk_free=2**34,
    )

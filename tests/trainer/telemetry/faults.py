"""Every fault that the rig can inject: how it is brought about, and by whose name it is raised."""

from __future__ import annotations

import copy
import copyreg
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import torch

from esper_overwatch.protocol.messages.events import LogLine
from esper_overwatch.protocol.messages.vocabulary import HEAD_NAMES
from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.telemetry.signal_values import MIN_EPISODES
from esper_overwatch.trainer.telemetry.timer import PhaseTimes

from .rig import EPISODE, Rig, healthy_update, machine

SICK = 2
"""The env that faults are put into."""
HEAD = HEAD_NAMES[2]
WARM = EPISODE + 10
"""Epochs before a fault: averages are warm, the second episode's seeds are six epochs old."""


@dataclass(frozen=True)
class Injection:
    """How to bring a fault about in one epoch or update, and by whose name it should be raised."""

    source: str
    inject: Callable[[Rig], None]
    heal: Callable[[Rig], None] = Rig.run_epoch
    epochs: int = 8
    """Within which it is raised."""


def signal(name: str, value: float, *, slot: int | None = None) -> Callable[[Rig], None]:
    def fault(measurements: Measurements) -> None:
        tensor = getattr(measurements, name)
        if slot is None:
            tensor[SICK] = value
        else:
            tensor[SICK, slot] = value

    return lambda rig: rig.run_epoch(fault)


def credited(accuracy: float, contribution: float) -> Callable[[Rig], None]:
    """An env with that accuracy, whose seed is credited with so much of it."""

    def fault(measurements: Measurements) -> None:
        measurements.val_accuracy[SICK] = accuracy
        measurements.contribution[SICK, 0] = contribution

    return lambda rig: rig.run_epoch(fault)


def updated(**changes: object) -> Callable[[Rig], None]:
    return lambda rig: rig.update(**changes)


def heads(name: str, value: float) -> Callable[[Rig], None]:
    values = getattr(healthy_update(), name)
    values[HEAD_NAMES.index(HEAD)] = value
    return lambda rig: rig.update(**{name: values})


def used(share: float) -> Callable[[Rig], None]:
    def run(rig: Rig) -> None:
        rig.recorder.record_sample(machine(share))
        rig.run_epoch()

    return run


def skipped(steps: int) -> Callable[[Rig], None]:
    """Of the twelve of an epoch."""

    def run(rig: Rig) -> None:
        rig.skipped[SICK] = steps
        rig.run_epoch()

    return run


def compared(sign: float) -> Callable[[Rig], None]:
    """A round whose returns follow the test accuracy, or its opposite; several where it is the first."""

    def run(rig: Rig) -> None:
        first = rig.gain.std() == 0
        rig.gain = torch.linspace(0.0, 0.3, rig.n)
        for _ in range(MIN_EPISODES // rig.n if first else 1):
            rig.begin_round()
            rig.decide()
            rig.train()
            rig.recorder.finish_round(PhaseTimes(1.0), 0.5 + sign * rig.gain.numpy())

    return run


def put_back(chosen: Callable[[int], bool]) -> Callable[[Rig], None]:
    """An epoch after which the governor puts these envs back."""
    return lambda rig: rig.run_epoch(ill=[chosen(env) for env in range(rig.n)])


def overflow(rig: Rig) -> None:
    for _ in range(5000):
        rig.emitter.emit(LogLine(level="INFO", logger="test", message="flood"))
    rig.run_epoch()


ENV, SEED = f"env{SICK:02d}", f"env{SICK:02d}.r0c0"
EPOCH, UPDATE = Rig.run_epoch, Rig.update
INJECTIONS: dict[str, Injection] = {
    "env.loss_nonfinite": Injection(ENV, signal("train_loss", float("nan"))),
    "env.gradient_nonfinite": Injection(ENV, signal("host_grad_norm", float("nan"))),
    "env.gradient_exploding": Injection(ENV, signal("host_grad_norm", 50.0)),
    "env.gradient_vanishing": Injection(ENV, signal("host_grad_norm", 1e-9)),
    "env.gradient_health": Injection(ENV, signal("host_health", 0.2)),
    "env.norm_drift": Injection(ENV, signal("host_grad_norm", 3.0)),
    "env.health_drift": Injection(ENV, signal("host_health", 0.4)),
    "env.stalled": Injection(ENV, signal("val_accuracy", 0.1), epochs=2 * EPISODE),
    "env.degraded": Injection(ENV, signal("val_accuracy", 0.05)),
    "env.rollback": Injection(ENV, put_back(lambda env: env == SICK)),
    "hosts.rollback": Injection("hosts", put_back(lambda _: True)),
    "seed.reward_hacking": Injection(SEED, credited(accuracy=0.25, contribution=0.8)),
    "seed.gradient_nonfinite": Injection(SEED, signal("seed_grad_norm", float("inf"), slot=0)),
    "seed.gradient_exploding": Injection(SEED, signal("seed_grad_norm", 5000.0, slot=0)),
    "seed.gradient_vanishing": Injection(SEED, signal("seed_grad_norm", 0.0, slot=0)),
    "seed.gradient_health": Injection(SEED, signal("seed_health", 0.0, slot=0)),
    "seed.norm_drift": Injection(SEED, signal("seed_grad_norm", 2.0, slot=0)),
    "seed.health_drift": Injection(SEED, signal("seed_health", 0.3, slot=0)),
    "policy.nonfinite": Injection("policy", updated(skipped_nonfinite=1), UPDATE),
    "policy.kl_spike": Injection("policy", updated(approx_kl=0.2), UPDATE),
    "policy.clip_fraction": Injection("policy", updated(clip_fraction=0.6), UPDATE),
    "policy.ratio_explosion": Injection("policy", updated(ratio_max=12.0), UPDATE),
    "policy.ratio_collapse": Injection("policy", updated(ratio_min=0.01), UPDATE),
    "policy.entropy_collapse": Injection("policy", updated(entropy=0.02), UPDATE),
    "policy.gradient_exploding": Injection("policy", updated(grad_norm=40.0), UPDATE),
    "policy.norm_drift": Injection("policy", updated(grad_norm=3.0), UPDATE),
    "policy.lstm_saturated": Injection("policy", updated(lstm_c_rms=8.0), UPDATE),
    "policy.lstm_dead": Injection("policy", updated(lstm_h_rms=1e-7), UPDATE),
    "policy.low_return_variance": Injection("policy", updated(return_std=0.0), UPDATE),
    "policy.return_divergence": Injection("policy", compared(-1.0), compared(1.0)),
    "head.entropy_collapse": Injection(f"policy.{HEAD}", heads("head_entropy", 0.01), UPDATE),
    "head.norm_drift": Injection(f"policy.{HEAD}", heads("head_grad_norm", 2.0), UPDATE),
    "critic.value_collapse": Injection("critic", updated(explained_variance=-2.0), UPDATE),
    "critic.value_error": Injection("critic", updated(value_nrmse=3.0), UPDATE),
    "critic.norm_drift": Injection("critic", updated(critic_grad_norm=5.0), UPDATE),
    "system.slow_update": Injection("system", updated(seconds=9.0), UPDATE),
    "env.fp16_overflow": Injection(ENV, skipped(6), skipped(0)),
    "system.memory": Injection("system", used(0.95), used(0.3)),
    "system.slow_epochs": Injection("system", lambda rig: rig.run_epoch(seconds=20.0)),
    "telemetry.queue_drops": Injection("telemetry", overflow),
    "telemetry.share": Injection("telemetry", lambda rig: rig.run_epoch(telemetry=0.09)),
}


NEW_LOCKS = {type(new()): lambda _, new=new: (new, ()) for new in (threading.Lock, threading.RLock)}


def warmed_up(envs: int = 4) -> Rig:
    """A rig whose averages are warm, and of which nothing has been told; a copy, as warming up takes long."""
    with patch.dict(copyreg.dispatch_table, NEW_LOCKS):
        return copy.deepcopy(_warmed_up(envs))


@functools.cache
def _warmed_up(envs: int) -> Rig:
    rig = Rig(envs, rounds=1000)
    for _ in range(WARM):
        rig.run_epoch()
        rig.update()
    assert rig.take("anomaly") == []
    return rig

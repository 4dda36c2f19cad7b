"""What the checks compare, from what was measured."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from esper_overwatch.trainer.measurements import Measurements
from esper_overwatch.trainer.telemetry.signal_values import (
    MAX_EPISODES,
    MIN_EPISODES,
    MIN_RETURN_SPREAD,
    ReturnRecord,
    telemetry_share,
    update_readings,
)
from esper_overwatch.trainer.telemetry.timer import PhaseTimes

from .rig import Rig, healthy_update


def test_return_record_correlates_the_newest_episodes_only() -> None:
    random = np.random.default_rng(1)
    record = ReturnRecord()

    def play(n: int, slope: float, spread: float = 0.1) -> float:
        paid = 0.5 + spread * random.standard_normal(n)
        rent = 0.05 * random.random(n)
        tested = 0.6 + slope * (paid - 0.5) + rent + 0.01 * random.standard_normal(n)
        return record.update(paid, tested, rent)["policy.return_divergence"]

    assert math.isnan(play(MIN_EPISODES - 1, 1.0)), "too few"
    assert play(8, 1.0) > 0.9
    again = ReturnRecord()
    again.load_state_dict(json.loads(json.dumps(record.state_dict())))
    before = random.bit_generator.state
    known = play(8, -1.0)
    random.bit_generator.state = before
    record = again
    assert play(8, -1.0) == known, "as if it had not stopped"
    for _ in range(MAX_EPISODES // 8 - 1):
        newest = play(8, -1.0)
    assert newest < -0.9, "what was before is forgotten"
    for _ in range(MAX_EPISODES // 8):
        flat = play(8, 1.0, spread=0.1 * MIN_RETURN_SPREAD)
    assert math.isnan(flat), "all about the same: noise"
    assert math.isnan(record.update(np.full(200, 0.5), np.full(200, math.nan), np.zeros(200)).popitem()[1])


def test_update_without_steps_has_no_gradient_to_judge() -> None:
    def nonfinite(**changes: float) -> object:
        observed = dataclasses.replace(healthy_update(), grad_norm=math.nan, **changes)  # type: ignore[arg-type]
        return update_readings(observed)["policy.nonfinite"]

    assert nonfinite(minibatches=0) == 0.0
    assert nonfinite(minibatches=0, value_loss=math.nan) == 1.0
    assert nonfinite(minibatches=0, skipped_nonfinite=8) == 8.0, "all were skipped"
    assert nonfinite(minibatches=8) == 1.0


@pytest.mark.parametrize("parameters", [0, 80])
def test_seed_without_tensors_has_no_gradient_to_vanish(parameters: int) -> None:
    """Before, each seed `noop` raised `gradient_vanishing`, and its zeros were the usual drift of seeds."""

    def without_gradient(measurements: Measurements) -> None:
        measurements.seed_grad_norm[:, 0] = 0.0

    rig = Rig()
    rig.recorder = rig.new_recorder(seed_parameters=(16, parameters))
    for _ in range(16):
        rig.run_epoch(without_gradient)
    told = rig.take()
    vanished = {e.data.source for e in told if e.type == "anomaly" and e.data.kind == "gradient_vanishing"}
    norms = [e.data.seed_grad_norm[0][0] for e in told if e.type == "epoch"]
    drifting = {source for e in told if e.type == "drift" for source in e.data.source if "r0c0" in source}
    seeds = {f"env0{env}.r0c0" for env in range(4)}
    assert vanished == drifting == (seeds if parameters else set())
    assert norms == [0.0 if parameters else None] * 16


def test_busy_neighbour_does_not_make_telemetry_long() -> None:
    waited = PhaseTimes(1.0, {"train": 0.9, "telemetry": 0.1}, {"train": 0.9, "telemetry": 0.1})
    assert telemetry_share(waited) == pytest.approx(0.095), "less 5 ms"
    by_cpu = dataclasses.replace(waited, cpu_phases={"train": 1.8, "telemetry": 0.04})  # two threads train
    assert telemetry_share(by_cpu) == pytest.approx(0.035 / 1.84)
    assert telemetry_share(dataclasses.replace(waited, cpu_phases={})) == pytest.approx(0.095)


def test_short_epochs_do_not_make_telemetry_long() -> None:
    """Before, a healthy run of the defaults on a fast machine was told so in its first round."""
    short = {"train": 0.05, "telemetry": 0.004}
    assert telemetry_share(PhaseTimes(0.054, short, short)) == 0.0
    long = {"train": 0.05, "telemetry": 0.012}
    assert telemetry_share(PhaseTimes(0.062, long, long)) > 0.1

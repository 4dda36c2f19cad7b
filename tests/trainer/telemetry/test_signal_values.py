"""What the checks compare, from what was measured."""

from __future__ import annotations

import json
import math

import numpy as np

from trainer.telemetry.signal_values import MAX_EPISODES, MIN_EPISODES, MIN_RETURN_SPREAD, ReturnRecord


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

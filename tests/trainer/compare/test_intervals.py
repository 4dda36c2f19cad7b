"""Intervals of paired differences: against a resampling written out, and what cannot be compared."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from esper_overwatch.trainer.compare import intervals
from esper_overwatch.trainer.compare.intervals import mean_interval, paired_interval

TASKS = ["a", "b"] * 6


def test_interval_equals_a_resampling_written_out() -> None:
    generator = np.random.default_rng(3)
    values = generator.normal(size=(4, 12)) + generator.normal(size=(4, 1))
    found = mean_interval(values, TASKS)
    means = []
    for _ in range(4000):
        rows = generator.integers(0, 4, 4)
        columns = [2 * generator.integers(0, 6, 6) + task for task in (0, 1)]
        means.append(values[rows][:, np.concatenate(columns)].mean())
    low, high = np.percentile(means, [2.5, 97.5])
    assert found.mean == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.08)
    assert high - low > 0.5, "the tolerance is far below the width"
    beyond = np.minimum((np.array(means) <= 0).mean(), (np.array(means) >= 0).mean())
    assert found.p == pytest.approx(2 * beyond, abs=0.03)


def test_p_is_small_where_the_interval_leaves_zero_out() -> None:
    generator = np.random.default_rng(5)
    for lead in np.linspace(-0.4, 0.4, 9):
        found = mean_interval(lead + 0.3 * generator.normal(size=(3, 12)), TASKS)
        assert (found.p < 0.05) == (found.low > 0 or found.high < 0)
        assert 1e-4 < found.p <= 1.0
    assert mean_interval(np.zeros((3, 12)), TASKS).p == 1.0


def test_pairing_cancels_what_hosts_differ_in() -> None:
    generator = np.random.default_rng(1)
    hosts = 10 * generator.normal(size=(1, 12))
    lead = 0.1 + 0.01 * generator.normal(size=(3, 12))
    paired = paired_interval(hosts + lead, hosts, TASKS)
    alone = mean_interval(hosts + lead, TASKS)
    assert 0.09 < paired.low <= paired.mean <= paired.high < 0.11
    assert alone.high - alone.low > 1.0


def test_few_seeds_widen_the_interval() -> None:
    values = np.array([[0.0], [1.0]]).repeat(12, axis=1)
    found = mean_interval(values, TASKS)
    assert (found.low, found.high) == (0.0, 1.0), "hosts do not vary, seeds do"


def test_one_result_has_no_interval() -> None:
    found = mean_interval(np.array([[0.5]]), ["a"])
    assert found.to_dict() == {"mean": 0.5, "low": None, "high": None, "p": None}


def test_many_seeds_and_hosts_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, all resamples were in memory at once: 640 MB of 20 seeds on 400 hosts."""
    generator = np.random.default_rng(4)
    values = generator.normal(size=(20, 400)) + generator.normal(size=(20, 1))
    monkeypatch.setattr(intervals, "BATCH_VALUES", 10 * values.size)
    monkeypatch.setattr(intervals, "NUM_RESAMPLES", 999)
    tracemalloc.start()
    batched = mean_interval(values, ["a", "b"] * 200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 999 * values.nbytes / 4
    monkeypatch.undo()
    whole = mean_interval(values[:, :120], ["a", "b"] * 60)
    assert (batched.low, batched.high) == pytest.approx((whole.low, whole.high), abs=0.1)
    assert batched.high - batched.low > 0.5, "the tolerance is far below the width"


def test_interval_repeats() -> None:
    values = np.random.default_rng(0).normal(size=(3, 12))
    assert mean_interval(values, TASKS) == mean_interval(values, TASKS)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [((2, 12), (2, 11), "12 and of 11 hosts"), ((2, 12), (3, 12), "2 and of 3 seeds")],
)
def test_unpaired_results_are_refused(first: tuple[int, int], second: tuple[int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        paired_interval(np.zeros(first), np.zeros(second), TASKS)

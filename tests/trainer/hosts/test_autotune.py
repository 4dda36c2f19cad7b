"""Group sizes: what is chosen, that it is kept, and what is said where memory is short."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.hosts.plots import config, every_state, plant, rows, tiny
from trainer import stacked
from trainer.execution import Execution
from trainer.hosts.population import Population, spans
from trainer.hosts.sizing import Bench, candidates, choose, measure

torch.set_num_threads(1)
CPU = torch.device("cpu")


@given(hosts=st.integers(1, 200), size=st.integers(1, 200))
def test_groups_hold_all_hosts_in_order_about_evenly_and_none_alone(hosts: int, size: int) -> None:
    found = spans(hosts, size)
    assert [host for a, b in found for host in range(a, b)] == list(range(hosts))
    sizes = [b - a for a, b in found]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= max(size, 3 if size > 1 else 1)
    assert min(sizes) > 1 or size == 1 or hosts == 1


def test_sizes_to_measure_feed_every_thread_and_are_never_one() -> None:
    assert candidates(1, 2, CPU) == [1]
    assert candidates(4, 2, CPU) == [2, 4], "a few hosts are not worth two threads"
    assert candidates(64, 2, CPU) == [2, 4, 8, 16, 32]
    assert candidates(50, 2, CPU) == [2, 4, 8, 16, 25]
    assert candidates(6, 1, torch.device("cuda")) == [2, 4, 6]


def test_groups_whose_activations_are_far_beyond_a_cache_are_not_tried_on_a_cpu() -> None:
    assert candidates(64, 2, CPU, bytes_per_host=2 << 20) == [2, 4]
    assert candidates(64, 2, CPU, bytes_per_host=64 << 20) == [2]
    assert candidates(1, 2, CPU, bytes_per_host=64 << 20) == [1]
    assert candidates(6, 1, torch.device("cuda"), bytes_per_host=64 << 20) == [2, 4, 6]


def test_the_larger_of_two_that_tie_is_chosen_and_hopeless_ones_are_not_measured() -> None:
    def seconds(*costs: float) -> list[tuple[int, float]]:
        return [(2 << i, cost) for i, cost in enumerate(costs)]

    assert choose([seconds(1.0, 0.9, 0.92)]) == 8
    assert choose([seconds(1.0, 0.9, 0.99)]) == 4
    assert choose([seconds(1.0)]) == 2
    assert choose([[]]) == 0
    measured = iter(seconds(1.0, 2.0, 0.1))
    assert choose([measured]) == 2
    assert list(measured) == [(8, 0.1)], "it was read on after a size that costs twice as much"


@given(st.lists(st.floats(1.0, 3.0), min_size=5, max_size=5), st.integers(0, 4))
def test_a_spell_in_which_all_is_slower_does_not_decide(costs: list[float], slow_from: int) -> None:
    sizes = [2, 4, 8, 16, 32]
    costs = sorted(costs, reverse=True)
    disturbed = [cost * (2.0 if i >= slow_from else 1.0) for i, cost in enumerate(costs)]
    quiet = list(zip(sizes, costs, strict=True))
    assert choose([zip(sizes, disturbed, strict=True), quiet]) == choose([quiet])


def test_a_measurement_takes_real_steps_and_a_set_size_none(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = dict(Bench(config(8), tiny(), CPU).seconds_per_host([2, 8]))
    assert set(costs) == {2, 8}
    assert all(cost > 0 for cost in costs.values())
    assert measure(config(8), tiny(), CPU).group_size in (2, 4, 8)
    monkeypatch.setattr(Bench, "_step", lambda *_: pytest.fail("measured"))
    cfg = config(8, envs__group_size=3, envs__convolution="unfold")
    assert measure(cfg, tiny(), CPU) == Execution(group_size=3, convolution="unfold")


def test_what_was_measured_is_kept_by_a_population_and_survives_a_checkpoint() -> None:
    execution = Execution(group_size=2, convolution="unfold")
    population = Population(config(4), tiny(), CPU, execution=execution)
    assert [len(group) for group in population.groups] == [2, 2]
    assert Execution.read(population.execution.told()) == execution
    assert stacked._convolution == "unfold"
    Population(config(4), tiny(), CPU)
    assert stacked._convolution == "grouped"


def test_memory_that_runs_out_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Bench._step

    def short(self: Bench, *arguments: object) -> float:
        if arguments[-1] == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return take(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Bench, "_step", short)
    assert measure(config(8), tiny(), CPU).group_size == 2


@pytest.mark.parametrize(("share", "chosen"), [(1.2, "grouped"), (0.9, "grouped"), (0.5, "unfold")])
def test_unfolded_convolutions_are_chosen_where_they_win_by_far(
    monkeypatch: pytest.MonkeyPatch, share: float, chosen: str
) -> None:
    costs = {"grouped": 1.0, "unfold": share}
    monkeypatch.setattr(Bench, "_step", lambda self, size: size * costs[self.convolution])
    assert measure(config(4, envs__group_size=4), tiny(), CPU).convolution == chosen


@pytest.mark.parametrize("plan", ["gather", "masked"])
def test_unfolded_convolutions_train_as_grouped_ones_do(plan: str) -> None:
    columns = rows(every_state(), list(range(0, 63, 7)))
    results = []
    for name in ("grouped", "unfold"):
        cfg = config(9, envs__plan=plan, envs__convolution=name)
        population = Population(cfg, tiny(), CPU, dtype=torch.float64)
        plant(population, columns)
        signals = [population.run_epoch(1, epoch) for epoch in range(2)][-1]
        results.append((vars(signals), population.state_dict()["weights"]))
        population.close()
    for one, other in zip(*results, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, equal_nan=True, rtol=1e-6, atol=1e-9)


def test_groups_share_one_copy_of_the_images() -> None:
    population = Population(config(6, envs__group_size=2), tiny(), CPU)
    pixels = {group.batches.examples.pixels_MHWC.data_ptr() for group in population.groups}  # type: ignore[attr-defined]
    assert len(population.groups) == 3
    assert len(pixels) == 1


def test_a_rehearsal_leaves_a_fresh_population() -> None:
    cfg = config(4)
    rehearsed, plain = Population(cfg, tiny(), CPU), Population(cfg, tiny(), CPU)
    rehearsed.rehearse()
    for population in (rehearsed, plain):
        population.begin_episode(1)
    one, other = rehearsed.state_dict(), plain.state_dict()
    for part in ("table", "weights", "momentum", "buffers"):
        for name, value in one[part].items():
            assert torch.equal(value.nan_to_num(7e7), other[part][name].nan_to_num(7e7)), (part, name)


@pytest.mark.parametrize(("wins", "chosen"), [(0, "grouped"), (1, "grouped"), (100, "unfold")])
def test_one_lucky_measurement_does_not_choose_the_convolution(
    monkeypatch: pytest.MonkeyPatch, wins: int, chosen: str
) -> None:
    """A machine that was slow for a moment would give a run other last bits than its like."""
    unfolded = itertools.count()

    def step(self: Bench, size: int) -> float:
        return 0.1 if self.convolution == "unfold" and next(unfolded) < wins else 1.0

    monkeypatch.setattr(Bench, "_step", step)
    assert measure(config(8), tiny(), CPU).convolution == chosen

"""Group sizes: what is chosen, that it is kept, and what is said where memory is short."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper_overwatch.trainer.compute import native_convolution
from esper_overwatch.trainer.compute import stacked_ops as stacked
from esper_overwatch.trainer.compute.compiler import Compiler
from esper_overwatch.trainer.compute.cuda_graphs import CudaGraphs, GraphMemory
from esper_overwatch.trainer.compute.execution_plan import Execution
from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.hosts import autotune, precision
from esper_overwatch.trainer.hosts.autotune import (
    StepTimer,
    candidate_sizes,
    choose_execution,
    choose_size,
    create_population,
    largest_size,
    measure_execution,
)
from esper_overwatch.trainer.hosts.population import Population, group_spans
from tests.cases import nightly
from tests.trainer.compute.test_cuda_graphs import record

from .plots import config, every_state, plant, rows, tiny

torch.set_num_threads(1)
CPU = torch.device("cpu")
NO_GRAPHS = CudaGraphs(on=False)


@given(hosts=st.integers(1, 200), size=st.integers(1, 200))
def test_groups_split_hosts_evenly_and_leave_none_alone(hosts: int, size: int) -> None:
    found = group_spans(hosts, size)
    assert [host for a, b in found for host in range(a, b)] == list(range(hosts))
    sizes = [b - a for a, b in found]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= max(size, 3 if size > 1 else 1)
    assert min(sizes) > 1 or size == 1 or hosts == 1


def rule(hosts: int, device: str = "cpu", **changes: int) -> int:
    """The size that the rule gives; an image's largest map has 2 KiB."""
    cfg = config(hosts, **{"envs__threads": 2, **changes})
    return largest_size(cfg, tiny(), torch.device(device))


def test_largest_size_feeds_every_thread_that_has_enough_to_do() -> None:
    of_batch_64 = partial(rule, task__batch_size=64)
    few = (1, 4, 8, 12)
    assert [of_batch_64(hosts) for hosts in few] == [*few], "a few hosts are not worth two threads"
    assert [of_batch_64(hosts) for hosts in (16, 17, 50, 64)] == [8, 9, 25, 32]
    assert [of_batch_64(hosts, envs__threads=16) for hosts in (16, 64)] == [8, 8]
    assert [rule(hosts, task__batch_size=1024) for hosts in (2, 4, 8)] == [2, 2, 2], "large hosts are"
    assert rule(6, "cuda") == 6


def test_largest_size_fits_the_caches() -> None:
    sizes = [rule(64, task__batch_size=batch) for batch in (128, 512, 1024, 4096)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 16
    assert 2 <= sizes[1] < 16
    assert sizes[3] == 2
    assert rule(1, task__batch_size=4096) == 1
    assert rule(6, "cuda", task__batch_size=4096) == 6


def test_sizes_to_measure_grow_and_are_never_one() -> None:
    assert candidate_sizes(1) == [1]
    assert candidate_sizes(4) == [2, 4]
    assert candidate_sizes(25) == [2, 4, 8, 16, 25]
    assert candidate_sizes(6) == [2, 4, 6]


def test_nothing_is_measured_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock would give a run other last bits than its like."""
    monkeypatch.setattr(StepTimer, "_timed", lambda *_: pytest.fail("measured"))
    cfg = config(8, envs__threads=2, task__batch_size=512, envs__convolution="grouped")
    assert choose_execution(cfg, tiny(), CPU) == Execution(group_size=4)
    cfg = config(8, envs__group_size=3, envs__convolution="unfold")
    assert choose_execution(cfg, tiny(), CPU) == Execution(group_size=3, convolution="unfold")


def test_native_convolutions_are_chosen_where_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(native_convolution, "absence", lambda: "")
    assert choose_execution(config(8), tiny(), CPU).convolution == "native"
    assert choose_execution(config(8, amp__dtype="bf16"), tiny(), CPU).convolution == "grouped"
    assert not caplog.messages
    with pytest.raises(
        ConfigError, match=r"^envs.convolution = native: meta is not a CPU; or choose grouped$"
    ):
        choose_execution(config(8, envs__convolution="native"), tiny(), torch.device("meta"))


def test_without_a_compiled_kernel_torch_convolves_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(native_convolution, "kernel", None)
    assert choose_execution(config(8), tiny(), CPU).convolution == "grouped"
    assert ["install a C++ compiler" in message for message in caplog.messages] == [True]
    with pytest.raises(ConfigError, match=r"^envs.convolution = native: the kernel was not"):
        choose_execution(config(8, envs__convolution="native"), tiny(), CPU)
    caplog.clear()
    resumed = Execution(group_size=4, convolution="native")
    population = create_population(config(8), tiny(), CPU, resumed)
    assert population.execution.convolution == "grouped"
    assert ["with other last bits" in message for message in caplog.messages] == [True]
    population.close()


def test_groups_share_a_streams_memory_before_they_become_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, bool]] = []

    def attempt(*arguments: Any, is_serial: bool) -> Any:
        tried.append((arguments[3].group_size, is_serial))
        return object() if tried[-1] == (2, True) else None

    monkeypatch.setattr(autotune, "_tried", attempt)
    made = create_population(config(8), tiny(), torch.device("cuda"), Execution(group_size=4))
    assert made is not None
    assert tried == [(4, False), (4, True), (2, True)]


def test_programs_of_one_stream_share_the_memory_of_graphs() -> None:
    seen: list[GraphMemory] = []

    def capture(work: Callable[[], Any], warm_up: object, memory: GraphMemory) -> Any:
        seen.append(memory)
        return record(work)

    graphs = CudaGraphs(on=True, capture=capture)
    made = Population(config(4, envs__group_size=2, envs__plan="masked"), tiny(), CPU, is_serial=True)
    made.compile(Compiler("off", CPU), graphs)
    plant(made, rows(every_state(), [3, 4, 5, 6]))
    made.run_epoch(1, 0)
    assert len(seen) > 6
    assert len({id(memory) for memory in seen}) == 1
    assert seen[0].num_graphs == len(seen)


def test_larger_size_wins_ties_and_abandoned_ones_are_not_measured() -> None:
    def seconds(*costs: float) -> list[tuple[int, float]]:
        return [(2 << i, cost) for i, cost in enumerate(costs)]

    assert choose_size([seconds(1.0, 0.9, 0.92)]) == 8
    assert choose_size([seconds(1.0, 0.9, 0.99)]) == 4
    assert choose_size([seconds(1.0)]) == 2
    assert choose_size([[]]) == 0
    measured = iter(seconds(1.0, 2.0, 0.1))
    assert choose_size([measured]) == 2
    assert list(measured) == [(8, 0.1)], "it was read on after a size that costs twice as much"


@given(st.lists(st.floats(1.0, 3.0), min_size=5, max_size=5), st.integers(0, 4))
def test_a_spell_in_which_all_is_slower_does_not_decide(costs: list[float], slow_from: int) -> None:
    sizes = [2, 4, 8, 16, 32]
    costs = sorted(costs, reverse=True)
    disturbed = [cost * (2.0 if i >= slow_from else 1.0) for i, cost in enumerate(costs)]
    quiet = list(zip(sizes, costs, strict=True))
    assert choose_size([zip(sizes, disturbed, strict=True), quiet]) == choose_size([quiet])


@pytest.mark.slow
def test_a_measurement_takes_real_steps_and_a_set_size_none(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = dict(StepTimer(config(8), tiny(), CPU).seconds_per_host([2, 8]))
    assert set(costs) == {2, 8}
    assert all(cost > 0 for cost in costs.values())
    assert measure_execution(config(8), tiny(), CPU, NO_GRAPHS).group_size in (2, 4, 8)
    monkeypatch.setattr(StepTimer, "_step", lambda *_: pytest.fail("measured"))
    cfg = config(8, envs__group_size=3, envs__convolution="unfold")
    assert measure_execution(cfg, tiny(), CPU, NO_GRAPHS) == Execution(group_size=3, convolution="unfold")


def test_population_keeps_its_measured_execution_and_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    execution = Execution(group_size=2, convolution="unfold")
    population = Population(config(4), tiny(), CPU, execution=execution)
    assert [len(group) for group in population.groups] == [2, 2]
    assert Execution.from_dict(population.execution.to_dict()) == execution
    unfolded, by_products = [], stacked._conv_by_products
    monkeypatch.setattr(stacked, "_conv_by_products", lambda *args: unfolded.append(1) or by_products(*args))
    other = Population(config(4), tiny(), CPU)
    other.warm_up_memory()
    assert not unfolded
    population.warm_up_memory()
    assert unfolded


def test_memory_that_runs_out_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    take = StepTimer._step

    def short(self: StepTimer, *arguments: object) -> float:
        if arguments[-1] == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return take(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StepTimer, "_step", short)
    assert measure_execution(config(8), tiny(), CPU, NO_GRAPHS).group_size == 2


@pytest.mark.parametrize(("share", "chosen"), [(1.2, "grouped"), (0.9, "grouped"), (0.5, "unfold")])
def test_unfolded_convolutions_are_chosen_where_they_win_by_far(
    monkeypatch: pytest.MonkeyPatch, share: float, chosen: str
) -> None:
    costs = {"grouped": 1.0, "unfold": share}
    monkeypatch.setattr(StepTimer, "_step", lambda self, size: size * costs[self.convolution])
    assert measure_execution(config(4, envs__group_size=4), tiny(), CPU, NO_GRAPHS).convolution == chosen


@pytest.mark.slow
@pytest.mark.parametrize("plan", [nightly("gather"), "masked"])
def test_unfolded_convolutions_train_as_grouped_ones_do(plan: str) -> None:
    columns = rows(every_state(), list(range(0, 63, 7)))
    results = []
    for name in ("grouped", "unfold"):
        cfg = config(9, envs__plan=plan, envs__convolution=name)
        population = Population(cfg, tiny(), CPU, dtype=torch.float64)
        plant(population, columns)
        measurements = [population.run_epoch(1, epoch).measurements for epoch in range(2)][-1]
        results.append((vars(measurements), population.state_dict()["weights"]))
        population.close()
    for one, other in zip(*results, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, equal_nan=True, rtol=1e-6, atol=1e-9)


def test_groups_share_one_copy_of_the_images() -> None:
    population = Population(config(6, envs__group_size=2), tiny(), CPU)
    pixels = {group.batches.examples.pixels_MHWC.data_ptr() for group in population.groups}  # type: ignore[attr-defined]
    assert len(population.groups) == 3
    assert len(pixels) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_a_rehearsal_leaves_a_fresh_population(amp: str, threads: int) -> None:
    cfg = config(4, envs__group_size=2, envs__threads=threads, amp__dtype=amp)
    rehearsed, plain = Population(cfg, tiny(), CPU), Population(cfg, tiny(), CPU)
    rehearsed.warm_up_memory()
    for population in (rehearsed, plain):
        population.begin_episode(1)
    one, other = rehearsed.state_dict(), plain.state_dict()
    for part in one.keys() - {"kept"}:
        for name, value in one[part].items():
            assert torch.equal(value.nan_to_num(7e7), other[part][name].nan_to_num(7e7)), (part, name)


@pytest.mark.parametrize(("wins", "chosen"), [(0, "grouped"), (1, "grouped"), (100, "unfold")])
def test_one_lucky_measurement_does_not_choose_the_convolution(
    monkeypatch: pytest.MonkeyPatch, wins: int, chosen: str
) -> None:
    """A machine that was slow for a moment would give a run other last bits than its like."""
    unfolded = itertools.count()

    def step(self: StepTimer, size: int) -> float:
        return 0.1 if self.convolution == "unfold" and next(unfolded) < wins else 1.0

    monkeypatch.setattr(StepTimer, "_step", step)
    assert measure_execution(config(8), tiny(), CPU, NO_GRAPHS).convolution == chosen


def plan_of(graphs: CudaGraphs) -> str:
    """Chosen by measurement, where nothing else is to be measured."""
    small = {"task__batches_per_epoch": 1, "seeds__blueprints": ["norm"]}
    cfg = config(4, (4,), envs__group_size=4, envs__convolution="grouped", **small)
    return measure_execution(cfg, tiny(), CPU, graphs).plan


@pytest.mark.parametrize(
    ("costs", "chosen", "trials"),
    [
        ([1.0, 0.5], "masked", 1),
        ([1.0, 1.0], "gather", 1),
        ([1.0, 0.9, 1.0, 0.9, 1.0, 1.1], "gather", 3),
        ([1.0, 0.9, 1.0, 0.9, 1.0, 0.9], "masked", 3),
        ([1.0, math.inf], "gather", 1),
        ([math.inf, 1.0], "masked", 1),
    ],
)
def test_masked_plan_is_chosen_where_its_graphs_win(
    monkeypatch: pytest.MonkeyPatch, costs: list[float], chosen: str, trials: int
) -> None:
    left = list(costs)

    def epoch(self: StepTimer, size: int, graphs: CudaGraphs) -> float:
        assert (self.plan, size) == (("gather", "masked")[len(left) % 2], 4)
        if math.isinf(cost := left.pop(0)):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return cost

    monkeypatch.setattr(StepTimer, "_epoch", epoch)
    assert plan_of(CudaGraphs(on=True)) == chosen
    assert len(costs) - len(left) == 2 * trials
    assert plan_of(NO_GRAPHS) == "gather"


@pytest.mark.parametrize(
    ("ratios", "chosen"), [([0.8, 0.8, 0.8], "bf16"), ([0.8, 0.95], "off"), ([math.inf], "off")]
)
def test_bf16_is_chosen_where_epochs_are_faster_by_far(
    monkeypatch: pytest.MonkeyPatch, ratios: list[float], chosen: str
) -> None:
    left = list(ratios)

    def epoch(self: StepTimer, size: int, graphs: CudaGraphs) -> float:
        population = self._population(size)
        population.close()
        assert population.execution.amp == self.amp
        return left.pop(0) if self.amp == "bf16" else 1.0

    monkeypatch.setattr(StepTimer, "_epoch", epoch)
    cfg = config(4, (4,), envs__group_size=4, envs__convolution="grouped", envs__plan="gather")
    assert measure_execution(cfg, tiny(), CPU, NO_GRAPHS).amp == "off", "a CPU has none"
    monkeypatch.setattr(precision, "has_bf16", lambda device: True)
    assert measure_execution(cfg, tiny(), CPU, NO_GRAPHS).amp == chosen
    assert not left


def test_plans_are_measured_in_real_epochs_with_graphs() -> None:
    captured = []

    def capture(*works: Callable[[], Any]) -> Any:
        captured.append(works)
        return record(*works)

    assert plan_of(CudaGraphs(on=True, capture=capture)) in ("gather", "masked")
    assert captured


def test_capture_that_fails_while_measured_is_the_last() -> None:
    def capture(*works: object) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs = CudaGraphs(on=True, capture=capture)
    assert plan_of(graphs) == "gather"
    assert "not permitted" in graphs.failure


@pytest.mark.parametrize(
    ("configured", "saved", "runs"),
    [
        ("auto", {"plan": "masked"}, "masked"),
        ("auto", {}, "gather"),
        ("masked", {}, "masked"),
        ("gather", {"plan": "masked"}, "gather"),
    ],
)
def test_run_goes_on_by_its_plan_also_from_old_checkpoints(
    configured: str, saved: dict[str, str], runs: str
) -> None:
    execution = Execution.from_dict({"group_size": 2, "convolution": "grouped", "amp": "off", **saved})
    population = Population(config(2, envs__plan=configured), tiny(), CPU, execution=execution)
    assert population.execution.plan == runs
    graphs = CudaGraphs(on=True, capture=record)
    population.compile(Compiler("off", CPU), graphs)
    assert bool(graphs.programs) == (runs == "masked")
    population.close()

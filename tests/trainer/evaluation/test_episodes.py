"""Policies on held-out hosts: the same hosts for all, none that training sees; training goes on as ever."""

from __future__ import annotations

import json
import math
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from esper_overwatch.protocol.messages.vocabulary import Op, Stage
from esper_overwatch.trainer.config import load as settings
from esper_overwatch.trainer.config.load import ConfigError
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.registry import load, load_task
from esper_overwatch.trainer.evaluation.episodes import EpisodeTable, HeldOutEpisodes
from esper_overwatch.trainer.evaluation.frozen_policy import FrozenPolicy
from esper_overwatch.trainer.evaluation.held_out import HeldOutHosts
from esper_overwatch.trainer.hosts.population import EpochResult, Population
from esper_overwatch.trainer.loop import Trainer
from tests.trainer.compute.test_process_group import Recording

torch.set_num_threads(1)
CPU = torch.device("cpu")
SMALL = (
    "envs.count=2",
    "envs.group_size=2",
    "envs.convolution=grouped",
    "envs.threads=1",
    "task.batches_per_epoch=2",
    "task.batch_size=8",
    "episode_epochs=6",
    "policy.hidden=16",
    "ppo.minibatches=1",
    "host.channels=2,2,2",
)
MIXED = ("task.mixture=digits,layout,quadrants", "task.instances=2")
DEPTHWISE = FrozenPolicy.constant("depthwise", "none", "none")


def configuration(*sets: str) -> Config:
    return settings.load(sets=[*SMALL, *sets])


def played(cfg: Config, policy: FrozenPolicy, held_out: HeldOutHosts) -> EpisodeTable:
    with closing(HeldOutEpisodes(cfg, held_out.load(cfg.task, CPU), held_out, CPU)) as episodes:
        return episodes.play(policy)


def same(one: EpisodeTable, other: EpisodeTable) -> bool:
    return one.to_builtins() == other.to_builtins()


@pytest.mark.slow
def test_policies_meet_the_same_hosts() -> None:
    cfg, held_out = configuration(*MIXED), HeldOutHosts(count=6)
    episodes = HeldOutEpisodes(cfg, held_out.load(cfg.task, CPU), held_out, CPU)
    none = episodes.play(FrozenPolicy("no_growth"))
    grown = episodes.play(DEPTHWISE)
    again = episodes.play(FrozenPolicy("no_growth"))
    episodes.close()
    assert same(none, again), "what was played before leaves no trace"
    assert not same(none, grown)
    assert none.task == grown.task == ("digits", "layout", "quadrants") * 2
    assert none.instance.tolist() == [0, 0, 0, 0, 1, 1], "digits are read from files: they have one instance"


@pytest.mark.slow
def test_hosts_do_not_depend_on_the_run() -> None:
    held_out = HeldOutHosts(count=2)
    mine = played(configuration("seed=1"), DEPTHWISE, held_out)
    theirs = played(configuration("seed=2", "envs.count=4", "policy.hidden=8"), DEPTHWISE, held_out)
    assert same(mine, theirs)
    others = played(configuration("seed=1"), DEPTHWISE, HeldOutHosts(seed=2, count=2))
    assert not same(mine, others)


def test_added_parameters_are_of_the_host_that_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, those of a host that failed in the last epoch were counted as they had failed."""
    cfg, held_out = configuration(), HeldOutHosts(count=2)
    last, run_epoch = cfg.episode_epochs - 1, Population.run_epoch

    def fail(population: Population, round_: int, epoch: int, **options: Any) -> EpochResult:
        result = run_epoch(population, round_, epoch, **options)
        if epoch == last:
            population.table.stage[1] = Stage.PRUNED
            result.measurements.train_loss[1] = math.nan
            result.measurements.parameters[1] = population.parameters()[1]
        return result

    monkeypatch.setattr(Population, "run_epoch", fail)
    added = played(cfg, DEPTHWISE, held_out).added_parameters
    assert added[0] == added[1] > 0


def test_held_out_instances_are_never_trained_on() -> None:
    cfg = settings.load(sets=["task.mixture=layout,histogram", "task.instances=16"])
    trained = load_task(cfg.task, CPU)
    tested = HeldOutHosts(count=8).load(cfg.task, CPU)
    seen = {data.train.images.numpy().tobytes() for data in trained.datasets}  # type: ignore[union-attr]
    mine = [data.train.images.numpy().tobytes() for data in tested.datasets]  # type: ignore[union-attr]
    assert len(seen) == 32
    assert len(set(mine)) == len(mine) == 8
    assert not seen & set(mine)


def test_hosts_of_another_seed_have_other_instances() -> None:
    cfg = settings.load(sets=["task.mixture=layout,histogram"])
    by_seed = [
        {data.train.images.numpy().tobytes() for data in HeldOutHosts(seed, 4).load(cfg.task, CPU).datasets}  # type: ignore[union-attr]
        for seed in (0, 1, 2, cfg.evaluation.seed)
    ]
    assert by_seed[2] == by_seed[3], "evaluations of a run are of seed 2, those of compare of seed 1"
    assert len(set.union(*by_seed)) == 3 * 4


@pytest.mark.slow
def test_tasks_never_trained_on_can_be_asked_for() -> None:
    held_out = HeldOutHosts(count=2, tasks=("texture", "histogram"))
    assert played(configuration(*MIXED), DEPTHWISE, held_out).task == ("texture", "histogram")


def test_table_tells_what_became_of_each_host() -> None:
    cfg = configuration(*MIXED, "episode_epochs=12", "reward.rent=0.1")
    table = played(cfg, DEPTHWISE, HeldOutHosts(count=3))
    assert table.added_parameters.min() == table.added_parameters.max() > 0
    assert table.fossilized.tolist() == [1, 1, 1]
    assert table.ops.sum(1).tolist() == [12, 12, 12]
    assert table.ops[:, Op.GERMINATE].tolist() == [1, 1, 1]
    np.testing.assert_allclose(sum(table.components.values()), table.episode_return, atol=1e-5)
    assert bool((table.components["rent"] < 0).all())
    assert table.of_task("layout").episode_return.tolist() == [table.episode_return[1]]
    assert same(EpisodeTable.from_builtins(json.loads(json.dumps(table.to_builtins()))), table)


@pytest.mark.slow
def test_training_goes_on_as_if_nothing_was_evaluated() -> None:
    cfg, held_out = configuration(), HeldOutHosts(count=2)
    journals = []
    for evaluated in (False, True):
        trainer, seen = Trainer(cfg, load("digits"), CPU), Recording()
        for _ in range(2):
            trainer.play(seen)
            trainer.end_round(seen)
            if evaluated:
                assert trainer.agent.network is not None
                played(cfg, FrozenPolicy.learned(trainer.agent.network), held_out)
        journals.append(seen.frames)
    for without, with_ in zip(*journals, strict=True):
        for name in without:
            np.testing.assert_array_equal(without[name], with_[name], err_msg=name)


@pytest.mark.slow
def test_greedy_network_differs_from_a_sampled_one() -> None:
    cfg, held_out = configuration(), HeldOutHosts(count=2)
    network = Trainer(cfg, load("digits"), CPU).agent.network
    assert network is not None
    greedy, again = (played(cfg, FrozenPolicy.learned(network), held_out) for _ in range(2))
    sampled = played(cfg, FrozenPolicy.learned(network, greedy=False), held_out)
    assert same(greedy, again)
    assert greedy.ops.tolist() != sampled.ops.tolist()


def test_schedule_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="each of the 3 slots"):
        played(configuration(), FrozenPolicy.constant("depthwise"), HeldOutHosts(count=2))

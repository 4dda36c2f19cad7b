"""Schedules, weight decay, clips, the rate of seeds: hosts learn as modules with torch.optim, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from esper_overwatch.protocol.messages.vocabulary import Stage
from esper_overwatch.trainer.config.load import ConfigError, load
from esper_overwatch.trainer.hosts.host_group import HostGroup
from esper_overwatch.trainer.hosts.optimizer import ParameterGroup, StackedSGD, padded_zeros
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.slot_plan import Topology
from tests.trainer.hosts import test_text_exactness as text
from tests.trainer.hosts.plots import config, every_state, plant, rows, tiny
from tests.trainer.oracle import Env, env_from
from tests.trainer.test_hot_path import Counting
from tests.trainer.text_oracle import TextEnv

torch.set_num_threads(1)
DATA = tiny()
EPOCHS = 5
OPTIONS = {
    "schedule": {"host__schedule": "cosine", "host__warmup_epochs": 2},
    "decay": {"host__weight_decay": 0.05, "seeds__weight_decay": 0.2},
    "clip": {"host__max_grad_norm": 0.3, "seeds__max_grad_norm": 0.05},
    "own rate": {"seeds__learning_rate": 0.4, "host__schedule": "linear"},
    "all": {
        "host__schedule": "linear",
        "host__warmup_epochs": 1,
        "host__weight_decay": 0.1,
        "host__max_grad_norm": 0.3,
        "seeds__learning_rate": 0.02,
        "seeds__weight_decay": 0.3,
    },
}


def grown_up(columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Seeds that are born in every epoch would have new weights in each."""
    stage = columns["stage"]
    return columns | {"stage": torch.where(stage == Stage.GERMINATED, int(Stage.TRAINING), stage)}


def scheduler(oracle: Env, schedule: str, warmup: int) -> lr_scheduler.LRScheduler:
    """torch's own course of that name over the episode."""
    optimizer, left = oracle.optimizer, EPOCHS - warmup
    main: lr_scheduler.LRScheduler = {
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, 1.0),
        "linear": lambda: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=left),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, T_max=left),
    }[schedule]()
    if not warmup:
        return main
    start = lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), 1.0, total_iters=warmup)
    return lr_scheduler.SequentialLR(optimizer, [start, main], milestones=[warmup])


@pytest.mark.parametrize(
    ("name", "plan"), [*((name, "gather") for name in OPTIONS), ("clip", "masked"), ("all", "masked")]
)
def test_hosts_and_seeds_learn_as_torch_optim_teaches(name: str, plan: str) -> None:
    options = OPTIONS[name]
    columns = grown_up(rows(every_state(), list(range(0, 63, 8))))
    n = len(columns["stage"])
    cfg = config(n, envs__plan=plan, envs__group_size=n, episode_epochs=EPOCHS, **options)
    population = Population(cfg, DATA, "cpu", dtype=torch.float64)
    plant(population, columns)
    table, group = population.table, population.groups[0]
    topology = Topology.of(table.stage, table.blueprint, table.style)
    group.plan_epoch(topology, 1, 0)
    state = population.state_dict()
    oracles = [env_from(cfg, DATA, population, state, env) for env in range(n)]
    courses = [scheduler(o, cfg.host.schedule, cfg.host.warmup_epochs) for o, _ in oracles]
    for epoch in range(EPOCHS):
        group.plan_epoch(topology, 1, epoch)
        index = group.batches.indices(1, epoch)
        _, _, gradients = group.gradients(*group.batches.at(1, epoch))
        group.optimizer.step(gradients)
        weights = population.pool.unpacked(group.weights)
        for env, ((oracle, names), course) in enumerate(zip(oracles, courses, strict=True)):
            oracle.step(oracle.inputs(DATA.train, index[env]), DATA.train.labels[index[env]])
            course.step()
            text.assert_close(
                torch.cat([weights[names[n]][env].detach().flatten() for n, _ in oracle.named_parameters()]),
                torch.cat([p.detach().flatten() for p in oracle.parameters()]),
                f"env {env} after epoch {epoch}",
            )
    population.close()


def test_transformers_learn_as_torch_optim_teaches() -> None:
    columns = grown_up(rows(every_state(4), list(range(0, 36, 5))))
    n = len(columns["stage"])
    options = {**OPTIONS["all"], "episode_epochs": EPOCHS, "envs__group_size": n}
    cfg, population = text.populate(columns, seeds__blueprints=text.BLUEPRINTS[:4], **options)
    table, group = population.table, population.groups[0]
    topology = Topology.of(table.stage, table.blueprint, table.style)
    state = population.state_dict()
    oracles = [env_from(cfg, text.DATA, population, state, env, TextEnv) for env in range(n)]
    courses = [scheduler(o, cfg.host.schedule, cfg.host.warmup_epochs) for o, _ in oracles]
    for epoch in range(EPOCHS):
        group.plan_epoch(topology, 1, epoch)
        tokens, labels = group.batches.at(1, epoch)
        group.optimizer.step(group.gradients(tokens, labels)[2])
        weights = population.pool.unpacked(group.weights)
        for env, ((oracle, names), course) in enumerate(zip(oracles, courses, strict=True)):
            oracle.step(tokens[:, env, :, 0], labels[env])
            course.step()
            text.assert_close(
                torch.cat([weights[names[n]][env].detach().flatten() for n, _ in oracle.named_parameters()]),
                torch.cat([p.detach().flatten() for p in oracle.parameters()]),
                f"env {env} after epoch {epoch}",
            )
    population.close()


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_rates_of_an_episode_are_those_of_torch(schedule: str, warmup: int) -> None:
    cfg = config(2, host__schedule=schedule, host__warmup_epochs=warmup, episode_epochs=EPOCHS)
    population = Population(cfg, DATA, "cpu")
    population.begin_episode(1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=cfg.host.learning_rate)
    oracle = type("Optimized", (), {"optimizer": optimizer})
    course = scheduler(oracle, schedule, warmup)  # type: ignore[arg-type]
    table = population.table
    for epoch in range(EPOCHS):
        population.set_topology(table.stage, table.blueprint, table.style)
        population.run_epoch(1, epoch)
        expected = course.get_last_lr()[0]
        assert population.learning_rates == pytest.approx((expected, expected), rel=1e-12)
        optimizer.step()
        course.step()
    population.close()


def test_a_population_resumed_mid_episode_keeps_its_schedule() -> None:
    columns = grown_up(rows(every_state(), [1, 9, 20, 33, 47]))
    cfg = config(5, envs__group_size=2, episode_epochs=EPOCHS, **OPTIONS["all"])
    whole, resumed = (Population(cfg, DATA, "cpu") for _ in range(2))
    plant(whole, columns)
    for epoch in range(2):
        whole.run_epoch(1, epoch)
    resumed.load_state_dict(whole.state_dict())
    table = resumed.table
    resumed.set_topology(table.stage, table.blueprint, table.style)
    for epoch in range(2, EPOCHS):
        one, other = (vars(population.run_epoch(1, epoch).measurements) for population in (whole, resumed))
        assert resumed.learning_rates == whole.learning_rates
        for name, value in one.items():
            assert torch.equal(value.nan_to_num(7e7), other[name].nan_to_num(7e7)), name
    state = resumed.state_dict()["weights"]
    for name, weight in whole.state_dict()["weights"].items():
        assert torch.equal(weight, state[name]), name
    whole.close()
    resumed.close()


@pytest.mark.slow
def test_groups_and_plans_decay_the_same_rows() -> None:
    """A gate that another host of the group trains, and a frozen seed, keep their weights where they rest."""
    columns = grown_up(rows(every_state(), list(range(0, 63, 7))))
    results = []
    for plan, size in (("gather", 9), ("masked", 9), ("gather", 2)):
        cfg = config(9, envs__plan=plan, envs__group_size=size, **OPTIONS["all"])
        population = Population(cfg, DATA, "cpu", dtype=torch.float64)
        plant(population, columns)
        population.run_epoch(1, 0)
        population.run_epoch(1, 1)
        results.append(population.state_dict()["weights"])
        population.close()
    for other in results[1:]:
        for name, weight in results[0].items():
            torch.testing.assert_close(other[name], weight, rtol=1e-9, atol=1e-11)


def test_a_live_rate_is_the_base_of_the_schedule() -> None:
    own = Population(config(2, seeds__learning_rate=0.3), DATA, "cpu")
    shared = Population(config(2), DATA, "cpu")
    for population in (own, shared):
        population.set_learning_rate(0.7)
    assert own.learning_rates == (0.7, 0.3)
    assert shared.learning_rates == (0.7, 0.7)
    shared.groups[0].optimizer.schedule_share = 0.5
    assert shared.learning_rates == (0.35, 0.35)
    own.close()
    shared.close()


def test_fp16_gradients_are_clipped_after_they_are_unscaled() -> None:
    steps = []
    for dtype in ("off", "fp16"):
        cfg = config(3, amp__dtype=dtype, host__max_grad_norm=0.1, host__momentum=0.0)
        population = Population(cfg, tiny(), "cpu")
        population.begin_episode(1)
        group: HostGroup = population.groups[0]
        before = {name: weight.detach().clone() for name, weight in group.weights.items()}
        group.plan_epoch(
            Topology.of(*(getattr(population.table, c) for c in ("stage", "blueprint", "style"))), 1, 0
        )
        group.optimizer.step(group.gradients(*group.batches.at(1, 0))[2])
        moved = [
            (group.weights[name].detach() - before[name]).flatten(1) for name in population.model.specs()
        ]
        steps.append(torch.cat(moved, dim=1).norm(dim=1) / cfg.host.learning_rate)
        population.close()
    for norms in steps:
        torch.testing.assert_close(norms, torch.full_like(norms, 0.1), rtol=2e-3, atol=0)


def test_a_warm_up_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"host\.warmup_epochs = 24: must be below episode_epochs = 24"):
        load(sets=["host.warmup_epochs=24"])


def test_options_that_are_off_add_no_operation() -> None:
    weights = {name: padded_zeros((4, 16), torch.float32) for name in ("host", "seed")}
    groups = [ParameterGroup(["host"], 0.1, clips_jointly=True), ParameterGroup(["seed"], 0.1)]
    optimizer = StackedSGD(weights, groups, 0.9)
    with Counting() as counted:
        optimizer.step({name: torch.ones(4, 16) for name in weights})
    fills = len(weights)
    assert counted.issued == 1 + fills, "the fused update of all weights"

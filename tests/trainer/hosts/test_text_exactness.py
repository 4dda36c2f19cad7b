"""The stacked transformer and its seeds against sequential modules, in float64, with a third party's seed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from esper_overwatch.protocol.messages.vocabulary import BLENDED, ISOLATED, Stage, Style
from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.config.schema import Config
from esper_overwatch.trainer.data.text import Text
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.hosts.slot_plan import Topology
from esper_overwatch.trainer.seeds.table import is_in
from tests.cases import nightly
from tests.trainer import text_oracle
from tests.trainer.hosts.plots import config, every_state, plant, rows
from tests.trainer.oracle import env_from
from tests.trainer.packages import POINTWISE, install
from tests.trainer.text_oracle import TextEnv

torch.set_num_threads(1)
SENTENCE = "the cat sat on the mat; a dog ran off with my hat, and that was that. "
DATA = Text.of("tiny", "".join(SENTENCE[i % 7 :] for i in range(30)), 10)
BLUEPRINTS = ("norm", "lora", "attention", "mlp", "pointwise")
MORE_BLUEPRINTS = (
    "lora_large",
    "flex_attention",
    "mlp_small",
    "noop",
    "attention:head_width=4",
    "flex_attention:window=3",
    "lora:rank=3",
    "mlp:expansion=1",
)
Made = tuple[Config, Population]


@pytest.fixture(scope="module", autouse=True)
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = install(
        tmp_path_factory.mktemp("site"),
        "pointwise_text",
        POINTWISE,
        esper_blueprints={"pointwise": "pointwise"},
    )
    sys.path.insert(0, str(site))
    import pointwise_text  # type: ignore[import-not-found]

    text_oracle.OTHERS["pointwise"] = pointwise_text.Pointwise
    yield
    sys.path.remove(str(site))
    del text_oracle.OTHERS["pointwise"], sys.modules["pointwise_text"]


def populate(columns: dict[str, Tensor], dtype: torch.dtype = torch.float64, **changes: object) -> Made:
    settings = {
        "host__width": 16,
        "host__depth": 3,
        "host__heads": 2,
        "host__mlp": 12,
        "host__learning_rate": 0.1,
        "seeds__blueprints": BLUEPRINTS,
        "task__batch_size": 4,
        **changes,
    }
    cfg = config(columns["stage"].shape[0], **settings)
    population = Population(cfg, DATA, "cpu", dtype=dtype)
    plant(population, columns)
    table, at = population.table, 0
    topology = Topology.of(table.stage, table.blueprint, table.style)
    for group in population.groups:
        group.plan_epoch(topology.rows(at, at + len(group)), 1, 0)
        at += len(group)
    return cfg, population


@pytest.fixture(params=["gather", "masked"])
def planted(request: pytest.FixtureRequest) -> Iterator[Made]:
    cfg, population = populate(every_state(5), envs__plan=request.param, envs__group_size=64)
    yield cfg, population
    population.close()


def oracles(cfg: Config, population: Population) -> list[tuple[TextEnv, dict[str, str]]]:
    state = population.state_dict()
    return [env_from(cfg, DATA, population, state, env, TextEnv) for env in range(cfg.envs.count)]


def about(population: Population, env: int) -> str:
    table = population.table
    columns = (table.stage, table.blueprint, table.style, table.alpha)
    return f"env {env}: " + "; ".join(
        " ".join(f"{float(column[env, s]):g}" for column in columns) for s in range(table.shape[1])
    )


def assert_close(a: Tensor, b: Tensor, what: str) -> None:
    torch.testing.assert_close(a, b.view_as(a), rtol=1e-8, atol=1e-10, msg=lambda m: f"{what}: {m}")


@pytest.mark.slow
@pytest.mark.parametrize("plan", [nightly("gather"), "masked"])
def test_other_kinds_and_sizes_train_and_validate_as_modules(plan: str) -> None:
    columns = rows(every_state(len(MORE_BLUEPRINTS)), list(range(0, 72, 4)))
    made = populate(columns, envs__plan=plan, envs__group_size=72, seeds__blueprints=MORE_BLUEPRINTS)
    assert_trains_as_modules(made)
    assert_validates_as_modules(made)
    made[1].close()


@pytest.mark.parametrize("plan", ["gather", nightly("masked")])
def test_a_seed_without_numbers_may_live_like_others(plan: str) -> None:
    columns = rows(every_state(1), list(range(9)))
    _, population = populate(columns, envs__plan=plan, seeds__blueprints=["noop"])
    measurements, table = population.run_epoch(1, 0).measurements, population.table
    learns = is_in(table.stage, (*ISOLATED, *BLENDED)) & ~table.pruning
    gated = is_in(table.stage, BLENDED) & (table.style == Style.GATE)
    norm, health = measurements.seed_grad_norm, measurements.seed_health
    assert (norm[learns & ~gated] == 0).all()
    assert (health[learns & ~gated] == 1).all()
    assert norm[~learns].isnan().all()
    assert population.parameters_seed.sum() == 0
    population.close()


def test_every_state_blueprint_and_style_trains_as_modules_do(planted: Made) -> None:
    assert_trains_as_modules(planted)


def masks(cfg: Config, env: int, step: int) -> Callable[[Tensor, int], Tensor]:
    """The dropout of an env in a step of round 1, from its definition."""
    if not cfg.host.dropout:
        return lambda h, _place: h
    key = rng.key(cfg.seed, rng.Purpose.DROPOUT, torch.tensor(env), 1, step)

    def drop(h: Tensor, place: int) -> Tensor:
        dropped = rng.uniform(rng.fold(key, place), h.numel(), h.dtype).view(h.shape) < cfg.host.dropout
        return torch.where(dropped, 0.0, h / (1 - cfg.host.dropout))

    return drop


def assert_trains_as_modules(planted: Made) -> None:
    cfg, population = planted
    group = population.groups[0]
    sequential = oracles(cfg, population)
    for step in range(2):
        tokens, labels = group.batches.at(1, step)
        loss, _, gradients = group.gradients(tokens, labels, group.dropout_keys(1, step))
        group.optimizer.step(gradients)
        of, weights = population.pool.unpacked(gradients), population.pool.unpacked(group.weights)
        for env, (oracle, names_of) in enumerate(sequential):
            oracle.dropout = masks(cfg, env, step)
            expected, _ = oracle.step(tokens[:, env, :, 0], labels[env])
            where = f"step {step}, {about(population, env)}"
            assert_close(loss[env], expected, f"loss, {where}")
            for name, parameter in oracle.named_parameters():
                if name in oracle.measured:
                    made = of[names_of[name]][env]
                    assert_close(made, oracle.measured[name], f"gradient of {name}, {where}")
                weight = weights[names_of[name]][env].detach()
                assert_close(weight, parameter.detach(), f"{name}, {where}")


@pytest.mark.slow
def test_validation_test_and_contributions_are_those_of_modules(planted: Made) -> None:
    assert_validates_as_modules(planted)


def assert_validates_as_modules(planted: Made) -> None:
    cfg, population = planted
    sequential = oracles(cfg, population)
    batches = [population.groups[0].batches.at(1, step) for step in range(cfg.task.batches_per_epoch)]
    measurements = population.run_epoch(1, 0).measurements
    test_loss, test_accuracy = population.test()
    for env, (oracle, _) in enumerate(sequential):
        what = about(population, env)
        steps = []
        for step, (tokens, labels) in enumerate(batches):
            oracle.dropout = masks(cfg, env, step)
            steps.append(oracle.step(tokens[:, env, :, 0], labels[env]))
        loss, accuracy = oracle.scores(DATA.val)
        assert float(measurements.train_loss[env]) == pytest.approx(
            np.mean([s[0] for s in steps]), rel=1e-5
        ), what
        hits = sum(int(s[1]) for s in steps) / (len(steps) * cfg.task.batch_size * DATA.context)
        assert float(measurements.train_accuracy[env]) == pytest.approx(hits), what
        assert float(measurements.val_loss[env]) == pytest.approx(loss, rel=1e-5), what
        assert float(measurements.val_accuracy[env]) == pytest.approx(accuracy), what
        for slot in range(len(population.slots)):
            measured = float(measurements.contribution[env, slot])
            if int(population.table.stage[env, slot]) in BLENDED:
                without = oracle.scores(DATA.val, without=slot)[1]
                assert measured == pytest.approx(accuracy - without, abs=1e-6), f"slot {slot}, {what}"
                if cfg.seeds.blueprints[int(population.table.blueprint[env, slot])] == "noop":
                    assert measured == 0.0, f"slot {slot}, {what}"
            else:
                assert np.isnan(measured), f"slot {slot}, {what}"
        loss, accuracy = oracle.scores(DATA.test)
        assert float(test_loss[env]) == pytest.approx(loss, rel=1e-5), what
        assert float(test_accuracy[env]) == pytest.approx(accuracy), what


@pytest.mark.parametrize("heads", [0, 2])
def test_hosts_without_attention_or_mlp_train_as_modules(heads: int) -> None:
    columns = rows(every_state(5), [3, 4])
    cfg, population = populate(columns, host__heads=heads, host__mlp=0 if heads else 12)
    sequential = oracles(cfg, population)
    tokens, labels = population.groups[0].batches.at(1, 0)
    loss, _, _ = population.groups[0].gradients(tokens, labels)
    for env, (oracle, _) in enumerate(sequential):
        assert_close(loss[env], oracle.step(tokens[:, env, :, 0], labels[env])[0], f"env {env}")


@pytest.mark.slow
@pytest.mark.parametrize("plan", [nightly("gather"), "masked"])
def test_hosts_with_a_tied_head_train_and_validate_as_modules(plan: str) -> None:
    made = populate(rows(every_state(5), list(range(0, 45, 5))), envs__plan=plan, host__tied_head=True)
    assert "head.weight" not in made[1].model.specs()
    assert_trains_as_modules(made)
    assert_validates_as_modules(made)
    made[1].close()


@pytest.mark.slow
@pytest.mark.parametrize("plan", [nightly("gather"), "masked"])
def test_hosts_with_dropout_train_and_validate_as_modules(plan: str) -> None:
    columns = rows(every_state(5), list(range(0, 45, 5)))
    cfg, population = made = populate(columns, envs__plan=plan, host__dropout=0.3, envs__group_size=64)
    dropped = masks(cfg, 0, 0)(torch.ones(100_000), 0) == 0
    assert float(dropped.float().mean()) == pytest.approx(0.3, abs=0.01)
    assert_trains_as_modules(made)
    assert_validates_as_modules(made)
    population.close()


def test_nothing_is_drawn_where_nothing_is_dropped() -> None:
    columns = rows(every_state(5), [3, 4])
    keys = [populate(columns, host__dropout=p)[1].groups[0].dropout_keys(1, 0) for p in (0.0, 0.1)]
    assert keys[0] is None
    assert keys[1] is not None


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["gather", nightly("masked")])
def test_hosts_with_rows_of_slots_train_and_validate_as_modules(plan: str) -> None:
    columns = rows(every_state(5, slots=6), list(range(0, 22, 2)))
    made = populate(columns, envs__plan=plan, host__slot_rows=2)
    assert made[1].slots == ["r0c0", "r1c0", "r0c1", "r1c1", "r0c2", "r1c2"]
    assert_trains_as_modules(made)
    assert_validates_as_modules(made)
    made[1].close()


@pytest.mark.parametrize(("size", "shared"), [(1, False), (2, True), nightly(1, True), nightly(2, False)])
def test_grouping_does_not_matter(size: int, shared: bool) -> None:
    columns = rows(every_state(5), list(range(0, 45, 9)))
    results = []
    for group_size in (5, size):
        settings = {"task__shared_batches": shared, "host__dropout": 0.2 if shared else 0.0}
        _, population = populate(columns, envs__group_size=group_size, **settings)
        population.run_epoch(1, 0)
        results.append((population.run_epoch(1, 1).measurements, population.state_dict()))
        population.close()
    (one, state_one), (other, state_other) = results
    for name, value in vars(one).items():
        torch.testing.assert_close(getattr(other, name), value, equal_nan=True, rtol=1e-6, atol=1e-7)
    for name, value in state_one["weights"].items():
        torch.testing.assert_close(state_other["weights"][name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["gather", "masked"])
def test_what_one_env_grows_changes_no_bit_of_another(plan: str) -> None:
    columns = rows(every_state(5), list(range(0, 45, 6)))
    changed = {name: values.clone() for name, values in columns.items()}
    for slot, blueprint in enumerate((2, 4, 0)):
        changed["stage"][3, slot], changed["alpha"][3, slot] = int(BLENDED[0]), 0.8
        changed["blueprint"][3, slot], changed["pruning"][3, slot] = blueprint, False
    results = []
    for table in (columns, changed):
        _, population = populate(
            table, torch.float32, envs__plan=plan, envs__group_size=64, host__width=32, task__batch_size=8
        )
        population.run_epoch(1, 0)
        results.append((vars(population.run_epoch(1, 1).measurements), population.state_dict()["weights"]))
        population.close()
    others = torch.arange(len(columns["stage"])) != 3
    for one, two in zip(*results, strict=True):
        for name, value in one.items():
            assert torch.equal(value[others].nan_to_num(7e7), two[name][others].nan_to_num(7e7)), name
    assert not torch.equal(results[0][0]["train_loss"][3], results[1][0]["train_loss"][3])


@pytest.mark.parametrize("plan", [nightly("gather"), "masked"])
def test_no_prediction_depends_on_what_follows(plan: str) -> None:
    """Logits up to a position stay as they are when the characters after it change: every seed and style."""
    _, population = populate(every_state(5), envs__plan=plan, envs__group_size=64)
    group, edge = population.groups[0], 6
    tokens, _ = group.batches.at(1, 0)
    changed = tokens.clone()
    changed[:, :, edge:] = (changed[:, :, edge:] + 3) % DATA.classes
    logits = []
    weights = population.pool.take(group._runs, group.weights)
    for x in (tokens, changed):
        for slot, runs in enumerate(group._runs):
            x = population.model.train_block(slot, x, weights)
            x = population.pool.run(slot, x, len(group), runs, weights)
        logits.append(population.model.head(x, group.weights).unflatten(1, (-1, DATA.context)))
    before, after = (made[:, :, :edge] for made in logits)
    assert torch.equal(before, after)
    assert not torch.equal(*(made[:, :, edge:] for made in logits))
    population.close()


@pytest.mark.parametrize(
    ("plan", "kinds"),
    [
        ("gather", BLUEPRINTS),
        ("masked", MORE_BLUEPRINTS[:5]),
        nightly("gather", MORE_BLUEPRINTS[:5]),
        nightly("masked", BLUEPRINTS),
    ],
    ids=["gather-known", "masked-more", "gather-more", "masked-known"],
)
def test_a_resumed_population_goes_on_bit_for_bit(plan: str, kinds: tuple[str, ...]) -> None:
    columns = rows(every_state(5), [0, 7, 14, 21, 28])
    settings = {"envs__plan": plan, "envs__group_size": 2, "seeds__blueprints": kinds, "host__dropout": 0.2}
    _, whole = populate(columns, torch.float32, **settings)
    whole.run_epoch(1, 0)
    _, resumed = populate(rows(every_state(5), [1, 2, 3, 4, 5]), torch.float32, **settings)
    resumed.load_state_dict(whole.state_dict())
    for epoch in (1, 2):
        for population in (whole, resumed):
            table = population.table
            table.stage[:, 1], table.blueprint[:, 1] = int(Stage.GERMINATED), epoch + 2
            population.set_topology(table.stage, table.blueprint, table.style)
        one, other = (vars(population.run_epoch(1, epoch).measurements) for population in (whole, resumed))
        for name, value in one.items():
            assert torch.equal(value.nan_to_num(7e7), other[name].nan_to_num(7e7)), name
    state = resumed.state_dict()["weights"]
    for name, weight in whole.state_dict()["weights"].items():
        assert torch.equal(weight, state[name]), name
    assert (state[f"r0c1.{kinds[4]}"] != 0).any(), "a seed was born after the checkpoint"

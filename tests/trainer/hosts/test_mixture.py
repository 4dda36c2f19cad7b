"""An env of a mixture trains as a run of its task alone would, whatever its neighbours learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper_overwatch.trainer.data.dataset import Dataset, Split
from esper_overwatch.trainer.data.mixture import Instances, Mixture
from esper_overwatch.trainer.hosts.env_tasks import EnvTasks
from esper_overwatch.trainer.hosts.population import Population
from esper_overwatch.trainer.reward.shapley import ShapleyValues
from tests.trainer.hosts.plots import config, every_state, plant, tiny

torch.set_num_threads(1)
SHAPE = (2, 8, 8)


def darker(data: Dataset) -> Dataset:
    """Another task: other levels, other labels, fewer images in each split."""

    def changed(split: Split) -> Split:
        return Split(split.images[3:] // 3, (split.labels[3:] * 2 + 1) % data.classes)

    return Dataset.of("darker", data.classes, *map(changed, (data.train, data.val, data.test)))


def results(data: Dataset | Mixture, augment: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    """Two epochs of hosts with seeds in every state, then the test and Shapley values."""
    columns = {name: values[:6] for name, values in every_state().items()}
    cfg = config(6, envs__group_size=3, task__augment=augment, envs__convolution="grouped")
    population = Population(cfg, data, "cpu", dtype=torch.float64)
    plant(population, columns)
    population.run_epoch(1, 0)
    measured = vars(population.run_epoch(1, 1).measurements)
    loss, accuracy = population.test()
    shapley: ShapleyValues = population.shapley(1)
    weights = {name: w.clone() for name, w in population.state_dict()["weights"].items()}
    population.close()
    return {
        **{f"measured.{name}": value for name, value in measured.items()},
        **{f"weights.{name}": value for name, value in weights.items()},
        **{f"shapley.{k}": torch.as_tensor(v) for k, v in vars(shapley).items() if v is not None},
        "test.loss": loss,
        "test.accuracy": accuracy,
    }


@pytest.mark.parametrize("augment", [(), pytest.param(("crop", "flip"), marks=pytest.mark.slow)])
def test_an_env_trains_as_its_task_alone_would(augment: tuple[str, ...]) -> None:
    tasks = [tiny(shape=SHAPE), darker(tiny(shape=SHAPE))]
    mixture = Mixture.of([Instances(data.name, (data,)) for data in tasks])
    places = mixture.draw(5, torch.arange(6), 1)
    assert set(places.tolist()) == {0, 1}
    mixed = results(mixture, augment)
    for place, data in enumerate(tasks):
        mine = torch.from_numpy((places == place).nonzero()[0])
        for name, alone in results(data, augment).items():
            torch.testing.assert_close(
                mixed[name][mine], alone[mine], rtol=1e-9, atol=1e-9, equal_nan=True, msg=name
            )


def test_outputs_without_a_class_learn_and_answer_nothing() -> None:
    few, many = tiny(3, SHAPE), tiny(7, SHAPE)
    mixture = Mixture.of([Instances("few", (few,)), Instances("many", (many,))])
    population = Population(config(6, envs__convolution="grouped"), mixture, "cpu", dtype=torch.float64)
    population.begin_episode(1)
    table = population.table
    population.set_topology(table.stage, table.blueprint, table.style)
    before = population.state_dict()["weights"]["head.weight"].clone()
    measured = population.run_epoch(1, 0).measurements
    after = population.state_dict()["weights"]["head.weight"]
    population.close()
    has_few = torch.from_numpy(mixture.draw(5, torch.arange(6), 1) == 0)
    assert has_few.any()
    assert (~has_few).any()
    moved = (after != before).any(2)
    assert moved[has_few, :3].all()
    assert not moved[has_few, 3:].any()
    assert moved[~has_few].all()
    guess = population.tasks.guess
    assert guess is not None
    torch.testing.assert_close(guess.chance, torch.where(has_few, 1 / 3, 1 / 7))
    assert (measured.val_loss[has_few] < torch.tensor(7.0).log()).all()


def test_the_draw_depends_on_env_and_round_alone() -> None:
    data = tiny(shape=SHAPE)
    mixture = Mixture.of([Instances("one", (data,)), Instances("four", (data,) * 4)])
    envs = torch.arange(2000)
    places = mixture.draw(3, envs, 7)
    assert (mixture.draw(3, envs[500:], 7) == places[500:]).all()
    assert (mixture.draw(3, envs, 8) != places).any()
    counts = np.bincount(places, minlength=5)
    assert counts[0] == pytest.approx(1000, abs=120), "tasks are equally likely"
    assert counts[1:].min() > 180, "and so are the instances of each"
    assert mixture.names(3, 3, 1, 7) == [("one", 0) if p == 0 else ("four", int(p) - 1) for p in places[:3]]


def test_guesses_of_a_round_lie_where_the_last_lay() -> None:
    envs, cpu = torch.arange(9), torch.device("cpu")
    mixture = Mixture.of([Instances(str(classes), (tiny(classes, SHAPE),)) for classes in (3, 7)])
    tasks = EnvTasks(mixture, envs, 3, torch.float32, (), cpu)
    guess = tasks.guess
    assert guess is not None
    for round_ in (7, 8):
        tasks.draw(round_)
        classes = torch.from_numpy(np.array([3.0, 7.0])[mixture.draw(3, envs, round_)])
        torch.testing.assert_close(guess.chance, (1 / classes).float())
        torch.testing.assert_close(guess.loss, classes.log().float())
    assert EnvTasks(tiny(shape=SHAPE), envs, 3, torch.float32, (), cpu).guess is None

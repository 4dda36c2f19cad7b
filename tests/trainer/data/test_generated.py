"""Tasks computed from a seed, and mixtures of what has a name."""

from __future__ import annotations

import pytest
import torch

from esper_overwatch.trainer.config.task_options import TaskConfig
from esper_overwatch.trainer.data.dataset import DataError
from esper_overwatch.trainer.data.generated import GENERATED_TASKS
from esper_overwatch.trainer.data.mixture import Instances, Mixture
from esper_overwatch.trainer.data.registry import load, load_task
from tests.trainer.hosts.plots import tiny

torch.set_num_threads(1)
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", GENERATED_TASKS)
def test_a_seed_makes_the_same_images_another_makes_others(name: str) -> None:
    one, again, other = (GENERATED_TASKS[name](seed) for seed in (0, 0, 1))
    assert one.shape == (1, 8, 8)
    assert (len(one.train), len(one.val), len(one.test)) == (1200, 400, 400)
    assert torch.equal(one.train.images, again.train.images)
    assert not torch.equal(one.train.images, other.train.images)
    assert torch.equal(load(name).val.images, one.val.images)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "tells"), [("histogram", True), ("texture", False)])
def test_the_mean_grey_tells_the_classes_of_histogram_alone(name: str, tells: bool) -> None:
    data = GENERATED_TASKS[name](4)
    greys = [split.images.double().mean((1, 2, 3)) for split in (data.train, data.val)]
    centres = torch.stack([greys[0][data.train.labels == k].mean() for k in range(10)])
    found = (greys[1].unsqueeze(1) - centres).abs().argmin(1)
    accuracy = float((found == data.val.labels).double().mean())
    assert accuracy > 0.6 if tells else accuracy < 0.2, accuracy


def test_a_mixture_has_instances_of_what_a_seed_makes() -> None:
    task = load_task(TaskConfig(mixture=("digits", "layout"), instances=3), CPU)
    assert isinstance(task, Mixture)
    assert [(part.name, len(part.datasets)) for part in task.tasks] == [("digits", 1), ("layout", 3)]
    assert torch.equal(task.tasks[1].datasets[2].train.images, GENERATED_TASKS["layout"](2).train.images)


@pytest.mark.parametrize(
    ("mixture", "told"),
    [
        (("digits", "text"), "text is text; a mixture is of images"),
        (("digits", "figits"), "no dataset named 'figits'"),
    ],
)
def test_what_does_not_go_together_is_refused(mixture: tuple[str, ...], told: str) -> None:
    with pytest.raises(DataError, match=told):
        load_task(TaskConfig(mixture=mixture, instances=1), CPU)


def test_images_of_other_shapes_are_refused() -> None:
    tasks = [Instances(f"of{side}", (tiny(shape=(1, side, 8)),)) for side in (8, 9)]
    with pytest.raises(DataError, match="images of of9 are 1x9x8, those of of8 1x8x8"):
        Mixture.of(tasks)

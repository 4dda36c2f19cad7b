"""Each env walks the whole training set in its own order, and gets its own images."""

from __future__ import annotations

import torch

from esper_overwatch.trainer.data.batches import Batches
from esper_overwatch.trainer.data.registry import load

torch.set_num_threads(1)
DIGITS = load("digits")


def batches(envs: list[int], size: int = 100, seed: int = 1) -> Batches:
    return Batches(DIGITS.examples("train", torch.float32), torch.tensor(envs), seed, size)


def test_each_pass_shows_every_image_once_in_new_order() -> None:
    total = len(DIGITS.train)
    walk = batches([0, 1], size=77)
    steps = torch.cat([walk.indices(1, step) for step in range(30)], dim=1)
    for env in (0, 1):
        one, two = steps[env, :total], steps[env, total : 2 * total]
        assert torch.equal(one.sort().values, torch.arange(total))
        assert torch.equal(two.sort().values, torch.arange(total))
        assert not torch.equal(one, two)
    assert not torch.equal(steps[0], steps[1])


def test_an_order_depends_on_env_round_and_seed_alone() -> None:
    alone, among = batches([7]).indices(2, 5), batches([3, 7, 11]).indices(2, 5)
    assert torch.equal(alone[0], among[1])
    later = batches([7])
    later.indices(9, 40)
    assert torch.equal(later.indices(2, 5), alone), "stateless: any order of asking"
    assert not torch.equal(batches([7]).indices(3, 5), alone)
    assert not torch.equal(batches([7], seed=2).indices(2, 5), alone)


def test_a_batch_larger_than_the_training_set_goes_round() -> None:
    total = len(DIGITS.train)
    index = batches([0], size=3 * total).indices(1, 0)
    assert torch.equal(torch.bincount(index[0]), torch.full((total,), 3))


def test_steps_that_are_made_together_are_those_made_alone() -> None:
    walk, alone = batches([7, 3], size=60), batches([7, 3], size=60)
    for step in (5, 6, 3, 0, 23, 21, 40):
        index = alone.indices(2, step)
        assert torch.equal(walk.indices(2, step - 2, 3)[:, 120:] if step > 2 else index, index)
        x, labels = walk.at(2, step)
        expected, answers = alone.examples.batch(index)
        assert torch.equal(x, expected)
        assert torch.equal(labels, answers)
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert not torch.equal(walk.at(1, step)[0], x)


def test_inputs_are_normalised_images_of_each_env() -> None:
    for name in ("digits", "synthetic"):
        data = load(name)
        channels = data.shape[0]
        images = data.examples("train", torch.float64)
        index = torch.tensor([[3, 1, 4], [1, 5, 9]])
        x, _ = images.batch(index)
        assert x.is_contiguous(memory_format=torch.channels_last)
        expected = (data.train.images.double() - data.mean.view(-1, 1, 1)) / data.std.view(-1, 1, 1)
        for env in (0, 1):
            torch.testing.assert_close(x[:, env * channels : (env + 1) * channels], expected[index[env]])
        shared, labels = images.span(10, 14)
        torch.testing.assert_close(shared, expected[10:14])
        assert torch.equal(labels, data.train.labels[10:14])

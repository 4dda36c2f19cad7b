"""Crops and flips: each image where a plain loop would put it, each env by its own numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esper_overwatch.trainer.compute import rng
from esper_overwatch.trainer.data.augment import Augment
from esper_overwatch.trainer.data.batches import Batches
from esper_overwatch.trainer.data.dataset import Dataset, Split
from tests.trainer.data import folders

torch.set_num_threads(1)


def colours() -> Dataset:
    splits = [
        Split(folders.images(40, 3, 9, 16, part=i), torch.tensor(folders.labels(40, 4))) for i in range(3)
    ]
    return Dataset.of("colours", 4, *splits)


DATA = colours()


def walk(envs: list[int], *kinds: str, seed: int = 1, shared: bool = False) -> Batches:
    return Batches(DATA.examples("train", torch.float32, kinds), torch.tensor(envs), seed, 12, shared=shared)


def by_hand(image: Tensor, words: Tensor, kinds: tuple[str, ...]) -> Tensor:
    """One image [H, W, C] by its three random words: mirror, then move."""
    height, width, _ = image.shape
    if "flip" in kinds and words[2] % 2:
        image = image.flip(1)
    if "crop" not in kinds:
        return image
    down, right = (int(words[i] % (2 * (side // 8) + 1)) - side // 8 for i, side in ((0, height), (1, width)))
    out = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            if 0 <= row + down < height and 0 <= column + right < width:
                out[row, column] = image[row + down, column + right]
    return out


@pytest.mark.parametrize("kinds", [("crop",), ("flip",), ("crop", "flip")])
def test_every_image_lands_where_a_plain_loop_puts_it(kinds: tuple[str, ...]) -> None:
    batch, n = 12, 3
    images = folders.images(batch * n, 9, 16, 3).view(batch, n, 9, 16, 3)
    keys = rng.key(3, rng.Purpose.AUGMENT, torch.arange(n))
    words = rng.bits(keys, 3 * batch).view(n, batch, 3)
    moved = Augment(kinds)(images, keys)
    assert moved.dtype == torch.uint8
    for i in range(batch):
        for env in range(n):
            assert torch.equal(moved[i, env], by_hand(images[i, env], words[env, i], kinds)), (i, env)


def test_moves_and_mirrors_are_spread_evenly() -> None:
    count = 20_000
    dot = torch.zeros(count, 1, 9, 16, 1, dtype=torch.uint8)
    dot[:, :, 4, 5] = 1
    moved = Augment(("crop", "flip"))(dot, rng.key(1, rng.Purpose.AUGMENT, torch.zeros(1, dtype=torch.int64)))
    share = moved.double().mean((0, 1, 4))
    assert share[3:6, [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]].sum() == pytest.approx(1.0)
    assert share[3:6, 3:8].flatten() == pytest.approx([1 / 30] * 15, abs=0.006)
    assert share[3:6, 8:13].flatten() == pytest.approx([1 / 30] * 15, abs=0.006)


def test_a_batch_depends_on_seed_env_round_and_step_alone() -> None:
    kinds = ("crop", "flip")
    alone, labels = walk([7], *kinds).at(2, 5)
    among, all_labels = walk([3, 7, 11], *kinds).at(2, 5)
    assert torch.equal(alone, among[:, 3:6])
    assert torch.equal(labels[0], all_labels[1])
    later = walk([7], *kinds)
    later.at(9, 40)
    assert torch.equal(later.at(2, 5)[0], alone), "stateless: any order of asking"
    chosen = DATA.examples("train", torch.float32).chosen(walk([7]).indices(2, 5))
    draws = [
        Augment(kinds)(chosen, rng.key(seed, rng.Purpose.AUGMENT, torch.tensor([env]), round_, step))
        for seed, env, round_, step in ((1, 7, 2, 5), (2, 7, 2, 5), (1, 8, 2, 5), (1, 7, 3, 5), (1, 7, 2, 6))
    ]
    assert torch.equal(DATA.examples("train", torch.float32).normalised(draws[0]), alone)
    assert not any(torch.equal(draws[0], other) for other in draws[1:])


def test_augmentation_keeps_shape_and_labels_and_can_be_off() -> None:
    plain, on = walk([0, 1, 2]), walk([0, 1, 2], "crop", "flip")
    x, labels = plain.at(1, 3)
    assert torch.equal(x, DATA.examples("train", torch.float32).batch(plain.indices(1, 3))[0])
    y, same = on.at(1, 3)
    assert torch.equal(labels, same)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(x, y)


def test_shared_batches_are_one_walk_with_the_labels_for_everyone() -> None:
    x, labels = walk([4, 5, 6], "crop", "flip", shared=True).at(1, 2)
    assert x.shape == (12, 3, 9, 16)
    assert labels.shape == (3, 12)
    assert (labels == labels[0]).all()
    y, same = walk([0], "crop", "flip", shared=True).at(1, 2)
    assert torch.equal(x, y), "whichever envs are in the group"
    assert torch.equal(labels[0], same[0])

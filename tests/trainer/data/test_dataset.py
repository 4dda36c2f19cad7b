"""Datasets are checked, split in fixed proportions, and normalised by the training images."""

from __future__ import annotations

import pytest
import torch

from esper_overwatch.trainer.data.dataset import DataError, Dataset, Split, split_stratified
from esper_overwatch.trainer.data.registry import load

torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_every_dataset_loads_the_same_twice_with_disjoint_splits(name: str) -> None:
    one, two = load(name), load(name)
    seen: list[bytes] = []
    for part in ("train", "val", "test"):
        a, b = getattr(one, part), getattr(two, part)
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
        assert a.images.shape[1:] == one.shape
        assert set(a.labels.tolist()) == set(range(one.classes))
        seen += [image.numpy().tobytes() for image in a.images]
    assert len(set(seen)) == len(seen), "no image in two splits"


def test_digits_are_split_60_20_20_in_every_class() -> None:
    data = load("digits")
    sizes = [len(data.train), len(data.val), len(data.test)]
    assert sum(sizes) == 1797
    for share, size, split in zip((0.6, 0.2, 0.2), sizes, (data.train, data.val, data.test), strict=True):
        assert size == pytest.approx(share * 1797, abs=6)
        counts = torch.bincount(split.labels, minlength=10)
        assert (counts - size / 10).abs().max() < 6


def test_stratified_holds_every_index_once_and_keeps_proportions() -> None:
    labels = torch.tensor([0] * 70 + [1] * 20 + [2] * 10)[torch.randperm(100, generator=torch.Generator())]
    parts = split_stratified(labels, (0.5, 0.3, 0.2))
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(100))
    for share, part in zip((0.5, 0.3, 0.2), parts, strict=True):
        assert torch.bincount(labels[part]).tolist() == [70 * share, 20 * share, 10 * share]


@pytest.mark.slow
def test_normalisation_is_that_of_the_training_images() -> None:
    data = load("synthetic")
    pixels = data.train.images.double()
    torch.testing.assert_close(data.mean, pixels.mean((0, 2, 3)))
    torch.testing.assert_close(data.std, pixels.std((0, 2, 3), correction=0))


def good(count: int = 6) -> Split:
    return Split(torch.zeros(count, 1, 4, 4, dtype=torch.uint8), torch.arange(count) % 3)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Split(good().images, torch.tensor([0, 1, 2, 3, 0, 1])), "labels run from 0 to 3, not within 0..2"),
        (Split(good().images, torch.tensor([0, 1, 2, -1, 0, 1])), "labels run from -1 to 2"),
        (Split(good().images, torch.arange(5) % 3), "6 images but labels of shape (5,)"),
        (Split(good().images[:0], torch.arange(0)), "0 images"),
        (Split(good().images.float(), good().labels), "not uint8"),
        (Split(good().images[:, :, :3], good().labels), "not uint8 [M, 1x4x4]"),
        (Split(good().images, good().labels.float()), "labels are torch.float32; make them whole numbers"),
        (Split(good().images, good().labels.to(torch.cfloat)), "labels are torch.complex64"),
    ],
)
def test_damaged_data_is_a_one_line_error(bad: Split, words: str) -> None:
    with pytest.raises(DataError, match="shapes: validation split") as caught:
        Dataset.of("shapes", 3, good(), bad, good())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.uint16, torch.int64])
def test_labels_of_any_whole_type_become_int64(dtype: torch.dtype) -> None:
    split = Split(good().images, good().labels.to(dtype))
    data = Dataset.of("shapes", 3, split, split, split)
    for part in (data.train, data.val, data.test):
        assert part.labels.dtype == torch.int64
        assert torch.equal(part.labels, good().labels)


def test_a_task_of_one_class_is_refused() -> None:
    split = Split(good().images, torch.zeros(6, dtype=torch.int64))
    with pytest.raises(DataError, match="shapes: a task needs two classes at least, not 1"):
        Dataset.of("shapes", 1, split, split, split)


def test_an_unknown_dataset_is_named_with_those_there_are() -> None:
    with pytest.raises(DataError, match=r"'didgits'; there are digits"):
        load("didgits")

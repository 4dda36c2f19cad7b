"""Well-known images made small."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esper_overwatch.trainer.cli.data import _as_lines, list_datasets
from esper_overwatch.trainer.config.task_options import TaskConfig
from esper_overwatch.trainer.data.dataset import DataError, Dataset, Split
from esper_overwatch.trainer.data.mixture import Mixture
from esper_overwatch.trainer.data.reduced import reduce_images
from esper_overwatch.trainer.data.registry import KNOWN_DATASETS, load, load_task, register
from tests.trainer.data import folders

torch.set_num_threads(1)
INSTALLED = KNOWN_DATASETS["fashion-mnist"].folder
assert INSTALLED is not None


def blocks(count: int, part: int, side: int = 16) -> Split:
    """Images whose four quarters of 2x2 blocks are of one grey each, so that averages are known."""
    labels = torch.arange(count) % 3
    grey = folders.images(count, 1, 8, 8, part=part)
    return Split(grey.repeat_interleave(side // 8, 2).repeat_interleave(side // 8, 3), labels)


def source(train: int = 1700, side: int = 16) -> Dataset:
    return Dataset.of("big", 3, blocks(train, 1, side), blocks(30, 2, side), blocks(500, 3, side))


def rows(split: Split) -> set[tuple[int, ...]]:
    return set(map(tuple, split.images.flatten(1).tolist()))


def test_reduced_images_are_means_from_their_own_splits() -> None:
    big = source()
    small, again, other = (reduce_images("small", big, seed) for seed in (0, 0, 1))
    assert (small.shape, small.classes) == ((1, 8, 8), 3)
    assert (len(small.train), len(small.val), len(small.test)) == (1200, 400, 400)
    known, tested = (rows(Split(s.images[..., ::2, ::2], s.labels)) for s in (big.train, big.test))
    assert rows(small.train) | rows(small.val) <= known
    assert not rows(small.train) & rows(small.val)
    assert rows(small.test) <= tested
    assert torch.equal(small.train.images, again.train.images)
    assert not torch.equal(small.train.images, other.train.images)


def test_a_source_too_small_is_refused() -> None:
    with pytest.raises(DataError, match="big has 100 and 500 of 16x16"):
        reduce_images("small", source(train=100))


def test_fashion_8x8_follows_where_fashion_mnist_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = replace(KNOWN_DATASETS["fashion-mnist"], folder=tmp_path / "nowhere")
    monkeypatch.setitem(KNOWN_DATASETS, "fashion-mnist", elsewhere)
    with pytest.raises(DataError, match="esper-daemon data fashion-mnist --from"):
        load("fashion-8x8")
    (line,) = [line for line in _as_lines(list_datasets()) if line.startswith("fashion-8x8")]
    assert "not here; esper-daemon data fashion-mnist --from FOLDER" in line
    with pytest.raises(DataError, match="register the folder under that name"):
        register("fashion-8x8", folders.idx_folder(tmp_path / "files"))
    with pytest.raises(DataError, match="is made of fashion-mnist"):
        load("fashion-8x8", folder=str(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED.is_dir(), reason="the package dataset-fashion-mnist is not installed")
def test_installed_fashion_mnist_has_instances_at_8x8() -> None:
    task = load_task(TaskConfig(mixture=("digits", "fashion-8x8"), instances=2), torch.device("cpu"))
    assert isinstance(task, Mixture)
    digits, fashion = task.tasks
    assert len(digits.datasets) == 1
    one, two = fashion.datasets
    assert one.shape == (1, 8, 8)
    assert one.classes == 10
    assert one.train.labels.bincount().min() > 80
    assert not torch.equal(one.test.images, two.test.images)

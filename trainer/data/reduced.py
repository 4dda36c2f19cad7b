"""Well-known images made small: 2,000 of them at 8x8, which cost what the digits cost."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from esper_overwatch.trainer.compute import rng

from .dataset import DataError, Dataset, Split

SIDE = 8
NUM_TRAIN, NUM_VAL, NUM_TEST = 1200, 400, 400

REDUCED_DATASETS = {"fashion-8x8": "fashion-mnist"}
"""Reduced datasets, each with the dataset whose images they are."""


def reduce_images(name: str, source: Dataset, seed: int = 0) -> Dataset:
    """Images of a dataset, averaged to 8x8 pixels.

    Images to train and to validate on are from the source's training split, those to test on from its test
    split; which, depends on the seed, so that there are many instances.

    Raises:
        DataError: the source is too small.
    """
    _, height, width = source.shape
    if len(source.train) < NUM_TRAIN + NUM_VAL or len(source.test) < NUM_TEST or min(height, width) < SIDE:
        raise DataError(
            f"{name}: is made of {NUM_TRAIN + NUM_VAL} training and {NUM_TEST} test images of at least "
            f"{SIDE}x{SIDE}; {source.name} has {len(source.train)} and {len(source.test)} of {height}x{width}"
        )
    key = rng.key(seed, rng.Purpose.GENERATED, *name.encode())
    chosen = rng.permutation(rng.fold(key, 0), len(source.train))[: NUM_TRAIN + NUM_VAL]
    tested = rng.permutation(rng.fold(key, 1), len(source.test))[:NUM_TEST]
    parts = (
        _small(source.train, chosen[:NUM_TRAIN]),
        _small(source.train, chosen[NUM_TRAIN:]),
        _small(source.test, tested),
    )
    return Dataset.of(name, source.classes, *parts)


def _small(split: Split, index: Tensor) -> Split:
    images = F.adaptive_avg_pool2d(split.images[index].float(), SIDE)
    return Split(images.round().to(torch.uint8), split.labels[index])
